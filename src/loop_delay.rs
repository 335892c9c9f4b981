//! How long what is due waits for the runtime: everything of a node runs on one thread, so one long step delays all.

use std::time::{Duration, Instant};

use metrics::{gauge, histogram};

/// How often a timer is set.
const EVERY: Duration = Duration::from_millis(10);
/// The longest delay is that of this time or of the one before.
const WINDOW: Duration = Duration::from_secs(30);

/// Measures until the task is ended.
pub(crate) async fn measure() {
    let delays = histogram!("ringfence_loop_delay_seconds");
    let longest = gauge!("ringfence_loop_delay_longest_seconds");
    let (mut before, mut now, mut begun) = (Duration::ZERO, Duration::ZERO, Instant::now());
    loop {
        let due = Instant::now() + EVERY;
        tokio::time::sleep_until(due.into()).await;
        let delay = due.elapsed();
        if begun.elapsed() >= WINDOW {
            (before, now, begun) = (now, Duration::ZERO, Instant::now());
        }
        now = now.max(delay);
        delays.record(delay);
        longest.set(before.max(now).as_secs_f64());
    }
}
