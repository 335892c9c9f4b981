//! Whether the machine keeps up. A client that is kept waiting for seconds gives up, or loses its lease, and is right to do so: what
//! a scenario saw meanwhile says nothing of the library.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_harness::{Answered, Client};
use ringfence_wire::Mode;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::rival::{LONG_MS, take};

/// What takes no time is done again after this.
const PAUSE: Duration = Duration::from_millis(100);
/// From this on it was slow. The shortest wait that clients count on is longer: 1.5 s for a sign of life.
const SLOW: Duration = Duration::from_millis(500);

/// After this without anything slow, the machine keeps up again.
const CALM: Duration = Duration::from_millis(500);
/// A machine that never does is no reason to wait for ever.
const CALM_WITHIN: Duration = Duration::from_secs(60);

/// Has the runner sleep, and a node grant a lease, again and again. It ends when this is dropped.
pub struct Pulse {
    beats: Arc<[Mutex<Beat>; 2]>,
    beating: [JoinHandle<()>; 2],
}

/// The newest time at which somebody was slow.
#[derive(Clone, Debug)]
pub struct Slow {
    who: &'static str,
    until: Instant,
    took: Duration,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stood still for {} ms", self.who, self.took.as_millis())
    }
}

struct Beat {
    who: &'static str,
    /// Since when it is at what takes no time.
    begun: Instant,
    slow: Option<Slow>,
}

impl Pulse {
    /// Watches this machine, and the node of this client.
    pub fn start(node: Client) -> Self {
        let beat = |who| Mutex::new(Beat { who, begun: Instant::now(), slow: None });
        let beats = Arc::new([beat("the runner"), beat("the node")]);
        let (runner, nodes) = (Arc::clone(&beats), Arc::clone(&beats));
        let runner = tokio::spawn(async move {
            loop {
                locked(&runner[0]).begin(PAUSE);
                sleep(PAUSE).await;
                locked(&runner[0]).end();
            }
        });
        let node = tokio::spawn(async move {
            loop {
                locked(&nodes[1]).begin(Duration::ZERO);
                granted(&node).await;
                locked(&nodes[1]).end();
                locked(&nodes[1]).begin(PAUSE);
                sleep(PAUSE).await;
            }
        });
        Self { beats, beating: [runner, node] }
    }

    /// Waits until the machine keeps up, or a minute.
    pub async fn calm(&self) {
        let begun = Instant::now();
        while begun.elapsed() < CALM_WITHIN {
            let since = Instant::now();
            sleep(CALM).await;
            if self.slow_since(since).is_none() {
                return;
            }
        }
    }

    /// What was slow since then.
    pub fn slow_since(&self, then: Instant) -> Option<Slow> {
        self.beats.iter().find_map(|beat| {
            let mut beat = locked(beat);
            // It may be so still.
            beat.end();
            beat.slow.clone().filter(|slow| slow.until > then)
        })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beating.iter().for_each(JoinHandle::abort);
    }
}

impl Beat {
    /// Something begins that takes no time beyond this.
    fn begin(&mut self, beyond: Duration) {
        self.begun = Instant::now() + beyond;
    }

    fn end(&mut self) {
        let until = Instant::now();
        let took = until.saturating_duration_since(self.begun);
        if took > SLOW {
            self.slow = Some(Slow { who: self.who, until, took });
        }
    }
}

/// A lease is granted and released, with all that the node writes to its disk for that.
async fn granted(node: &Client) {
    // A node that refuses it is not slow.
    if let Ok(lease) = take(node, "conformance-pulse", Mode::Exclusive, LONG_MS, 0).await {
        let _ = node.patient().release(lease.id).await.success();
    }
}

fn locked(beat: &Mutex<Beat>) -> MutexGuard<'_, Beat> {
    beat.lock().expect("no code panics while it holds this lock")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "these are tests")]

    use super::*;

    #[test]
    fn a_beat_is_slow_once_it_takes_longer_than_it_may() {
        let mut beat = Beat { who: "the node", begun: Instant::now(), slow: None };
        beat.begin(Duration::from_secs(600));
        beat.end();
        assert!(beat.slow.is_none());
        beat.begun = Instant::now().checked_sub(SLOW + Duration::from_millis(1)).unwrap();
        beat.end();
        assert!(beat.slow.unwrap().to_string().starts_with("the node stood still for "));
    }
}
