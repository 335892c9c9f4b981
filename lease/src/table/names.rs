use ringfence_wire::Key;

use super::LeaseTable;

/// Locks that have the keys that names of the Redis protocol were before [`NAMES`](crate::NAMES).
impl LeaseTable {
    /// Looks at the `at_most` keys after `after`. Returns the last of them if more follow.
    ///
    /// # Errors
    /// A lease with a value holds this key, which is perhaps another one since [`NAMES`](crate::NAMES).
    pub fn check_names(&self, after: Option<&str>, at_most: usize) -> Result<Option<Key>, Key> {
        let mut locks = self.store.locks("", after);
        let mut last = None;
        for (key, _) in locks.by_ref().take(at_most) {
            let has_value = || self.holders(key).any(|(lease, _)| lease.value().is_some());
            if was_of_another_name(key) && has_value() {
                return Err(key.clone());
            }
            last = Some(key);
        }
        Ok(last.filter(|_| locks.next().is_some()).cloned())
    }
}

/// Whether, before [`NAMES`](crate::NAMES), a name of the Redis protocol was `key` that is another key since: a name in a database, or one with bytes
/// that were escaped. Under older rules, programs that know this leave such keys alone.
pub fn was_of_another_name(key: &Key) -> bool {
    let database = key.as_str().strip_prefix("db").and_then(|rest| rest.split_once('/'));
    let is_in_one = database.is_some_and(|(number, _)| number.parse::<u16>().is_ok());
    is_in_one || key.as_str().contains('%')
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{LeaseId, Ttl};

    use super::*;
    use crate::laws::make;
    use crate::{Attachment, Command, Conditional, KeyChange, Value};

    fn set(n: u128, name: &str) -> Command {
        let change = KeyChange::Acquire {
            key: make::key(name),
            lease_id: LeaseId::from_u128(n).unwrap(),
            ttl: Ttl::default(),
            value: Value::new(b"v").unwrap(),
            holder: None,
            attachment: Attachment(1),
        };
        Command::Conditional(Box::new(Conditional::new(Vec::new(), vec![change]).unwrap()))
    }

    #[test]
    fn only_locks_with_a_value_whose_name_was_another_key_are_in_the_way() {
        let mut table = LeaseTable::new();
        table.raise_rules(4);
        // `db1/b` over HTTP, and the value of `c`, are what they were.
        let http = make::acquire(1, [(make::key("db1/b"), ringfence_wire::Mode::Exclusive)], 0);
        let commands = vec![http.into(), set(2, "c"), set(3, "dbs/d"), set(4, "db99999/e")];
        table.apply(0, commands, &mut Vec::new());
        assert_eq!(table.check_names(None, 10), Ok(None));
        assert_eq!(table.check_names(None, 2), Ok(Some(make::key("db1/b"))));
        assert_eq!(table.check_names(Some("db1/b"), 2), Ok(None));
        for (n, name) in [(5, "50%25off"), (6, "db1/k"), (7, "a%0A")] {
            let mut table = LeaseTable::new();
            table.raise_rules(4);
            table.apply(0, vec![set(n, name)], &mut Vec::new());
            assert_eq!(table.check_names(None, 10), Err(make::key(name)));
        }
    }
}
