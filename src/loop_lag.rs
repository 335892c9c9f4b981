//! The lag of the event loop, that is how long what is due waits for the runtime: everything of a node runs on one thread,
//! so one long step delays all.

use std::time::{Duration, Instant};

use metrics::{gauge, histogram};

/// How often a timer is set.
const EVERY: Duration = Duration::from_millis(10);
/// The longest lag is that of this time or of the one before.
const WINDOW: Duration = Duration::from_secs(30);

/// Measures until the task is ended.
pub(crate) async fn measure() {
    let lags = histogram!("ringfence_loop_lag_seconds");
    let longest = gauge!("ringfence_loop_lag_longest_seconds");
    let (mut before, mut now, mut begun) = (Duration::ZERO, Duration::ZERO, Instant::now());
    loop {
        let due = Instant::now() + EVERY;
        tokio::time::sleep_until(due.into()).await;
        let lag = due.elapsed();
        if begun.elapsed() >= WINDOW {
            (before, now, begun) = (now, Duration::ZERO, Instant::now());
        }
        now = now.max(lag);
        lags.record(lag);
        longest.set(before.max(now).as_secs_f64());
    }
}
