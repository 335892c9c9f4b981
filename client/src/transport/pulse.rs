//! Whether a server still answers, while requests wait for it.
//!
//! A host that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a
//! request that waits, be it for 30 s in the cluster's queue, has the server asked for a sign of life on another connection:
//!
//! ```text
//!  sent ── 300 ms without a response ──▶ probe ── answered ──▶ 1 s ──▶ probe ── …
//!                                          └─ not within 700 ms ──▶ the request is broken, and repeated elsewhere
//! ```
//! Any response counts as a sign of life. All requests that wait for a server share its probes. No task sends them: the first
//! request to notice that a probe is due does. If nobody polls that one, the others find the server silent, which is harmless: a
//! repeat keeps the place in the queue.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long a request waits before the server is asked. Most responses take less.
const PROBE_AFTER: Duration = Duration::from_millis(300);
/// How long after a sign of life it is asked for another.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a sign of life may take.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_millis(700);

/// When a server was heard last.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    heard: Mutex<Option<Instant>>,
    /// Held by the request that probes.
    probing: tokio::sync::Mutex<()>,
}

/// Whether the server answers a probe.
pub(super) type Probe<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

impl Pulse {
    /// The server has just responded.
    pub(super) fn beat(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Completes once the server is silent. `probe` takes at most [`ANSWERS_WITHIN`].
    pub(super) async fn stops<'a>(&self, probe: impl Fn() -> Probe<'a>) {
        let begun = Instant::now();
        loop {
            let heard = self.heard();
            let since_then = heard.filter(|heard| *heard > begun).map(|heard| heard + PROBE_INTERVAL);
            sleep_until(since_then.unwrap_or(begun + PROBE_AFTER)).await;
            if self.heard() != heard {
                continue;
            }
            match self.probing.try_lock() {
                Ok(_one) if probe().await => self.beat(),
                Ok(_one) => return,
                Err(_) => {
                    sleep_until(Instant::now() + ANSWERS_WITHIN).await;
                    if self.heard() == heard {
                        return;
                    }
                }
            }
        }
    }

    fn heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_is_silent_once_it_does_not_answer_a_probe() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        let in_time =
            || Box::pin(async { timeout(ANSWERS_WITHIN, pending()).await.unwrap_or(false) }) as Probe<'_>;
        pulse.stops(in_time).await;
        assert_eq!(begun.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_for_a_server_share_its_probes() {
        const WAIT: Duration = Duration::from_secs(60);
        let (pulse, probes) = (Pulse::default(), AtomicUsize::new(0));
        let answers = || {
            probes.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                sleep(ANSWERS_WITHIN / 2).await;
                true
            }) as Probe<'_>
        };
        let waits = async |after: u64| {
            sleep(Duration::from_millis(after)).await;
            timeout(WAIT, pulse.stops(answers)).await.unwrap_err();
        };
        tokio::join!(waits(0), waits(10), waits(777));
        assert!(probes.load(Ordering::SeqCst) <= 62, "{probes:?} in 61 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_responds_is_not_probed() {
        let pulse = Pulse::default();
        let responds = async {
            loop {
                sleep(PROBE_AFTER / 2).await;
                pulse.beat();
            }
        };
        tokio::select! {
            () = pulse.stops(|| Box::pin(ready(false))) => panic!("it was probed"),
            () = responds => unreachable!("it has no end"),
            () = sleep(Duration::from_secs(60)) => {}
        }
    }

    /// Its future may never be polled again.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_nobody_drives_holds_up_no_other_request() {
        let pulse = Pulse::default();
        let _probing = pulse.probing.lock().await;
        timeout(Duration::from_secs(2), pulse.stops(|| Box::pin(ready(true)))).await.unwrap();
    }
}
