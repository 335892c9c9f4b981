//! The kinds of faults: what each hits, for how long, and what it needs.

use std::fmt;

use clap::ValueEnum;
use ringfence_harness::{Clocks, may_inject, may_mount};

/// The name of what an upgrade does to nodes, in histories and reports.
pub(crate) const UPGRADE: &str = "upgrade";
/// The name of all that it does, if a node runs a bad build.
pub(crate) const BAD_BUILD: &str = "bad-build";

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Nemesis {
    /// Nodes are killed and restarted
    Kill,
    /// Nodes are paused for longer than a lease lasts
    Pause,
    /// All nodes but the leader are paused: it cannot commit what it accepts, which may still be done later
    LoneLeader,
    /// The leader is paused until another is elected, and resumes as if it still led
    LeaderPause,
    /// The network is partitioned: halves, rings, bridges, one direction, one node, or flapping
    Partition,
    /// A quarter of all packets is lost (needs root), or all are late
    SlowLinks,
    /// Connections stay open, but carry little or no data
    HalfOpen,
    /// The wall clock jumps by hours, once or repeatedly
    WallClock,
    /// Both clocks jump forward by up to a minute. Ringfence does not guarantee its time bounds then, so only on request
    MonotonicClock,
    /// A disk is full for a while
    FullDisk,
    /// A sync of the log fails: the node stops, and is restarted
    FailingFlush,
    /// Every sync is slow
    SlowFlush,
    /// Nodes lose power, and all data that was not synced
    PowerCut,
    /// A node crashes during a flush, of which only a part reached the disk
    TornTail,
    /// A bit of a log is flipped: the node must refuse to start, and is added again without data
    BitFlip,
    /// A node loses all its data, and is added again
    Wipe,
    /// Redis is killed and restarted with all its data
    RedisKill,
    /// Redis loses all data
    RedisEmpty,
    /// Redis is paused
    RedisStop,
    /// Redis is killed and started again with its state of some seconds ago
    RedisRollback,
    /// Every second client is paused for longer than a lease lasts
    ClientPause,
    /// The leadership is transferred on request
    Transfer,
    /// A node is frozen, removed, replaced elsewhere under its id, and resumed: its old process must not vote
    Replace,
}

impl Nemesis {
    /// All nemeses.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether this machine has what it needs; otherwise, what is missing.
    pub fn suits(self, redis: bool) -> Result<(), String> {
        let needs = |it: bool, what: &str| if it { Ok(()) } else { Err(format!("{self} needs {what}")) };
        match self {
            Self::FullDisk | Self::PowerCut => needs(may_mount(), "to mount file systems, as root"),
            Self::FailingFlush | Self::SlowFlush | Self::TornTail => {
                needs(may_inject(), "strace to inject faults, as root")
            }
            Self::WallClock | Self::MonotonicClock => {
                needs(Clocks::library().is_some(), "libfaketime, of the package faketime")
            }
            nemesis if nemesis.hits_redis() => needs(redis, "a Redis beside the cluster"),
            _ => Ok(()),
        }
    }

    /// Whether these can be combined; otherwise, why not.
    pub fn suit_each_other(nemeses: &[Self]) -> Result<(), String> {
        use Nemesis::{FullDisk, MonotonicClock, Partition, PowerCut, Replace, WallClock};
        let refused = [
            (
                WallClock,
                MonotonicClock,
                "the first shows that only the monotonic clock counts, the second changes both",
            ),
            (Replace, PowerCut, "a node that moves leaves its disk behind"),
            (Replace, FullDisk, "a node that moves leaves its disk behind"),
            (Replace, Partition, "each would heal the links that the other has cut"),
        ];
        let together =
            refused.iter().find(|(one, other, _)| nemeses.contains(one) && nemeses.contains(other));
        together
            .map_or(Ok(()), |(one, other, why)| Err(format!("{one} and {other} exclude each other: {why}")))
    }

    /// What it hits, and its minimum and maximum duration in milliseconds.
    fn traits(self) -> (Hits, (u64, u64)) {
        use Hits::{Clocks, Data, Elsewhere, Process, Redis};
        match self {
            Self::Kill => (Process, (100, 4_000)),
            // Pauses outlast the leases of the workloads.
            Self::Pause => (Process, (3_500, 7_000)),
            Self::ClientPause => (Elsewhere, (3_500, 7_000)),
            // An election takes up to 2 s.
            Self::LeaderPause => (Process, (1_500, 3_000)),
            // Longer than the 5 s that a node waits for an outcome.
            Self::LoneLeader => (Process, (5_300, 7_000)),
            Self::Partition | Self::SlowLinks | Self::HalfOpen => (Elsewhere, (2_000, 8_000)),
            Self::WallClock => (Clocks, (2_000, 6_000)),
            Self::MonotonicClock => (Clocks, (0, 0)),
            Self::FullDisk | Self::FailingFlush | Self::SlowFlush => (Process, (3_000, 8_000)),
            Self::PowerCut => (Process, (0, 2_000)),
            Self::TornTail => (Process, (100, 2_000)),
            Self::BitFlip => (Data, (100, 2_000)),
            Self::Wipe => (Data, (0, 2_000)),
            // A node without a leader requests votes within a second, repeatedly.
            Self::Replace => (Data, (2_500, 4_000)),
            Self::RedisKill => (Redis, (100, 4_000)),
            Self::RedisEmpty => (Redis, (0, 0)),
            Self::RedisStop | Self::RedisRollback => (Redis, (1_500, 5_000)),
            Self::Transfer => (Elsewhere, (0, 0)),
        }
    }

    pub(crate) fn lasts_ms(self) -> (u64, u64) {
        self.traits().1
    }

    /// Whether nodes lose acknowledged data.
    pub fn takes_data(self) -> bool {
        self.traits().0 == Hits::Data
    }

    /// Whether it hits the process or disk of a node, which allows one fault at a time.
    pub fn hits_processes(self) -> bool {
        matches!(self.traits().0, Hits::Process | Hits::Data)
    }

    /// Whether it hits Redis.
    pub fn hits_redis(self) -> bool {
        self.traits().0 == Hits::Redis
    }

    /// Whether it hits the clocks of nodes.
    pub fn hits_clocks(self) -> bool {
        self.traits().0 == Hits::Clocks
    }
}

/// What a nemesis hits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hits {
    /// The process or the disk of a node.
    Process,
    /// The same, and acknowledged data is lost.
    Data,
    Redis,
    Clocks,
    Elsewhere,
}

impl fmt::Display for Nemesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no nemesis is hidden").get_name())
    }
}

#[cfg(test)]
mod tests {
    use ringfence_laws::check::loop_lag::HARMLESS;

    use super::*;

    #[test]
    fn the_harmless_are_called_as_on_the_command_line() {
        for name in HARMLESS {
            Nemesis::from_str(name, false).unwrap();
        }
    }
}
