use std::collections::HashSet;
use std::mem::take;
use std::sync::{Mutex, MutexGuard};

use ringfence_wire::Key;
use tokio::sync::Notify;

/// More keys are not kept: then all are to be compared.
const MOST: usize = 10_000;

/// What has to be compared with Redis before the slow sweep comes to it.
#[derive(Debug, Default)]
pub(crate) struct Due {
    wanted: Mutex<Wanted>,
    is_set: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// The whole table, and all hashes.
    pub(crate) all: bool,
    /// Some keys.
    pub(crate) keys: HashSet<Key>,
}

impl Due {
    pub(crate) fn all(&self) {
        self.lock().all = true;
        self.is_set.notify_one();
    }

    pub(crate) fn key(&self, key: Key) {
        let mut wanted = self.lock();
        wanted.keys.insert(key);
        if wanted.keys.len() > MOST {
            *wanted = Wanted { all: true, keys: HashSet::new() };
        }
        self.is_set.notify_one();
    }

    pub(crate) fn take(&self) -> Wanted {
        take(&mut self.lock())
    }

    pub(crate) fn wants_all(&self) -> bool {
        self.lock().all
    }

    pub(crate) async fn is_set(&self) {
        self.is_set.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().expect("no panic while what is due is locked")
    }
}
