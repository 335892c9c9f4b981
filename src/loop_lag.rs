//! The lag of the event loop that runs Raft, the table and the peers: how long what is due waits there. They share one
//! thread, so one long step delays all, heartbeats too.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use metrics::{gauge, histogram};

/// How often a timer is set.
const EVERY: Duration = Duration::from_millis(10);
/// The longest lag is that of this time or of the one before.
const WINDOW: Duration = Duration::from_secs(30);

/// When this was measured last.
static MEASURED: Mutex<Option<Instant>> = Mutex::new(None);

/// How long the event loop has measured nothing: where it hangs, for how long.
pub(crate) fn hangs_for() -> Duration {
    let measured = *MEASURED.lock().expect("nothing that panics is done while it is locked");
    measured.map_or(Duration::ZERO, |at| at.elapsed())
}

/// Measures until the task is ended.
pub(crate) async fn measure() {
    let lags = histogram!("ringfence_loop_lag_seconds");
    let longest = gauge!("ringfence_loop_lag_longest_seconds");
    let (mut before, mut now, mut begun) = (Duration::ZERO, Duration::ZERO, Instant::now());
    loop {
        let due = Instant::now() + EVERY;
        tokio::time::sleep_until(due.into()).await;
        let lag = due.elapsed();
        *MEASURED.lock().expect("nothing that panics is done while it is locked") = Some(Instant::now());
        if begun.elapsed() >= WINDOW {
            (before, now, begun) = (now, Duration::ZERO, Instant::now());
        }
        now = now.max(lag);
        lags.record(lag);
        longest.set(before.max(now).as_secs_f64());
    }
}
