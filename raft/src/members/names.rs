//! Names of the Redis protocol, which are other keys under new rules.

use ringfence_lease::NAMES;
use ringfence_wire::Key;
use tokio::task::yield_now;

use crate::replica::Replica;
use crate::unanswered::MembersError::{self, Refused};

/// How many keys are looked at in one turn of the thread.
const LOOKED_AT: usize = 4_096;

impl Replica {
    /// Checks that no lock has a key that its name may not be under new rules ([`was_of_another_name`](ringfence_lease::was_of_another_name)). No member makes or
    /// extends such locks any more, as all run a program that refuses their names under older rules.
    pub(super) async fn check_names(&self, from: u8, to: u8) -> Result<(), MembersError> {
        if !(from + 1..=to).contains(&NAMES) {
            return Ok(());
        }
        let mut after: Option<Key> = None;
        loop {
            let looked = self
                .applied
                .read(|inner| inner.table.check_names(after.as_ref().map(Key::as_str), LOOKED_AT));
            after = looked.map_err(|key| {
                Refused(format!(
                    "a Redis client holds {key}, and under rules {to} its name may be another key, which would be granted to others: \
                     such locks are not extended any more, so wait until they end, or revoke them, and raise the rules then"
                ))
            })?;
            if after.is_none() {
                return Ok(());
            }
            yield_now().await;
        }
    }
}
