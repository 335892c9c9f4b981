//! Injects the faults of a plan.
//!
//! Every fault is real: signals, dropped packets, wrong clocks, disks that are full, fail, are slow or lose unsynced data. A
//! step that fails is listed in [`Carried::failed`], never skipped silently.
//!
//! A fault of a node's process or disk holds the node exclusively ([`Field::hold`]): a fault that is aimed at the leader may
//! have to wait for another one.

mod clocks;
mod disks;
mod links;
mod logs;
mod members;
mod processes;
mod redis;
mod replacements;

use anyhow::{Context, bail};
use futures_util::future::join_all;
use ringfence_laws::history::Fault;
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::field::Field;
use crate::nemesis::Nemesis;
use crate::pauses::Pauses;
use crate::plan::{Aim, Deed, Plan, Step};

/// The result of a plan.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// The faults, ordered by start.
    pub faults: Vec<Fault>,
    /// The steps that failed, and why. If there are any, the run proves nothing.
    pub failed: Vec<String>,
}

/// Carries out `plan`, starting now. At its end all faults are over, except those that only [`Field::heal`] ends.
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

/// What steps need.
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
            (Aim::Leader(_), Deed::Plain(Nemesis::LoneLeader)) => drop(nodes.remove(0)),
            (Aim::Leader(_), Deed::Partition(_)) => {}
            (Aim::Leader(_), _) => nodes.truncate(1),
            _ => {}
        }
        let nemesis = step.deed.nemesis();
        match step.deed {
            Deed::Partition(shape) => self.partition(shape, &nodes, lasts).await,
            Deed::JumpWallClock { by_s } => self.jump_wall_clock(&nodes, by_s, lasts).await,
            Deed::StrobeWallClock { by_s } => self.strobe_wall_clock(&nodes, by_s, lasts).await,
            Deed::JumpMonotonicClock { by_s } => self.jump_monotonic_clock(&nodes, by_s),
            Deed::SlowFlush { by_ms } => self.slow_flush(&nodes, by_ms, lasts).await,
            Deed::TearTail { draw } => self.tear_tail(&nodes, draw, lasts).await,
            Deed::FlipBit { draw } => self.flip_bit(&nodes, draw).await,
            Deed::Plain(_) => match nemesis {
                Nemesis::Kill => self.kill(&nodes, lasts).await,
                Nemesis::Pause | Nemesis::LeaderPause | Nemesis::LoneLeader => {
                    self.pause(nemesis, &nodes, lasts).await
                }
                Nemesis::SlowLinks => self.slow_links(&nodes, lasts).await,
                Nemesis::HalfOpen => self.half_open(&nodes, lasts).await,
                Nemesis::FullDisk => self.fill_disk(&nodes, lasts).await,
                Nemesis::FailingFlush => self.fail_flush(&nodes, lasts).await,
                Nemesis::PowerCut => self.cut_power(&nodes, lasts).await,
                Nemesis::Wipe => self.wipe(&nodes, lasts).await,
                Nemesis::RedisKill => self.kill_redis(lasts).await,
                Nemesis::RedisEmpty => self.empty_redis().await,
                Nemesis::RedisStop => self.stop_redis(lasts).await,
                Nemesis::RedisRollback => self.roll_back_redis(lasts).await,
                Nemesis::ClientPause => self.pause_clients(lasts).await,
                Nemesis::Transfer => self.transfer(&nodes).await,
                Nemesis::Replace => self.replace(&nodes, lasts).await,
                _ => bail!("{nemesis} needs parameters"),
            },
        }
    }

    /// The targets; the leader first.
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

    /// A fault that starts now.
    fn begun(self, nemesis: Nemesis, nodes: &[u64], what: impl Into<String>) -> Fault {
        let now_us = self.clock.now_us();
        let (nemesis, what, nodes) = (nemesis.to_string(), what.into(), nodes.to_vec());
        Fault { nemesis, what, nodes, from_us: now_us, to_us: now_us }
    }

    /// The same fault, ended now.
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
