//! The lag of the event loop that runs Raft, the table and the peers. They share one thread, so a long step of any of
//! them delays all of them, heartbeats included.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use ringfence_aside::Beat;

use crate::measure::{LOOP_LAG_LONGEST_SECONDS, LOOP_LAG_SECONDS};

/// How often the lag is measured while the loop is busy.
const BUSY: Duration = Duration::from_millis(10);
/// While it is calm, the interval is this many times as long, as an idle node is to cost little. A shorter step may pass unmeasured.
const CALM: u32 = 3;
/// After a lag of more than this it is busy, for [`MEASUREMENTS`].
const LAGS: Duration = Duration::from_millis(5);
const MEASUREMENTS: u32 = 500;
/// The longest lag is that of the current window and the one before.
const WINDOW: Duration = Duration::from_secs(30);

/// Beats with each measurement. It has no lock: the thread that has it could hang, and those who look with it.
static BEAT: LazyLock<Beat> = LazyLock::new(Beat::default);

/// Time since the last measurement: if the event loop hangs, for how long.
pub(crate) fn hangs_for() -> Duration {
    BEAT.age()
}

/// Measures the lag of the loop that runs this. Never returns.
pub(crate) async fn measure() {
    let lags = LOOP_LAG_SECONDS.get();
    let longest = LOOP_LAG_LONGEST_SECONDS.get();
    let (mut previous, mut current, mut began) = (Duration::ZERO, Duration::ZERO, Instant::now());
    let mut busy = 0_u32;
    loop {
        let times = if busy > 0 { 1 } else { CALM };
        let due = Instant::now() + BUSY * times;
        tokio::time::sleep_until(due.into()).await;
        let lag = due.elapsed();
        BEAT.beat();
        busy = if lag > LAGS { MEASUREMENTS } else { busy.saturating_sub(1) };
        if began.elapsed() >= WINDOW {
            (previous, current, began) = (current, Duration::ZERO, Instant::now());
        }
        current = current.max(lag);
        // As often as a busy loop would have measured it: the quantiles weigh time, not measurements.
        lags.record_many(lag, times as usize);
        longest.set(previous.max(current).as_secs_f64());
    }
}
