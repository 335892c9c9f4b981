//! The nodes of an upgrade, and the program that each of them runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use ringfence_laws::history::Fault;

use crate::clock::Clock;
use crate::field::Field;
use crate::nemesis::UPGRADE;

/// Bounds the time until a node has caught up with the others.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);

/// Part of a fault after which nodes refused a command of newer rules.
pub(super) const REFUSED: &str = "refused a command of newer rules";

/// Which program a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Age {
    Old,
    New,
    /// A bad build of the new one, which decides by newer rules too early.
    Early,
}

pub(super) struct Scene<'a> {
    pub(super) field: &'a Field,
    pub(super) rng: Rng,
    clock: Clock,
    programs: [&'a Path; 3],
    ages: BTreeMap<u64, Age>,
    faults: Vec<Fault>,
}

impl<'a> Scene<'a> {
    /// All nodes run the first of the programs, which are those of each [`Age`].
    pub(super) fn new(field: &'a Field, clock: Clock, programs: [&'a Path; 3], seed: u64) -> Self {
        let ages = (1..=field.nodes()).map(|id| (id, Age::Old)).collect();
        Self { field, rng: Rng::with_seed(seed), clock, programs, ages, faults: Vec::new() }
    }

    pub(super) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }

    /// Whether there are two programs.
    pub(super) fn has_two_programs(&self) -> bool {
        self.programs[0] != self.programs[1]
    }

    /// Whether some nodes run the old program, and some the new one.
    pub(super) fn is_mixed(&self) -> bool {
        [Age::Old, Age::New].iter().all(|age| self.ages.values().any(|it| it == age))
    }

    pub(super) fn program(&self, age: Age) -> &'a Path {
        self.programs[age as usize]
    }

    pub(super) fn age(&self, id: u64) -> Age {
        self.ages[&id]
    }

    /// The nodes, in an order that is drawn.
    pub(super) fn shuffled(&mut self) -> Vec<u64> {
        let mut nodes: Vec<u64> = (1..=self.field.nodes()).collect();
        self.rng.shuffle(&mut nodes);
        nodes
    }

    /// Stops a node, by SIGTERM or SIGKILL as drawn, and starts it as the other program, before the rules are raised.
    pub(super) async fn turn(&mut self, id: u64, age: Age) -> anyhow::Result<()> {
        let kills = self.rng.bool();
        let how = if kills { "killed" } else { "stopped" };
        let mut begun = self.begun(id, format!("node {id} {how} as {}, and started as {age}", self.age(id)));
        match kills {
            true => self.field.kill(id)?,
            false => self.field.terminate(id).await?,
        }
        self.start(id, age).await?;
        let refused = self.propose_too_early().await?;
        if !refused.is_empty() {
            begun.what += &format!("; then nodes {refused:?} {REFUSED}");
        }
        self.over(begun);
        Ok(())
    }

    /// Starts a node that has no process as this program, and waits until it has caught up.
    pub(super) async fn start(&mut self, id: u64, age: Age) -> anyhow::Result<()> {
        self.field.cluster().node(id).use_program(self.program(age));
        self.ages.insert(id, age);
        self.field.start(id)?;
        self.caught_up().await.with_context(|| format!("after node {id} was started as {age}"))
    }

    /// Waits until all nodes are ready, and have applied what any has applied by now.
    pub(super) async fn caught_up(&self) -> anyhow::Result<()> {
        self.field.cluster().ready().await?;
        Ok(self.field.cluster().caught_up(CAUGHT_UP_WITHIN).await?)
    }

    /// A fault of a node that begins now.
    pub(super) fn begun(&self, id: u64, what: String) -> Fault {
        let now_us = self.clock.now_us();
        Fault { nemesis: UPGRADE.to_owned(), what, nodes: vec![id], from_us: now_us, to_us: now_us }
    }

    /// It is over now.
    pub(super) fn over(&mut self, fault: Fault) {
        self.faults.push(Fault { to_us: self.clock.now_us(), ..fault });
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Old => "old",
            Self::New => "new",
            Self::Early => "a bad build",
        })
    }
}
