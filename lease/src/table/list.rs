use ringfence_wire::{Key, KeyView};

use super::LeaseTable;
use super::view::about_bytes_of;
use crate::limits::{MAX_LOOKS, MAX_SHOWN, PAGE_BYTES};
use crate::steps::step;
use crate::store::Lock;

/// Which keys a list has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sieve<'a> {
    /// Keys with this text in their name, or in the label or principal of a holder or waiter that a view of the key shows. The empty text
    /// is in all.
    pub text: &'a str,
    /// Only keys with waiters.
    pub is_contended: bool,
}

impl LeaseTable {
    /// Up to `limit` keys that are held or waited for, start with `prefix` and come after `after`, in byte order; and the
    /// last of them if more follow. Fewer than `limit` if their views are large, so that no page takes long or much memory.
    pub fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        now_ms: Option<u64>,
    ) -> (Vec<KeyView>, Option<Key>) {
        let (page, next, _) = self.keys_of_sieve(prefix, Sieve::default(), after, limit, now_ms);
        (page, next)
    }

    /// The same for keys that stay in `sieve`. Also returns the last key that was looked at if more follow, and the number of looks, which
    /// has a limit: so a page may have no keys although a later page has some.
    pub fn keys_of_sieve(
        &self,
        prefix: &str,
        sieve: Sieve<'_>,
        after: Option<&str>,
        limit: usize,
        now_ms: Option<u64>,
    ) -> (Vec<KeyView>, Option<Key>, usize) {
        let mut locks = self.store.locks(prefix, after);
        let (mut page, mut last) = (Vec::new(), None);
        let (mut bytes, mut looks) = (0, 0);
        while page.len() < limit
            && bytes < PAGE_BYTES
            && looks < MAX_LOOKS
            && let Some((key, lock)) = locks.next()
        {
            last = Some(key);
            if self.stays(key, lock, sieve, &mut looks) {
                let view = self.key_view(key, Some(lock), now_ms);
                bytes += about_bytes_of(&view);
                page.push(view);
            }
        }
        let next = locks.next().and_then(|_| last.cloned());
        (page, next, looks)
    }

    /// Whether a key stays in the sieve. Counts the looks that this takes.
    fn stays(&self, key: &Key, lock: Lock<'_>, sieve: Sieve<'_>, looks: &mut usize) -> bool {
        let mut look = || {
            step();
            *looks += 1;
        };
        look();
        if sieve.is_contended && lock.waiters_len() == 0 {
            return false;
        }
        if key.as_str().contains(sieve.text) {
            return true;
        }
        lock.holders().take(MAX_SHOWN).chain(lock.waiters().take(MAX_SHOWN)).any(|entry| {
            look();
            let lease = self.store.get(entry.slot);
            let by = self.store.owner(lease);
            lease.holder.as_ref().is_some_and(|holder| holder.as_str().contains(sieve.text))
                || by.is_some_and(|by| by.as_str().contains(sieve.text))
        })
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::Holder;

    use super::*;
    use crate::laws::make;
    use crate::steps::steps_of;
    use crate::{Acquire, Command};

    fn acquire(id: usize, key: &str, holder: &str, wait_ms: u32) -> Command {
        let acquire =
            make::acquire(id as u128 + 1, [(make::key(key), ringfence_wire::Mode::Exclusive)], wait_ms);
        Acquire { holder: Holder::new(holder), ..acquire }.into()
    }

    fn found(table: &LeaseTable, text: &str, is_contended: bool) -> Vec<String> {
        let (page, next, _) = table.keys_of_sieve("", Sieve { text, is_contended }, None, 100, None);
        assert_eq!(next, None);
        page.iter().map(|view| view.key.to_string()).collect()
    }

    #[test]
    fn keys_are_found_by_what_stands_in_their_names_and_by_who_holds_them_or_waits() {
        let mut table = LeaseTable::new();
        let commands = [
            acquire(1, "cold/a", "billing-7", 0),
            acquire(2, "hot/flash-sale", "shop-1", 0),
            acquire(3, "hot/flash-sale", "shop-2", 60_000),
            acquire(4, "hot/other", "billing-8", 0),
        ];
        table.apply(0, commands.into(), &mut Vec::new());
        assert_eq!(found(&table, "flash", false), ["hot/flash-sale"]);
        assert_eq!(found(&table, "billing", false), ["cold/a", "hot/other"]);
        assert_eq!(found(&table, "shop-2", false), ["hot/flash-sale"]);
        assert_eq!(found(&table, "", true), ["hot/flash-sale"]);
        assert_eq!(found(&table, "billing", true), Vec::<String>::new());
        assert_eq!(found(&table, "nobody", false), Vec::<String>::new());
    }

    /// If each of many searches read all of a large table at once, no entry could be applied meanwhile.
    #[test]
    fn a_page_of_what_is_searched_for_looks_at_so_many_and_the_next_goes_on_behind_them() {
        let mut table = LeaseTable::new();
        let key = |n: usize| format!("k{n:06}");
        let many = 3 * MAX_LOOKS;
        for from in (0..many).step_by(1_000) {
            let commands = (from..from + 1_000).map(|n| acquire(n, &key(n), "me", 0)).collect();
            table.apply(0, commands, &mut Vec::new());
        }
        let (mut pages, mut after, mut seen) = (0, None::<Key>, Vec::new());
        loop {
            let sieve = Sieve { text: &key(many - 1), is_contended: false };
            let page = || table.keys_of_sieve("", sieve, after.as_ref().map(Key::as_str), 100, None);
            let ((page, next, looks), steps) = steps_of(page);
            assert!(
                (looks..=looks + 1).contains(&steps) && looks <= MAX_LOOKS + 2 * MAX_SHOWN,
                "{looks}, {steps}"
            );
            seen.extend(page.iter().map(|view| view.key.to_string()));
            pages += 1;
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((pages, seen), (6, vec![key(many - 1)]));
    }
}
