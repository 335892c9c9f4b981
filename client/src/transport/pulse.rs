//! Whether a server still answers, while requests wait for it.
//!
//! A host that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a
//! request that waits, be it for 30 s in the cluster's queue, has the server asked for a sign of life on another connection:
//!
//! ```text
//!  sent ── 300 ms without a response ──▶ probe ── answered ──▶ 1 s ──▶ probe ── …
//!                                          └─ not within 1.5 s ──▶ the request is repeated elsewhere
//! ```
//! Only the answer to a probe counts as a sign of life: it says that all threads of the server run, and a response to another request
//! says nothing of the thread that has this one. All requests that wait for a server share its probes, and what comes of them. No task sends
//! them: the first request to notice that a probe is due does. If that one is dropped, the next one does. If nobody polls it, the others
//! find the server silent, which is harmless: a repeat keeps the place in the queue.
//!
//! A busy server may be late for a moment, with thousands of waiters. If all of them asked elsewhere at once, that would make it later
//! still. So those who can wait pause for a random time, and look once more.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::backoff::random;

/// How long a request waits before the server is asked. Most responses take less.
const PROBE_AFTER: Duration = Duration::from_millis(300);
/// How long after a sign of life it is asked for another.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a sign of life may take. A slow server is not silent.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_millis(1_500);
/// A server of which a thread has not run for so long is silent: that thread may have the request that waits.
pub(super) const THREADS_RUN_WITHIN_MS: u64 = 1_000;
/// The longest pause before a look at a server that was silent, how long that look may take, and how long it counts for others.
const LOOK_AFTER: Duration = Duration::from_millis(500);
const LOOK_WITHIN: Duration = Duration::from_millis(300);
const LOOK_COUNTS: Duration = Duration::from_millis(100);

/// When a server last answered a probe.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    heard: Mutex<Option<Instant>>,
    /// When a probe failed last: all requests that were sent before are concerned.
    failed: watch::Sender<Option<Instant>>,
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
        let mut failed = self.failed.subscribe();
        tokio::select! {
            biased;
            _ = failed.changed() => {}
            () = self.is_found_silent(probe) => {}
        }
    }

    async fn is_found_silent<'a>(&self, probe: impl Fn() -> Probe<'a>) {
        let begun = Instant::now();
        loop {
            let heard = self.heard();
            let since_then = heard.filter(|heard| *heard > begun).map(|heard| heard + PROBE_INTERVAL);
            sleep_until(since_then.unwrap_or(begun + PROBE_AFTER)).await;
            if self.heard() != heard {
                continue;
            }
            let Ok(_one) = timeout(ANSWERS_WITHIN, self.probing.lock()).await else { return };
            if self.heard() == heard && !timeout(ANSWERS_WITHIN, probe()).await.unwrap_or(false) {
                self.failed.send_replace(Some(Instant::now()));
                return;
            }
        }
    }

    /// Whether a server that fell silent at `since` still is, after a pause in which many others decide the same.
    pub(super) async fn stays_silent<'a>(&self, since: Instant, probe: impl Fn() -> Probe<'a>) -> bool {
        sleep(LOOK_AFTER.mul_f64(random())).await;
        let until = Instant::now() + LOOK_WITHIN;
        let answers = async {
            let _one = timeout_at(until, self.probing.lock()).await.ok()?;
            if self.heard().is_some_and(|heard| heard > since) {
                return Some(true);
            }
            let looked = self.failed.borrow().filter(|failed| *failed > since);
            if looked.is_some_and(|looked| looked.elapsed() < LOOK_COUNTS) {
                return Some(false);
            }
            // Its end, too, tells those who wait for their turn.
            let answers = timeout_at(until, probe()).await.unwrap_or(false);
            if !answers {
                self.failed.send_replace(Some(Instant::now()));
            }
            Some(answers)
        };
        answers.await != Some(true)
    }

    fn heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    /// Each once waited for a probe of its own.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_fails_counts_for_all_requests_in_flight() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        let waits = async |after: u64| {
            sleep(Duration::from_millis(after)).await;
            pulse.stops(|| Box::pin(pending())).await;
            begun.elapsed().as_millis() / 100
        };
        assert_eq!(tokio::join!(waits(0), waits(900), waits(1_700)), (18, 18, 18));
    }

    /// A leader that was late for a moment once sent all of its waiters away at once.
    #[tokio::test(start_paused = true)]
    async fn who_can_wait_looks_once_more_and_few_of_many_probe() {
        let (pulse, probes, runs) = (Pulse::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let probe = || {
            probes.fetch_add(1, Ordering::SeqCst);
            let answers = runs.load(Ordering::SeqCst) == 1;
            if answers {
                pulse.beat();
            }
            Box::pin(ready(answers)) as Probe<'_>
        };
        for answers in [true, false] {
            probes.store(0, Ordering::SeqCst);
            runs.store(answers.into(), Ordering::SeqCst);
            sleep(PROBE_INTERVAL).await;
            let since = Instant::now();
            sleep(Duration::from_millis(1)).await;
            let looks = (0..1_000).map(|_| pulse.stays_silent(since, probe));
            let stay = futures_util::future::join_all(looks).await;
            assert!(stay.iter().all(|silent| *silent != answers));
            let most = if answers { 1 } else { 1 + LOOK_AFTER.div_duration_f64(LOOK_COUNTS) as usize };
            assert!((1..=most).contains(&probes.load(Ordering::SeqCst)), "{probes:?} instead of {most}");
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
