use ringfence_wire::Key;

use super::LeaseTable;

/// The number of databases. All but the first had keys such as `db1/a`.
const OLD_DATABASES: u16 = 1_024;

/// Finds locks on keys that were those of Redis names before [`NAMES`](crate::NAMES).
impl LeaseTable {
    /// Looks at the `at_most` keys after `after`. Returns the last of them if more follow.
    ///
    /// # Errors
    /// A lease with a value holds this key, and since [`NAMES`](crate::NAMES), its name may be another key.
    pub fn check_names(&self, after: Option<&str>, at_most: usize) -> Result<Option<Key>, Key> {
        let mut locks = self.store.locks("", after);
        let mut last = None;
        for (key, _) in locks.by_ref().take(at_most) {
            // A lease with a value is alone.
            let has_value = || self.holders(key).next().is_some_and(|(lease, _)| lease.value().is_some());
            if was_of_another_name(key) && has_value() {
                return Err(key.clone());
            }
            last = Some(key);
        }
        Ok(last.filter(|_| locks.next().is_some()).cloned())
    }
}

/// Whether `key` may be the key, before or since [`NAMES`](crate::NAMES), of a Redis name whose key changed then: the key of a name in a
/// database, or one with escaped bytes. Under older rules, a program that knows the new ones must not set a lock on such a key: this would
/// keep the rules from being raised.
pub fn was_of_another_name(key: &Key) -> bool {
    let (first, _) = key.as_str().split_once('/').unwrap_or_default();
    let is_of_old_database = first.strip_prefix("db").is_some_and(|number| {
        let parsed = number.parse().ok().filter(|parsed| (1..OLD_DATABASES).contains(parsed));
        parsed.is_some_and(|parsed| parsed.to_string() == number)
    });
    is_of_old_database || key.is_of_database() || key.as_str().contains('%')
}

#[cfg(test)]
mod tests {
    use std::iter;

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
        // `db1/b` was acquired over HTTP, and the others are the same keys under new rules.
        let http = make::acquire(1, [(make::key("db1/b"), ringfence_wire::Mode::Exclusive)], 0);
        let same = ["c", "dbs/d", "db0/e", "db1024/e", "db007/e", "db+3/e", "db3", "a/db3/e"];
        let sets = (2..).zip(same).map(|(n, name)| set(n, name));
        let commands = iter::once(http.into()).chain(sets).collect();
        table.apply(0, commands, &mut Vec::new());
        assert_eq!(table.check_names(None, 10), Ok(None));
        assert_eq!(table.check_names(None, 6), Ok(Some(make::key("db1/b"))));
        assert_eq!(table.check_names(Some("db1/b"), 3), Ok(None));
        for (n, name) in (20..).zip(["50%25off", "db1/k", "db1023/k", "a%0A", "@db3/a", "@db3"]) {
            let mut table = LeaseTable::new();
            table.raise_rules(4);
            table.apply(0, vec![set(n, name)], &mut Vec::new());
            assert_eq!(table.check_names(None, 10), Err(make::key(name)));
        }
    }
}
