//! The world: machines, network, clients and time, all in one thread.
//!
//! Time jumps to the next thing that is due: a message, a flush, a fault, or a process that has not run for a while. The
//! processes that it concerns run up to that time, each on its own runtime, in an order that the seed decides; then what is
//! due happens, and what clients and nodes said to each other is passed on. So nothing depends on threads, on real time, or on
//! the order in which an operating system wakes up tasks.
//!
//! A process handles what it was given one millisecond later. When its own timers are due is not known: so it runs at least
//! every [`IDLE`] milliseconds, and what its timers make it send leaves late by less than that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use ringfence_jepsen::history::{Came, Fault, Sight};
use ringfence_lease::{Attachment, Event};
use ringfence_raft::{Handle, NodeId};
use ringfence_wire::{Revision, Role};
use tokio::sync::oneshot;

use crate::clients::Desk;
use crate::coverage::Coverage;
use crate::machine::{Machine, Process};
use crate::network::{Hold, Network};
use crate::plan::{Plan, What};
use crate::serve::serve;
use crate::story::Story;

/// How long a process may lag behind while it is given nothing, in milliseconds.
pub(crate) const IDLE: u64 = 25;
/// When kernels give up a connection to a machine without power, in milliseconds.
const GIVE_UP: u64 = 3_000;
/// How often the nodes are looked at, in milliseconds.
const LOOK: u64 = 100;
/// For how long after the end of its process a node that failed is down, in milliseconds.
const FAILED: u64 = 500;
/// The keys of machines that were replaced begin here. Each has the place in the network that it had.
const REPLACED: u64 = 1_000;
/// How many kinds of connections there are, and the one for appends.
const CHANNELS: u8 = 7;
const APPENDS: u8 = 3;

/// Answers of nodes, on their way to their clients, by the number of the request. `None`: the connection broke.
type Answers = Arc<Mutex<BTreeMap<u64, (oneshot::Sender<Came>, Option<Came>)>>>;

/// A request that a node has not answered. If it is dropped, the connection breaks.
///
/// A runtime that is dropped drops its tasks in an order that nobody fixes, so their ends take effect later, in order.
struct Asking {
    number: u64,
    reply: Option<oneshot::Sender<Came>>,
    came: Option<Came>,
    answers: Answers,
}

impl Asking {
    fn answer(mut self, came: Came) {
        self.came = Some(came);
    }

    /// Waits until the client does.
    async fn given_up(&mut self) {
        self.reply.as_mut().expect("it is there until this is dropped").closed().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let reply = self.reply.take().expect("nothing else takes it");
        let answer = (reply, self.came.take());
        self.answers.lock().expect("nothing panics while the answers are locked").insert(self.number, answer);
    }
}

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
    attachments: u64,
    /// Up to which revision the changes of each process are recorded.
    recorded: BTreeMap<NodeId, (u64, u64)>,
    /// Nodes that somebody tried to remove: they may end.
    removed: BTreeSet<NodeId>,
    /// The node that lost its disk. It is added again once all is healed.
    wiped: Option<NodeId>,
    /// The voters, as the last leader knew them.
    voters: Vec<NodeId>,
    looks_at: u64,
    /// The newest term that had a leader.
    led: u64,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Heal,
    Latency,
    GiveUp,
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
            attachments: 0,
            recorded: BTreeMap::new(),
            removed: BTreeSet::new(),
            wiped: None,
            voters: Vec::new(),
            looks_at: 0,
            led: 0,
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
    fn next_step(&self) -> u64 {
        let others = [
            self.network.next_due(),
            self.later.keys().next().copied(),
            self.plan.faults.first().map(|fault| fault.at),
            Some(self.clients.wakes_at()),
            Some(self.looks_at),
        ];
        let next = self.machines.values().map(Machine::next_due).chain(others).flatten().min();
        next.unwrap_or(u64::MAX).max(self.now + 1)
    }

    fn step(&mut self, to: u64) {
        self.now = to;
        let receivers = self.network.advance(to);
        let is_fault = self.plan.faults.first().is_some_and(|fault| fault.at <= to);
        let is_concerned = |machine: &Machine| {
            is_fault || machine.next_due().is_some_and(|at| at <= to) || receivers.contains(&machine.id)
        };
        let mut order: Vec<NodeId> =
            self.machines.values().filter(|it| is_concerned(it)).map(|it| it.id).collect();
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
        for id in self.network.take_touched() {
            self.wake(id);
        }
        if self.now >= self.looks_at {
            self.looks_at = self.now + LOOK;
            self.look();
        }
    }

    /// Counts what a node that is about to thaw has missed.
    fn notice_thaw(&mut self, id: NodeId) {
        let thaws = |machine: &Machine| machine.frozen_until != 0 && machine.frozen_until <= self.now;
        if !self.machines.get(&id).is_some_and(thaws) {
            return;
        }
        self.story.tell(self.now, format!("node {id} goes on"));
        if self.leader().is_some_and(|(_, members, _)| !members.contains(&id)) {
            self.count("nodes removed while frozen");
        }
    }

    /// Lets a node run soon, because it was given something.
    fn wake(&self, id: NodeId) {
        if let Some(process) = self.machines.get(&id).and_then(|machine| machine.process.as_ref()) {
            process.wake(self.now);
        }
    }

    /// Ends and begins what one machine does.
    fn tend(&mut self, id: NodeId) {
        let (now, flush) = (self.now, self.flush);
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.starts_at.is_some_and(|at| at <= now) {
            machine.start(now, &self.network);
            self.recorded.remove(&id);
            self.story.tell(now, format!("node {id} starts"));
            return;
        }
        if machine.process.is_none() || machine.frozen_until > now {
            return;
        }
        let mut is_given = false;
        if machine.flush_ends.is_some_and(|at| at <= now) {
            machine.flush_ends = None;
            machine.disk.finish_flush();
            is_given = true;
        }
        if machine.flush_ends.is_none() && machine.disk.begin_flush() {
            let takes = machine.flush_takes(|| self.rng.u64(flush.0..=flush.1));
            machine.flush_ends = Some((now + takes).max(machine.hangs_until));
            if now + takes < machine.hangs_until {
                self.coverage.count("flushes hung");
            }
        }
        for work in machine.disk.take_work() {
            let at = (now + self.rng.u64(flush.0..=flush.1 * 3)).max(machine.hangs_until);
            machine.work.push((at, work));
        }
        for (_, work) in machine.work.extract_if(.., |(at, _)| *at <= now) {
            work();
            is_given = true;
        }
        if is_given {
            self.wake(id);
        }
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.disk.is_off() {
            let (power, down) = machine.fuse.unwrap_or((false, FAILED));
            self.story.tell(now, format!("node {id} stops between two operations of its disk"));
            self.count("stops between two disk operations");
            self.kill(id, power, down);
            return;
        }
        if let Some(why) = machine.ended() {
            self.story.tell(now, format!("node {id} ended: {why}"));
            let expected = machine.may_fail || why == "stopped" || self.removed.contains(&id);
            if !expected {
                self.findings.push(format!("node {id} ended though nothing was wrong with its disk: {why}"));
            }
            // The founding was finished before any fault, and at most one machine lacks its data.
            if why.contains("empty the data directory") {
                self.findings.push(format!("node {id} asks for more data to be lost: {why}"));
            }
            self.count("processes that ended by themselves");
            let down =
                self.machines.get(&id).and_then(|machine| machine.fuse).map_or(FAILED, |(_, down)| down);
            self.kill(id, false, down);
        }
    }

    /// Ends the process of a node, which is started again after a while.
    fn kill(&mut self, id: NodeId, power: bool, down: u64) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let place = machine.place;
        if power {
            self.network.silence(place);
        }
        self.network.hang_up(place);
        let is_torn = machine.kill(power, &mut self.rng);
        machine.starts_at = Some(self.now + down);
        if is_torn {
            self.count("torn writes");
        }
        if power {
            self.later.entry(self.now + GIVE_UP).or_default().push(Ending::GiveUp);
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

    /// Whether there is what the fault is aimed at, and an operator would do it.
    fn is_possible(&self, what: &What) -> bool {
        let runs = |node: &NodeId| self.machines.get(node).is_some_and(|machine| machine.process.is_some());
        match what {
            What::Fuse { node, .. } | What::Stop { node, .. } | What::Freeze { node, .. } => runs(node),
            What::Transfer { asks, .. } => self.handle(*asks).is_some(),
            // Not in a cluster that lacks a disk.
            What::Remove { asks, .. } => self.wiped.is_none() && self.handle(*asks).is_some(),
            _ => true,
        }
    }

    /// The place of a node in the network.
    fn place(&self, node: NodeId) -> u64 {
        self.machines.get(&node).map_or(node, |machine| machine.place)
    }

    fn happen(&mut self, what: What) {
        let what = what.of(self.leader().map_or(1, |(leader, ..)| leader));
        if !self.is_possible(&what) {
            return;
        }
        let now = self.now;
        self.story.tell(now, what.to_string());
        self.faults.push(Fault {
            nemesis: what.nemesis().to_owned(),
            what: what.to_string(),
            nodes: what.nodes(),
            from_us: now * 1_000,
            to_us: (now + what.lasts()) * 1_000,
        });
        let hold = what.hold(now, |node| self.place(node));
        match what {
            What::Kill { node, power, down } => {
                self.count(if power { "power cuts" } else { "kills" });
                self.kill(node, power, down);
            }
            What::Fuse { node, operations, power, down } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.disk.light_fuse(operations);
                    machine.fuse = Some((power, down));
                }
            }
            What::Stop { node, down } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.fuse = Some((false, down));
                    machine.stop();
                }
                self.count("stops in order");
            }
            What::Freeze { node, lasts } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.frozen_until = machine.frozen_until.max(now + lasts);
                }
                self.count("freezes");
            }
            What::Cut { from, to, lasts } => {
                self.network.cut(self.place(from), self.place(to));
                self.later.entry(now + lasts).or_default().push(Ending::Heal);
                self.count("cuts of one direction");
            }
            What::Isolate { node, lasts } => {
                let place = self.place(node);
                for other in self.machines.values().map(|it| it.place).filter(|other| *other != place) {
                    self.network.cut(place, other);
                    self.network.cut(other, place);
                }
                self.later.entry(now + lasts).or_default().push(Ending::Heal);
                self.count("nodes isolated");
            }
            What::Deaf { node, lasts } => {
                let (to, until) = (self.place(node), now + lasts);
                for from in self.others(node) {
                    self.network.hold(Hold { from, to, channel: None, replies: Some(false), until });
                }
                self.count("nodes made deaf");
            }
            What::Late { node, lasts, ends } => {
                let (place, until) = (self.place(node), now + lasts);
                for (number, from) in self.others(node).into_iter().enumerate() {
                    let late = ends.get(number).copied().unwrap_or(lasts);
                    self.network.hold(Hold { from: place, to: from, channel: None, replies: None, until });
                    let hold = |channel, replies, until| {
                        self.network.hold(Hold { from, to: place, channel, replies: Some(replies), until });
                    };
                    hold(None, false, until);
                    for channel in 0..CHANNELS {
                        hold(Some(channel), true, if channel == APPENDS { now + late } else { until });
                    }
                }
                self.count("leaders cut off, their answers late");
            }
            What::LongFlush { node, after, lasts } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.long_flush = Some((after, lasts));
                }
                self.count("long flushes");
            }
            What::Blackout { wiped, pause, downs } => {
                let ids: Vec<NodeId> = self.current().collect();
                for (id, down) in ids.iter().zip(downs) {
                    self.kill(*id, true, down);
                    if let Some(machine) = self.machines.get_mut(id) {
                        machine.start_pause = pause;
                    }
                }
                self.count("power cuts of all");
                if let Some(node) = wiped {
                    self.wipe(node, false);
                }
            }
            What::Replace { asks, node } => self.replace(asks, node),
            What::Hold { .. } => {
                if let Some(hold) = hold {
                    self.network.hold(hold);
                }
                self.count("channels held");
            }
            What::Reset { one, other } => {
                self.network.reset(self.place(one), self.place(other));
                self.count("connections broken");
            }
            What::Slow { most, lasts } => {
                let latency = crate::network::Latency { most, ..self.plan.latency };
                self.network.set_latency(latency);
                self.later.entry(now + lasts).or_default().push(Ending::Latency);
                self.count("networks slowed");
            }
            What::Hang { node, lasts } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.hangs_until = now + lasts;
                }
            }
            What::Error { node, operations } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.may_fail = true;
                    machine.disk.fail_operation(operations);
                }
                self.count("disk errors");
            }
            What::Rot { node } => {
                if let Some(machine) = self.machines.get_mut(&node)
                    && machine.disk.rot_snapshot(&mut self.rng)
                {
                    self.count("snapshots rotten");
                }
            }
            What::Transfer { asks, to } => {
                self.spawn_on(asks, |handle| async move {
                    let _ = handle.transfer_leadership(Some(to)).await;
                });
                self.count("transfers asked for");
            }
            What::Remove { asks, node, force } => {
                self.spawn_on(asks, |handle| async move {
                    let _ = match force {
                        true => handle.force_remove_member(node).await,
                        false => handle.remove_member(node).await,
                    };
                });
                self.removed.insert(node);
                self.count("removals asked for");
            }
            What::Add { asks, node } => {
                let mut machine = Machine::new(node, &[], true, &self.plan, &self.story);
                machine.start(now, &self.network);
                self.machines.insert(node, machine);
                self.nodes.lock().expect("nothing panics while the nodes are locked").push(node);
                self.add(asks, node);
            }
            What::Wipe { node, join } => self.wipe(node, join),
        }
    }

    fn wipe(&mut self, node: NodeId, join: bool) {
        // While a member is removed, the others may need every one of them.
        if self.voters.len() >= 3
            && self.voters.contains(&node)
            && self.wiped.is_none()
            && self.removed.is_empty()
        {
            self.wiped = Some(node);
            self.kill(node, true, 10);
            if let Some(machine) = self.machines.get_mut(&node) {
                machine.wipe(join);
            }
            self.removed.insert(node);
            self.count("disks wiped");
        }
    }

    /// The machines that were not replaced.
    fn current(&self) -> impl Iterator<Item = NodeId> {
        self.machines.keys().copied().filter(|id| *id < REPLACED)
    }

    /// The places of all current nodes but one.
    fn others(&self, node: NodeId) -> Vec<u64> {
        self.current().filter(|other| *other != node).map(|other| self.place(other)).collect()
    }

    /// Another machine gets the id of a node, which was removed and runs on.
    fn replace(&mut self, asks: NodeId, node: NodeId) {
        let is_member = self.leader().is_none_or(|(_, members, _)| members.contains(&node));
        if is_member || !self.removed.contains(&node) || self.machines.contains_key(&(node + REPLACED)) {
            return;
        }
        let Some(old) = self.machines.remove(&node) else { return };
        self.machines.insert(node + REPLACED, old);
        self.removed.insert(node + REPLACED);
        let mut machine = Machine::at(node, node + REPLACED, &[], true, &self.plan, &self.story);
        machine.start(self.now, &self.network);
        self.machines.insert(node, machine);
        self.recorded.remove(&node);
        self.count("machines replaced");
        self.add(asks, node);
    }

    /// Asks a node to add another.
    pub fn add(&mut self, asks: NodeId, node: NodeId) {
        let Some(peer) = self.machines.get(&node).map(|machine| machine.address().to_owned()) else { return };
        self.spawn_on(asks, |handle| async move {
            let _ = handle.add_member(node, peer).await;
        });
        self.count("additions asked for");
    }

    fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Heal => self.network.heal(),
            Ending::Latency => self.network.set_latency(self.plan.latency),
            Ending::GiveUp => self.network.give_up_silent(),
        }
    }

    /// The leader of the newest term, and the members and voters as it knows them.
    pub fn leader(&self) -> Option<(NodeId, Vec<NodeId>, Vec<NodeId>)> {
        let statuses = self.machines.values().filter_map(|it| Some(it.handle()?.status()));
        let leader =
            statuses.filter(|status| status.leader == Some(status.node_id)).max_by_key(|it| it.term)?;
        let voters = leader.members.iter().filter(|(_, member)| member.voter).map(|(id, _)| *id).collect();
        Some((leader.node_id, leader.members.into_keys().collect(), voters))
    }

    /// How the nodes see the cluster, for people.
    pub fn statuses(&self) -> String {
        let status = |machine: &Machine| match machine.handle() {
            None => format!("node {} does not run ({:?})", machine.id, machine.ended()),
            Some(handle) => {
                let status = handle.status();
                let members: Vec<String> = status
                    .members
                    .iter()
                    .map(|(id, member)| format!("{id}{}", if member.voter { "" } else { " (learner)" }))
                    .collect();
                format!(
                    "node {}: {:?} in term {}, leader {:?}, last {:?}, committed {:?}, applied {:?}, members {}",
                    machine.id,
                    status.role,
                    status.term,
                    status.leader,
                    status.last_log_index,
                    status.committed_index,
                    status.applied_index,
                    members.join(" ")
                )
            }
        };
        self.machines.values().map(status).collect::<Vec<_>>().join("; ")
    }

    /// Does what an operator does about a node that lost its disk: removes it, and adds it again.
    pub fn replace_wiped(&mut self) {
        let Some(node) = self.wiped.take() else { return };
        self.kill(node, false, 10);
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.join();
        }
        for _ in 0..30 {
            self.run_until(self.now + 1_000);
            let is_back = self.handle(node).is_some();
            if is_back {
                return self.count("replacements of wiped disks");
            }
            let Some((leader, members, _)) = self.leader() else { continue };
            match members.contains(&node) {
                true => drop(self.spawn_on(leader, |handle| async move {
                    let _ = handle.remove_member(node).await;
                })),
                false => self.add(leader, node),
            }
        }
    }

    /// Ends all faults for good, and starts all nodes.
    pub fn heal(&mut self) {
        self.plan.faults.clear();
        self.machines.retain(|id, _| *id < REPLACED);
        self.network.heal();
        self.network.give_up_silent();
        self.plan.latency.spikes = 0;
        self.network.set_latency(self.plan.latency);
        for machine in self.machines.values_mut() {
            machine.frozen_until = machine.frozen_until.min(self.now + 1);
            (machine.hangs_until, machine.long_flush, machine.start_pause) = (0, None, 0);
            machine.disk.heal();
            machine.flush_ends = machine.flush_ends.map(|at| at.min(self.now + 1));
            machine.starts_at = machine.starts_at.map(|at| at.min(self.now + 1));
        }
        self.story.tell(self.now, "all is healed");
    }

    /// Passes on what clients and nodes said to each other.
    fn pass_on(&mut self) {
        for request in self.desk.take_requests() {
            self.attachments += 1;
            let attachment = Attachment(self.attachments);
            let machine = self.machines.get_mut(&request.node);
            // What a process is given, it is given at its own time: not while its clock lags behind.
            let machine = machine.map(|machine| {
                machine.run_until(self.now);
                &*machine
            });
            let running = machine.and_then(|it| Some((it, it.process.as_ref()?, it.handle()?)));
            let Some((machine, process, handle)) = running else {
                self.clients.wake(self.now);
                let _ = request.reply.send(Came::NotDone { why: "the node does not run".to_owned() });
                continue;
            };
            let is_on = Arc::clone(&machine.is_on);
            let crate::clients::Request { asked, reply, .. } = request;
            let (number, answers) = (self.attachments, Arc::clone(&self.answers));
            let mut asking = Asking { number, reply: Some(reply), came: None, answers };
            let lease =
                asked.lease().filter(|_| matches!(asked, ringfence_jepsen::history::Asked::Acquire { .. }));
            process.wake(self.now);
            process.spawn(async move {
                let came = tokio::select! {
                    biased;
                    came = serve(&handle, asked, attachment) => came,
                    () = asking.given_up() => {
                        if let Some(lease) = lease {
                            handle.detach_later(lease, attachment);
                        }
                        return;
                    }
                };
                // A machine that has stopped between two operations says nothing more.
                if is_on.load(std::sync::atomic::Ordering::Relaxed) {
                    asking.answer(came);
                }
            });
        }
        let answers =
            std::mem::take(&mut *self.answers.lock().expect("nothing panics while the answers are locked"));
        if !answers.is_empty() {
            self.clients.run_until(self.now);
        }
        for (reply, came) in answers.into_values() {
            self.clients.wake(self.now);
            came.map(|came| reply.send(came));
        }
        for machine in self.machines.values().filter(|machine| machine.disk.is_off()) {
            machine.is_on.store(false, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Looks at each node's table and changes, and compares them.
    pub fn look(&mut self) {
        let now_us = self.now * 1_000;
        if self.now % 1_000 < LOOK {
            self.story.detail(self.now, || self.statuses());
        }
        if let Some((_, _, voters)) = self.leader() {
            self.voters = voters;
        }
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for id in ids {
            let Some(handle) = self.handle(id) else { continue };
            let status = handle.status();
            let sight = Sight {
                sent_us: now_us,
                ended_us: now_us,
                node: id,
                role: status.role,
                term: status.term,
                leader: status.leader,
                applied_index: status.applied_index,
                revision: status.revision,
                at_ms: status.at_ms,
            };
            if sight.role == Role::Leader && sight.term > self.led {
                self.led = sight.term;
                self.story.tell(self.now, format!("node {id} leads in term {}", sight.term));
                self.count("elections won");
            }
            self.sights.push(sight);
            self.record_changes(id, &handle);
        }
    }

    fn record_changes(&mut self, id: NodeId, handle: &Handle) {
        let starts = self.machines.get(&id).map_or(0, |machine| machine.starts);
        let (known_starts, from) = self.recorded.get(&id).copied().unwrap_or((starts, 0));
        let from = if known_starts == starts { from } else { 0 };
        let (changes, findings) = (&mut self.changes, &mut self.findings);
        let last = handle.history(|history| {
            let after = Revision(from).max(history.before());
            for event in history.after(after).into_iter().flatten() {
                match changes.get(&event.revision.0) {
                    None => drop(changes.insert(event.revision.0, event.clone())),
                    Some(known) if known != event => findings.push(format!(
                        "node {id} applied another change {} than others did: {event:?}, not {known:?}",
                        event.revision
                    )),
                    Some(_) => {}
                }
            }
            history.last()
        });
        self.recorded.insert(id, (starts, last.0));
    }
}
