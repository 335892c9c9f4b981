//! The wall clock, read as a revision. Revisions, and so tokens, are raised to it, and it decides nothing else.
//!
//! A new cluster starts at it, so a guard that remembers tokens of an earlier cluster rejects them. Each new leader raises the
//! revision to it. So a leader that lacks grants which were acknowledged, because a disk lost them or was turned back, does not
//! grant their tokens once more: the clock is above all of them. If a clock is behind, nothing is raised. If it is far ahead,
//! tokens are larger than they had to be, and nothing is raised until the other clocks have passed it.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_wire::Revision;

/// How far the wall clock advances, as a revision, in a millisecond: further than a cluster can make changes, so one that was
/// founded at the clock's time stays behind it. Its first revision is a multiple of this; one that was founded ahead of the clock
/// has an odd one.
pub(crate) const PER_MS: u64 = 1_024;

/// The clock has been above this since January 1970. A cluster whose revisions start below was told to: its tokens stay small, for
/// tests and demonstrations.
pub(crate) const LOWEST: Revision = Revision(1 << 40);

/// Where a node reads the wall clock. Clones share it.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl WallClock {
    /// The operating system's.
    pub fn system() -> Self {
        Self(Arc::new(unix_ms))
    }

    /// One that a simulation turns: unix time in milliseconds.
    pub fn simulated(unix_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(unix_ms))
    }

    /// Unix milliseconds × [`PER_MS`].
    pub(crate) fn revision(&self) -> Revision {
        Revision((self.0)().saturating_mul(PER_MS))
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

#[expect(clippy::disallowed_methods, reason = "revisions are raised to the wall clock")]
fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}
