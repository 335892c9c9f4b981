use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_wire::Key;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::table::Table;
use crate::world::{Redis, name};

/// Reads fences all the time, as a storage backend would, and records what cannot be true.
pub(crate) struct Sampler {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    fences: HashMap<Key, u64>,
    /// The number of data losses.
    losses: u64,
    samples: u64,
    errors: Vec<String>,
}

impl Sampler {
    pub(crate) fn start(redis: &Redis, table: &Table, keys: &[Key]) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let task = tokio::spawn(sample(redis.clone(), table.clone(), keys.to_vec(), Arc::clone(&seen)));
        Self { seen, task }
    }

    /// Redis is about to lose data: fences may fall. Call it while Redis is down.
    pub(crate) fn data_is_lost(&self) {
        let mut seen = self.seen.lock().unwrap();
        seen.fences.clear();
        seen.losses += 1;
    }

    pub(crate) fn samples(&self) -> u64 {
        self.seen.lock().unwrap().samples
    }

    /// Stops: it must have read something, and recorded no error.
    pub(crate) fn finish(self) {
        self.task.abort();
        let seen = self.seen.lock().unwrap();
        assert!(seen.samples > 0, "nothing was read");
        assert!(seen.errors.is_empty(), "after {} samples: {:#?}", seen.samples, seen.errors);
    }
}

async fn sample(redis: Redis, table: Table, keys: Vec<Key>, seen: Arc<Mutex<Seen>>) {
    loop {
        for key in &keys {
            let losses = seen.lock().unwrap().losses;
            let read = redis.fence(&name(key)).await;
            let mut seen = seen.lock().unwrap();
            // No answer says nothing, not even that the hash is gone.
            let Ok(read) = read else { continue };
            seen.samples += 1;
            let Some(fence) = read else {
                seen.fences.remove(key);
                continue;
            };
            // The table is read after Redis: a token that is live now was live then.
            let now = table.fence(key).0;
            if fence > now {
                seen.errors.push(format!("{key}: {fence} was read, and a token from {now} on may be live"));
            }
            // Reads before and after a loss are not comparable.
            if seen.losses != losses {
                continue;
            }
            let before = seen.fences.insert(key.clone(), fence).unwrap_or(0);
            if fence < before {
                seen.errors.push(format!("{key}: {before} was read, and then {fence}"));
            }
        }
        // Others share this thread.
        sleep(Duration::from_millis(1)).await;
    }
}
