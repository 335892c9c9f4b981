//! What goes wrong, by name, and how a plan of it is carried out.
//!
//! Every fault is a real one: signals, dropped packets, clocks that lie, disks that are full, fail, take long or lose what
//! was not synced. A step that cannot be carried out is told in [`Carried::failed`], never passed over.
//!
//! Faults of a node's process or disk take the node for themselves ([`Field::hold`]): one that is aimed at the leader may
//! have to wait for another to be over.

mod clocks;
mod disks;
mod links;
mod logs;
mod members;
mod processes;
mod redis;
mod replacements;

use std::fmt;

use anyhow::Context;
use clap::ValueEnum;
use futures_util::future::join_all;
use ringfence_harness::{Clocks, may_inject, may_mount};
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::field::Field;
use crate::history::Fault;
use crate::pauses::Pauses;
use crate::plan::{Aim, Deed, Plan, Step};

pub(crate) use members::{bring_back, take_in};

/// A kind of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Nemesis {
    /// Nodes are killed and started again
    Kill,
    /// Nodes stand still for longer than leases live
    Pause,
    /// All but the leader stand still: what it has taken is answered as unknown, and may be done later
    LoneLeader,
    /// The leader stands still for as long as it takes to elect another, and goes on as if it led
    LeaderPause,
    /// Nodes do not hear others: halves, rings, bridges, one way, one alone, coming and going
    Partition,
    /// A quarter of all packets is lost (as root), or all take long
    SlowLinks,
    /// Connections are opened and stay open, but little or nothing comes through
    HalfOpen,
    /// The time of day jumps by hours, once or all the time
    WallClock,
    /// Both clocks jump forward by up to a minute: more than Ringfence promises to bear, so only on request
    MonotonicClock,
    /// A disk has no room, and has again
    FullDisk,
    /// A sync of the log fails: the node stops and is started again
    FailingFlush,
    /// Every sync takes long
    SlowFlush,
    /// Nodes lose power, and with it all that was not synced
    PowerCut,
    /// A node dies within a flush, of which the disk has got a part
    TornTail,
    /// A bit of a log is flipped: the node must refuse to start, and is taken in anew
    BitFlip,
    /// A node loses all its data, and is taken in anew
    Wipe,
    /// Redis is killed and started again with all its data
    RedisKill,
    /// Redis loses all data
    RedisEmpty,
    /// Redis stands still
    RedisStop,
    /// Redis is killed and started again with what it had some seconds ago
    RedisRollback,
    /// Every second client stands still for longer than leases live
    ClientPause,
    /// The leadership goes elsewhere, as asked
    Transfer,
    /// A node is frozen, removed, replaced elsewhere under its own id, and thawed: its old process votes no more
    Replace,
}

impl Nemesis {
    /// All of them, as they are listed.
    pub const ALL: [Self; 23] = [
        Self::Kill,
        Self::Pause,
        Self::LoneLeader,
        Self::LeaderPause,
        Self::Partition,
        Self::SlowLinks,
        Self::HalfOpen,
        Self::WallClock,
        Self::MonotonicClock,
        Self::FullDisk,
        Self::FailingFlush,
        Self::SlowFlush,
        Self::PowerCut,
        Self::TornTail,
        Self::BitFlip,
        Self::Wipe,
        Self::RedisKill,
        Self::RedisEmpty,
        Self::RedisStop,
        Self::RedisRollback,
        Self::ClientPause,
        Self::Transfer,
        Self::Replace,
    ];

    /// Whether it can be had here: if not, why not.
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

    /// Whether all of these go together: if not, why not.
    pub fn suit_each_other(nemeses: &[Self]) -> Result<(), String> {
        let has = |nemesis| nemeses.contains(&nemesis);
        if has(Self::WallClock) && has(Self::MonotonicClock) {
            return Err(
                "wall-clock and monotonic-clock exclude each other: the first is to show that only the \
                        monotonic clock counts, and the second moves both"
                    .to_owned(),
            );
        }
        if has(Self::Replace) && (has(Self::PowerCut) || has(Self::FullDisk)) {
            return Err(
                "replace goes with neither power-cut nor full-disk: a node that moves leaves its disk behind"
                    .to_owned(),
            );
        }
        if has(Self::Replace) && has(Self::Partition) {
            return Err(
                "replace and partition exclude each other: each would heal what the other has cut".to_owned()
            );
        }
        Ok(())
    }

    /// Whether what nodes have acknowledged is gone from them afterwards.
    pub fn takes_data(self) -> bool {
        matches!(self, Self::BitFlip | Self::Wipe | Self::Replace)
    }

    /// Whether the process or the disk of a node is hit, which two at a time cannot do.
    pub fn hits_processes(self) -> bool {
        use Nemesis::{
            BitFlip, FailingFlush, FullDisk, Kill, LeaderPause, LoneLeader, Pause, PowerCut, Replace,
            SlowFlush, TornTail, Wipe,
        };
        matches!(
            self,
            Kill | Pause
                | LoneLeader
                | LeaderPause
                | FullDisk
                | FailingFlush
                | SlowFlush
                | PowerCut
                | TornTail
                | BitFlip
                | Wipe
                | Replace
        )
    }

    /// Whether it is about Redis.
    pub fn hits_redis(self) -> bool {
        matches!(self, Self::RedisKill | Self::RedisEmpty | Self::RedisStop | Self::RedisRollback)
    }

    /// Whether it is about the clocks of nodes.
    pub fn hits_clocks(self) -> bool {
        matches!(self, Self::WallClock | Self::MonotonicClock)
    }
}

impl fmt::Display for Nemesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no nemesis is hidden").get_name())
    }
}

/// What became of a plan.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// In the order of their beginnings.
    pub faults: Vec<Fault>,
    /// What could not be done, and why. Not empty: the run did not show what it was to show.
    pub failed: Vec<String>,
}

/// Carries out `plan`, from now on. Once it is done, every fault is over that can be; [`Field::heal`] sees to the rest.
pub async fn carry_out(plan: &Plan, field: &Field, clock: Clock, pauses: &Pauses) -> Carried {
    let began = Instant::now();
    let scene = Scene { field, clock, pauses };
    let steps = plan.steps().iter().map(|step| async move {
        sleep_until(began + step.at).await;
        scene.carry_out(step).await.with_context(|| format!("{step}"))
    });
    let mut carried = Carried::default();
    for done in join_all(steps).await {
        match done {
            Ok(faults) => carried.faults.extend(faults),
            Err(error) => carried.failed.push(format!("{error:#}")),
        }
    }
    carried.faults.sort_by_key(|fault| fault.from_us);
    carried
}

/// Where steps are carried out.
#[derive(Clone, Copy)]
struct Scene<'a> {
    field: &'a Field,
    clock: Clock,
    pauses: &'a Pauses,
}

impl Scene<'_> {
    async fn carry_out(self, step: &Step) -> anyhow::Result<Vec<Fault>> {
        let lasts = step.lasts;
        let mut nodes = self.nodes(&step.aim).await;
        match (&step.aim, step.deed) {
            (Aim::Leader(_), Deed::PauseFollowers) => drop(nodes.remove(0)),
            (Aim::Leader(_), Deed::Partition(_)) => {}
            (Aim::Leader(_), _) => nodes.truncate(1),
            _ => {}
        }
        match step.deed {
            Deed::Kill => self.kill(&nodes, lasts).await,
            Deed::Pause => self.pause(Nemesis::Pause, &nodes, lasts).await,
            Deed::PauseLeader => self.pause(Nemesis::LeaderPause, &nodes, lasts).await,
            Deed::PauseFollowers => self.pause(Nemesis::LoneLeader, &nodes, lasts).await,
            Deed::Partition(shape) => self.partition(shape, &nodes, lasts).await,
            Deed::SlowLinks => self.slow_links(&nodes, lasts).await,
            Deed::HalfOpen => self.half_open(&nodes, lasts).await,
            Deed::JumpWallClock { by_s } => self.jump_wall_clock(&nodes, by_s, lasts).await,
            Deed::StrobeWallClock { by_s } => self.strobe_wall_clock(&nodes, by_s, lasts).await,
            Deed::JumpMonotonicClock { by_s } => self.jump_monotonic_clock(&nodes, by_s),
            Deed::FillDisk => self.fill_disk(&nodes, lasts).await,
            Deed::FailFlush => self.fail_flush(&nodes, lasts).await,
            Deed::SlowFlush { by_ms } => self.slow_flush(&nodes, by_ms, lasts).await,
            Deed::CutPower => self.cut_power(&nodes, lasts).await,
            Deed::TearTail { draw } => self.tear_tail(&nodes, draw, lasts).await,
            Deed::FlipBit { draw } => self.flip_bit(&nodes, draw).await,
            Deed::Wipe => self.wipe(&nodes, lasts).await,
            Deed::KillRedis => self.kill_redis(lasts).await,
            Deed::EmptyRedis => self.empty_redis().await,
            Deed::StopRedis => self.stop_redis(lasts).await,
            Deed::RollBackRedis => self.roll_back_redis(lasts).await,
            Deed::PauseClients => self.pause_clients(lasts).await,
            Deed::Transfer => self.transfer(&nodes).await,
            Deed::Replace => self.replace(&nodes, lasts).await,
        }
    }

    /// Who is hit; the leader stands before the others.
    async fn nodes(self, aim: &Aim) -> Vec<u64> {
        match aim {
            Aim::Nodes(nodes) => nodes.clone(),
            Aim::Elsewhere => Vec::new(),
            Aim::Leader(order) => {
                let leader = self.field.leader().await.or(order.first().copied());
                let rest = order.iter().copied().filter(|id| Some(*id) != leader);
                leader.into_iter().chain(rest).collect()
            }
        }
    }

    /// A fault that begins now.
    fn begun(self, nemesis: Nemesis, nodes: &[u64], what: impl Into<String>) -> Fault {
        let now_us = self.clock.now_us();
        let (nemesis, what, nodes) = (nemesis.to_string(), what.into(), nodes.to_vec());
        Fault { nemesis, what, nodes, from_us: now_us, to_us: now_us }
    }

    /// The same fault, over now.
    fn over(self, fault: Fault) -> Vec<Fault> {
        vec![Fault { to_us: self.clock.now_us(), ..fault }]
    }
}

/// As in "node 2", "nodes 1 and 3".
fn named(nodes: &[u64]) -> String {
    let ids: Vec<String> = nodes.iter().map(u64::to_string).collect();
    match ids.split_last() {
        None => "no node".to_owned(),
        Some((only, [])) => format!("node {only}"),
        Some((last, others)) => format!("nodes {} and {last}", others.join(", ")),
    }
}
