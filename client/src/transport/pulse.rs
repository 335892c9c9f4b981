//! Whether a server still answers, while requests wait for it.
//!
//! A host that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a
//! request that waits, be it for 30 s in the cluster's queue, has the server asked for a sign of life on another connection:
//!
//! ```text
//!  sent ── 300 ms without a response ──▶ probe ── answered ──▶ 1 s ──▶ probe ── …
//!                                          └─ not within 1.5 s ──▶ the request is broken, and repeated elsewhere
//! ```
//! Only the answer to a probe counts as a sign of life: it says that all threads of the server run, and a response to another request
//! says nothing of the thread that has this one. All requests that wait for a server share its probes. No task sends them: the first
//! request to notice that a probe is due does. If that one is dropped, the next one does. If nobody polls it, the others find the
//! server silent, which is harmless: a repeat keeps the place in the queue.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

/// How long a request waits before the server is asked. Most responses take less.
const PROBE_AFTER: Duration = Duration::from_millis(300);
/// How long after a sign of life it is asked for another.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a sign of life may take. A slow server is not silent.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_millis(1_500);
/// A server of which a thread has not run for so long is silent: that thread may have the request that waits.
pub(super) const THREADS_RUN_WITHIN_MS: u64 = 1_000;

/// When a server last answered a probe.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    heard: Mutex<Option<Instant>>,
    /// Held by the request that probes.
    probing: tokio::sync::Mutex<()>,
}

/// Whether the server answers a probe.
pub(super) type Probe<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

impl Pulse {
    /// The server has just answered a probe.
    pub(super) fn beat(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Completes once the server is silent. A `probe` that is answered beats.
    pub(super) async fn stops<'a>(&self, probe: impl Fn() -> Probe<'a>) {
        let begun = Instant::now();
        loop {
            let heard = self.heard();
            let since_then = heard.filter(|heard| *heard > begun).map(|heard| heard + PROBE_INTERVAL);
            sleep_until(since_then.unwrap_or(begun + PROBE_AFTER)).await;
            if self.heard() != heard {
                continue;
            }
            let answers = async {
                let _one = self.probing.lock().await;
                self.heard() != heard || probe().await
            };
            if !timeout(ANSWERS_WITHIN, answers).await.unwrap_or(false) {
                return;
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

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_is_silent_once_it_does_not_answer_a_probe() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        pulse.stops(|| Box::pin(pending())).await;
        assert_eq!(begun.elapsed().as_millis() / 100, 18);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_for_a_server_share_its_probes() {
        const WAIT: Duration = Duration::from_secs(60);
        let (pulse, probes) = (Pulse::default(), AtomicUsize::new(0));
        let answers = || {
            probes.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                sleep(ANSWERS_WITHIN / 2).await;
                pulse.beat();
                true
            }) as Probe<'_>
        };
        let waits = async |after: u64| {
            sleep(Duration::from_millis(after)).await;
            timeout(WAIT, pulse.stops(answers)).await.unwrap_err();
        };
        tokio::join!(waits(0), waits(10), waits(777));
        let most = 1 + WAIT.div_duration_f64(PROBE_INTERVAL + ANSWERS_WITHIN / 2) as usize;
        assert!(probes.load(Ordering::SeqCst) <= most, "{probes:?} instead of {most}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_of_another_request_is_not_waited_for_once_it_is_answered() {
        let pulse = Pulse::default();
        let _probing = pulse.probing.lock().await;
        let answers = async {
            loop {
                sleep(PROBE_AFTER / 2).await;
                pulse.beat();
            }
        };
        tokio::select! {
            () = pulse.stops(|| Box::pin(ready(false))) => panic!("it was probed"),
            () = answers => unreachable!("it has no end"),
            () = sleep(Duration::from_secs(60)) => {}
        }
    }

    /// Its caller may have given up. All others once found the server silent.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_dropped_is_repeated_by_another_request() {
        let pulse = Pulse::default();
        let probe = || {
            Box::pin(async {
                sleep(ANSWERS_WITHIN / 2).await;
                pulse.beat();
                true
            }) as Probe<'_>
        };
        let dropped = timeout(PROBE_AFTER + ANSWERS_WITHIN / 4, pulse.stops(probe));
        let waits = timeout(Duration::from_secs(60), pulse.stops(probe));
        let (dropped, waits) = tokio::join!(dropped, waits);
        assert!(dropped.is_err() && waits.is_err(), "it is not silent");
    }

    /// Its future may never be polled again.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_nobody_drives_holds_up_no_other_request() {
        let pulse = Pulse::default();
        let _probing = pulse.probing.lock().await;
        timeout(Duration::from_secs(2), pulse.stops(|| Box::pin(ready(true)))).await.unwrap();
    }
}
