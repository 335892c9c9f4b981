//! How a plan of faults is carried out.
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

use anyhow::{Context, bail};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::field::Field;
use crate::history::Fault;
use crate::nemesis::Nemesis;
use crate::pauses::Pauses;
use crate::plan::{Aim, Deed, Plan, Step};

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
                _ => bail!("{nemesis} needs what is drawn for it"),
            },
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
