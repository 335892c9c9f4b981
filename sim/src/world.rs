//! The world: machines, network, clients and time, all in one thread.
//!
//! Time jumps to the next thing that is due: a message, a flush, a fault, or a process that has not run for a while. The
//! processes that it concerns run up to that time, each on its own runtime, in an order that the seed decides; then what is
//! due happens, and what clients and nodes said to each other is passed on. So nothing depends on threads, on real time, or on
//! the order in which an operating system wakes up tasks.
//!
//! A process handles what it was given one millisecond later. When its own timers are due is not known: so it runs at least
//! every `IDLE` milliseconds (`machine/process.rs`), and what its timers make it send leaves late by less than that.

mod alive;
mod asking;
mod happen;
mod look;
mod operators;
mod tending;
mod turned;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use ringfence_laws::history::{Fault, Sight};
use ringfence_lease::Event;
use ringfence_raft::{Handle, NodeId};

use self::alive::Alive;
pub(crate) use self::alive::{
    CONNECTS_ALL_THE_TIME, ENDS_LATE, LOG_FILLS_MEMORY, NOBODY_LEADS, NOBODY_SERVES, NOTHING_COMMITS,
    TIME_LAGS,
};
use self::asking::Answers;
use self::happen::{Ending, REPLACED};
pub(crate) use self::turned::{BOTH_SERVE, CONDEMNED, FORGETFUL_SERVES};
use self::turned::{SECOND, Turned};
use crate::clients::Desk;
use crate::coverage::Coverage;
use crate::machine::{Machine, Process};
use crate::network::Network;
use crate::plan::Plan;
use crate::story::Story;

/// A simulated cluster with its clients.
pub struct World {
    /// The time, in milliseconds since the run began.
    pub now: u64,
    /// The machines, by node. Those that were replaced come last.
    pub machines: BTreeMap<NodeId, Machine>,
    /// What connects them.
    pub network: Network,
    /// The clients' process.
    pub clients: Process,
    /// Between clients and nodes.
    pub desk: Arc<Desk>,
    /// The ids of the nodes that clients ask.
    pub nodes: Arc<Mutex<Vec<NodeId>>>,
    /// What happens, for people.
    pub story: Story,
    /// What contradicts the laws, for people.
    pub findings: Vec<String>,
    /// The changes of the table, by revision, as the first node applied them.
    pub changes: BTreeMap<u64, Event>,
    /// How nodes saw the cluster.
    pub sights: Vec<Sight>,
    /// The faults that have happened.
    pub faults: Vec<Fault>,
    /// What was exercised.
    pub coverage: Coverage,
    rng: Rng,
    flush: (u64, u64),
    plan: Plan,
    /// Faults that end, by time.
    later: BTreeMap<u64, Vec<Ending>>,
    answers: Answers,
    /// Counts what clients asked nodes.
    requests: u64,
    /// Up to which revision the changes of each process are recorded.
    recorded: BTreeMap<NodeId, (u64, u64)>,
    /// Nodes that somebody tried to remove: they may end.
    removed: BTreeSet<NodeId>,
    /// Nodes whose removal was answered, and so is committed.
    gone: Arc<Mutex<BTreeSet<NodeId>>>,
    /// Nodes whose addition was asked for. Each call has a clone while it runs.
    additions: BTreeMap<NodeId, Arc<()>>,
    /// The node that lost its disk. It is added again once all is healed.
    wiped: Option<NodeId>,
    /// The voters, as the last leader knew them.
    voters: Vec<NodeId>,
    looks_at: u64,
    /// The key of each machine, its place, and when something is due for it.
    due: Vec<(NodeId, u64, u64)>,
    /// The newest term that had a leader.
    led: u64,
    /// The newest rules of any node.
    rules: u8,
    alive: Alive,
    turned: Turned,
}

impl World {
    /// The beginning of a run: the founders are started.
    pub fn new(plan: &Plan, story: Story) -> Self {
        let mut rng = Rng::with_seed(plan.seed ^ 0x5EED);
        let network = Network::new(rng.u64(..), plan.latency, story.clone());
        let founders: Vec<NodeId> = (1..=plan.nodes).collect();
        let mut machines = BTreeMap::new();
        let mut coverage = Coverage::default();
        coverage.add("clocks slowed", plan.speeds.iter().filter(|speed| **speed < 1_000).count() as u64);
        coverage.add("wall clocks wrong", plan.wrong_clocks() as u64);
        for id in &founders {
            let mut machine = Machine::new(*id, &founders, false, plan, &story);
            machine.start(0, &network);
            machines.insert(*id, machine);
        }
        Self {
            now: 0,
            machines,
            network,
            clients: Process::new(0, plan.seed, 1_000),
            desk: Arc::default(),
            nodes: Arc::new(Mutex::new(founders)),
            story,
            findings: Vec::new(),
            changes: BTreeMap::new(),
            sights: Vec::new(),
            faults: Vec::new(),
            coverage,
            rng,
            flush: plan.flush,
            plan: plan.clone(),
            later: BTreeMap::new(),
            answers: Answers::default(),
            requests: 0,
            recorded: BTreeMap::new(),
            removed: BTreeSet::new(),
            gone: Arc::default(),
            additions: BTreeMap::new(),
            wiped: None,
            voters: Vec::new(),
            looks_at: 0,
            due: Vec::new(),
            led: 0,
            rules: 0,
            alive: Alive::default(),
            turned: Turned::default(),
        }
    }

    /// Runs until `until`, in milliseconds.
    pub fn run_until(&mut self, until: u64) {
        while self.now < until && self.findings.is_empty() {
            let next = self.next_step().min(until);
            self.step(next);
        }
    }

    /// Runs until `done`, at most for `within` milliseconds; returns whether it is. It is asked whenever the nodes are looked at.
    pub fn run_until_done(&mut self, within: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let deadline = self.now + within;
        while !done(self) {
            if self.now >= deadline || !self.findings.is_empty() {
                return false;
            }
            self.run_until(self.looks_at.max(self.now + 1).min(deadline));
        }
        true
    }

    /// When the next thing is due.
    fn next_step(&mut self) -> u64 {
        self.due.clear();
        let due = |(key, it): (&NodeId, &Machine)| (*key, it.place, it.next_due().unwrap_or(u64::MAX));
        self.due.extend(self.machines.iter().map(due));
        let others = [
            self.network.next_due(),
            self.later.keys().next().copied(),
            self.plan.faults.first().map(|fault| fault.at),
        ];
        let next = self.clients.wakes_at().min(self.looks_at);
        let next = others.iter().flatten().fold(next, |next, at| next.min(*at));
        let next = self.due.iter().fold(next, |next, (.., at)| next.min(*at));
        next.max(self.now + 1)
    }

    fn step(&mut self, to: u64) {
        self.now = to;
        let receivers = self.network.advance(to);
        let is_fault = self.plan.faults.first().is_some_and(|fault| fault.at <= to);
        let is_concerned =
            |(_, place, at): &&(NodeId, u64, u64)| is_fault || *at <= to || receivers.contains(place);
        // By key: two machines have one id once one was replaced.
        let mut order: Vec<NodeId> = self.due.iter().filter(is_concerned).map(|(key, ..)| *key).collect();
        self.rng.shuffle(&mut order);
        let clients_first = self.clients.wakes_at() <= to && self.rng.bool();
        if clients_first {
            self.clients.run_until(to);
        }
        for id in &order {
            self.notice_thaw(*id);
            self.machines.get_mut(id).expect("no machine goes away").run_until(to);
        }
        if !clients_first && self.clients.wakes_at() <= to {
            self.clients.run_until(to);
        }
        self.network.deliver();
        for id in order {
            self.tend(id);
        }
        while self.later.first_key_value().is_some_and(|(at, _)| *at <= to) {
            for ending in self.later.pop_first().map(|(_, endings)| endings).unwrap_or_default() {
                self.end(ending);
            }
        }
        while self.plan.faults.first().is_some_and(|fault| fault.at <= to) {
            let fault = self.plan.faults.remove(0);
            self.happen(fault.what);
        }
        self.pass_on();
        for place in self.network.take_touched() {
            let key = self.machines.iter().find(|(_, machine)| machine.place == place).map(|(key, _)| *key);
            key.into_iter().for_each(|key| self.wake(key));
        }
        if self.now >= self.looks_at {
            self.look();
        }
    }

    /// Lets a node run soon, because it was given something.
    fn wake(&self, id: NodeId) {
        if let Some(process) = self.machines.get(&id).and_then(|machine| machine.process.as_ref()) {
            process.wake(self.now);
        }
    }

    fn count(&mut self, what: &'static str) {
        self.coverage.count(what);
    }

    fn handle(&self, id: NodeId) -> Option<Handle> {
        self.machines.get(&id)?.handle()
    }

    /// Runs something on a running node.
    fn spawn_on<F: Future<Output = ()> + Send + 'static>(
        &self,
        id: NodeId,
        task: impl FnOnce(Handle) -> F,
    ) -> bool {
        let Some(machine) = self.machines.get(&id) else { return false };
        let (Some(process), Some(handle)) = (&machine.process, machine.handle()) else { return false };
        process.spawn(task(handle));
        process.wake(self.now);
        true
    }
}

/// What the story calls the machine of this key.
fn name(key: NodeId) -> String {
    match key.checked_sub(REPLACED) {
        None => format!("node {key}"),
        Some(_) if key >= SECOND => format!("the second process of node {}", key - SECOND),
        Some(id) => format!("the machine that had the id of node {id}"),
    }
}
