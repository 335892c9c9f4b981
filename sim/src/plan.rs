//! What will happen in a run, drawn from its seed: the shape of the cluster, the load, and the faults.
//!
//! A seed draws which kinds of faults there are and how often (swarm testing), so some runs have one kind all the time and
//! others a little of everything.

use std::fmt;

use fastrand::Rng;
use ringfence_raft::NodeId;
use serde::{Deserialize, Serialize};

use crate::clients::Load;
use crate::messages::channel_name;
use crate::network::{Hold, Latency};

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// From which all of it comes.
    pub seed: u64,
    /// The nodes that found the cluster, from 1.
    pub nodes: u64,
    /// How long faults and load go on, in milliseconds.
    pub time: u64,
    /// How messages travel.
    pub latency: Latency,
    /// The load.
    pub load: Load,
    /// How long a flush takes at least and at most, in milliseconds.
    pub flush: (u64, u64),
    /// The log's size that makes a snapshot due.
    pub snapshot_after_bytes: u64,
    /// How fast the clocks of the nodes run, by id from 1, in thousandths of real time: at most that, for a leader's clock is
    /// what the laws measure cluster time by.
    pub speeds: Vec<u64>,
    /// The faults, by time.
    pub faults: Vec<Fault>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// When, in milliseconds.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What goes wrong. Durations are milliseconds. Node 0 is the one that leads when the fault begins.
#[allow(missing_docs, reason = "the fields are named alike and explained by their variant")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// The process is killed, and started again after `down`. `power`: the whole machine loses its power.
    Kill { node: NodeId, power: bool, down: u64 },
    /// The same, between two operations of its disk: after so many.
    Fuse { node: NodeId, operations: u64, power: bool, down: u64 },
    /// The process stops in order.
    Stop { node: NodeId, down: u64 },
    /// The process does nothing, and then goes on.
    Freeze { node: NodeId, lasts: u64 },
    /// Nothing comes through from one to the other.
    Cut { from: NodeId, to: NodeId, lasts: u64 },
    /// Nothing comes through to or from a node.
    Isolate { node: NodeId, lasts: u64 },
    /// No call to a node arrives in time; what it asks itself is answered.
    Deaf { node: NodeId, lasts: u64 },
    /// Nothing comes through to or from a node, except what each of the others had answered to appends: that comes late.
    Late { node: NodeId, lasts: u64, ends: Vec<u64> },
    /// Messages of one channel are held, one way.
    Hold { from: NodeId, to: NodeId, channel: Option<u8>, replies: Option<bool>, lasts: u64 },
    /// All connections between two break.
    Reset { one: NodeId, other: NodeId },
    /// Messages take longer.
    Slow { most: u64, lasts: u64 },
    /// The disk hangs.
    Hang { node: NodeId, lasts: u64 },
    /// A flush of the log takes long, after so many others. The rest of the disk works.
    LongFlush { node: NodeId, after: u64, lasts: u64 },
    /// The power of all machines goes. `wiped`: the disk of one does not survive it, and its node is started again as
    /// before. The machines are busy when they start: between two steps of a start nothing happens for so long.
    Blackout { wiped: Option<NodeId>, pause: u64, downs: Vec<u64> },
    /// An operation of the disk fails, after so many.
    Error { node: NodeId, operations: u64 },
    /// A bit of the older snapshot flips, if there are two.
    Rot { node: NodeId },
    /// Somebody asks for another leader.
    Transfer { asks: NodeId, to: NodeId },
    /// Somebody removes a member.
    Remove { asks: NodeId, node: NodeId, force: bool },
    /// A new node is started, and somebody adds it.
    Add { asks: NodeId, node: NodeId },
    /// A node that was removed and runs on gets a successor with its id on another machine, and somebody adds that.
    Replace { asks: NodeId, node: NodeId },
    /// The machine loses its disk; the node is started again, empty, under its old id. `join`: to wait until it is added.
    Wipe { node: NodeId, join: bool },
}

/// The kinds of faults, each with its weight in a run.
const KINDS: [fn(&mut Rng, u64, u64) -> What; 17] = [
    |rng, n, _| What::Kill { node: any(rng, n), power: false, down: short(rng) },
    |rng, n, _| What::Kill { node: any(rng, n), power: true, down: short(rng) },
    |rng, n, _| What::Fuse {
        node: any(rng, n),
        operations: rng.u64(1..60),
        power: rng.bool(),
        down: short(rng),
    },
    |rng, n, _| What::Stop { node: any(rng, n), down: short(rng) },
    |rng, n, _| What::Freeze { node: any(rng, n), lasts: short(rng) },
    |rng, n, _| {
        let (from, to) = two(rng, n);
        What::Cut { from, to, lasts: short(rng) }
    },
    |rng, n, _| What::Isolate { node: any(rng, n), lasts: short(rng) },
    |rng, n, _| {
        let (from, to) = two(rng, n);
        let channel = (rng.u32(0..4) > 0).then(|| rng.u8(0..7));
        let replies = (rng.u32(0..4) > 0).then(|| rng.bool());
        What::Hold { from, to, channel, replies, lasts: short(rng) }
    },
    |rng, n, _| {
        let (one, other) = two(rng, n);
        What::Reset { one, other }
    },
    |rng, _, _| What::Slow { most: rng.u64(10..600), lasts: short(rng) },
    |rng, n, _| What::Hang { node: any(rng, n), lasts: short(rng) },
    |rng, n, _| What::Error { node: any(rng, n), operations: rng.u64(1..200) },
    |rng, n, _| What::Rot { node: any(rng, n) },
    |rng, n, _| {
        let (asks, to) = two(rng, n);
        What::Transfer { asks, to }
    },
    |rng, n, _| {
        let (asks, node) = two(rng, n);
        What::Remove { asks, node, force: rng.u32(0..10) == 0 }
    },
    |rng, n, newest| What::Add { asks: any(rng, n), node: newest + 1 },
    |rng, n, _| What::Wipe { node: any(rng, n), join: rng.bool() },
];

impl Plan {
    /// The run of this seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let course = rng.choice(&COURSES).copied().flatten();
        let nodes = match course {
            Some(Course::Successor) => *rng.choice(&[2, 2, 2, 3, 4]).unwrap_or(&2),
            _ => *rng.choice(&[1, 3, 3, 3, 3, 3, 5, 5]).unwrap_or(&3),
        };
        let time = *rng.choice(&[20_000, 60_000, 120_000]).unwrap_or(&60_000);
        let most = *rng.choice(&[1, 2, 5, 30]).unwrap_or(&1);
        let latency = Latency {
            least: 0,
            most,
            spikes: *rng.choice(&[0, 0, 5, 50]).unwrap_or(&0),
            spike: rng.u64(10..2_000),
        };
        let load = Load {
            clients: rng.u32(1..9),
            keys: rng.u32(1..7),
            pause_ms: *rng.choice(&[10, 100, 500, 2_000]).unwrap_or(&100),
            shared: *rng.choice(&[0, 30, 80]).unwrap_or(&30),
            lost: *rng.choice(&[0, 2, 20]).unwrap_or(&2),
        };
        let flush = (*rng.choice(&[0, 0, 1]).unwrap_or(&0), *rng.choice(&[1, 5, 30]).unwrap_or(&1));
        let snapshot_after_bytes =
            *rng.choice(&[4 << 10, 16 << 10, 64 << 10, 32 << 20]).unwrap_or(&(64 << 10));
        let snapshot_after_bytes = match course {
            Some(Course::Rewriting) => 4 << 10,
            _ => snapshot_after_bytes,
        };
        let mut faults = match course {
            // Others would mostly break it off.
            Some(_) if rng.u32(0..4) > 0 => Vec::new(),
            _ => draw_faults(&mut rng, nodes, time),
        };
        if matches!(course, Some(Course::Successor)) {
            faults
                .retain(|it| !matches!(it.what, What::Add { .. } | What::Remove { .. } | What::Wipe { .. }));
        }
        if let Some(course) = course {
            let mut at = rng.u64(500..4_000);
            while at < time {
                let steps = course.draw(&mut rng, nodes, &mut at);
                let is_over = steps.is_empty();
                faults.extend(steps);
                at += rng.u64(500..6_000);
                if is_over {
                    break;
                }
            }
            faults.sort_by_key(|fault| fault.at);
        }
        let speeds = match rng.u32(0..3) {
            0 => (0..nodes).map(|_| *rng.choice(&[1_000, 999, 990, 900]).unwrap_or(&1_000)).collect(),
            _ => Vec::new(),
        };
        Self { seed, nodes, time, latency, load, flush, snapshot_after_bytes, speeds, faults }
    }

    /// How fast the clock of a node runs, in thousandths of real time.
    pub fn speed(&self, node: NodeId) -> u64 {
        self.speeds.get(node as usize - 1).copied().unwrap_or(1_000)
    }
}

fn draw_faults(rng: &mut Rng, nodes: u64, time: u64) -> Vec<Fault> {
    let mut weights = [0_u32; KINDS.len()];
    for weight in &mut weights {
        *weight = *rng.choice(&[0, 0, 1, 1, 5]).unwrap_or(&1);
    }
    // Membership is for clusters of some.
    if nodes < 3 {
        weights[14..].fill(0);
    }
    let total: u32 = weights.iter().sum();
    let mean = *rng.choice(&[200, 1_000, 4_000]).unwrap_or(&1_000);
    let (mut at, mut newest, mut faults) = (1_000, nodes, Vec::new());
    while total > 0 && at < time {
        let mut draw = rng.u32(0..total);
        let kind = weights.iter().position(|weight| match draw.checked_sub(*weight) {
            None => true,
            Some(left) => {
                draw = left;
                false
            }
        });
        let what = KINDS[kind.expect("the draw is below the sum")](rng, newest, newest);
        if let What::Add { node, .. } = what {
            if node > nodes + 6 {
                break;
            }
            newest = node;
        }
        faults.push(Fault { at, what });
        at += rng.u64(0..2 * mean);
    }
    faults
}

/// Often the node that leads: what it does matters most.
fn any(rng: &mut Rng, nodes: u64) -> NodeId {
    if rng.u32(0..6) == 0 { 0 } else { rng.u64(1..=nodes) }
}

fn one(rng: &mut Rng, nodes: u64) -> NodeId {
    rng.u64(1..=nodes)
}

fn two(rng: &mut Rng, nodes: u64) -> (NodeId, NodeId) {
    let (first, second) = (one(rng, nodes), one(rng, nodes));
    if first == second { (first, first % nodes + 1) } else { (first, second) }
}

/// Mostly short, at times longer than any timeout.
fn short(rng: &mut Rng) -> u64 {
    let most = *rng.choice(&[20, 200, 1_500, 4_000, 12_000]).unwrap_or(&200);
    rng.u64(1..most)
}

impl What {
    /// The hold that it is, if it is one, when it begins at `now`, between these places.
    pub fn hold(&self, now: u64, place: impl Fn(NodeId) -> u64) -> Option<Hold> {
        let &Self::Hold { from, to, channel, replies, lasts } = self else { return None };
        Some(Hold { from: place(from), to: place(to), channel, replies, until: now + lasts })
    }

    /// The same, of the node that leads where it says so.
    pub fn of(mut self, leader: NodeId) -> Self {
        if let Self::Kill { node, .. }
        | Self::Fuse { node, .. }
        | Self::Stop { node, .. }
        | Self::Freeze { node, .. }
        | Self::Isolate { node, .. }
        | Self::Deaf { node, .. }
        | Self::Late { node, .. }
        | Self::Hang { node, .. }
        | Self::LongFlush { node, .. }
        | Self::Error { node, .. }
        | Self::Rot { node }
        | Self::Wipe { node, .. }
        | Self::Transfer { asks: node, .. }
        | Self::Remove { asks: node, .. }
        | Self::Replace { asks: node, .. }
        | Self::Add { asks: node, .. } = &mut self
            && *node == 0
        {
            *node = leader;
        }
        self
    }

    /// The nodes that it is aimed at.
    pub fn nodes(&self) -> Vec<NodeId> {
        match *self {
            Self::Kill { node, .. }
            | Self::Fuse { node, .. }
            | Self::Stop { node, .. }
            | Self::Freeze { node, .. }
            | Self::Isolate { node, .. }
            | Self::Deaf { node, .. }
            | Self::Late { node, .. }
            | Self::Hang { node, .. }
            | Self::LongFlush { node, .. }
            | Self::Error { node, .. }
            | Self::Rot { node }
            | Self::Remove { node, .. }
            | Self::Add { node, .. }
            | Self::Replace { node, .. }
            | Self::Wipe { node, .. } => vec![node],
            Self::Cut { from, to, .. } | Self::Hold { from, to, .. } => vec![from, to],
            Self::Reset { one, other } => vec![one, other],
            Self::Transfer { to, .. } => vec![to],
            Self::Slow { .. } | Self::Blackout { .. } => Vec::new(),
        }
    }

    /// How long it lasts, in milliseconds.
    pub fn lasts(&self) -> u64 {
        match *self {
            Self::Kill { down, .. } | Self::Fuse { down, .. } | Self::Stop { down, .. } => down,
            Self::Freeze { lasts, .. }
            | Self::Cut { lasts, .. }
            | Self::Isolate { lasts, .. }
            | Self::Deaf { lasts, .. }
            | Self::Late { lasts, .. }
            | Self::LongFlush { lasts, .. }
            | Self::Hold { lasts, .. }
            | Self::Slow { lasts, .. }
            | Self::Hang { lasts, .. } => lasts,
            _ => 0,
        }
    }

    /// The nemesis of jepsen/ that does the like.
    pub fn nemesis(&self) -> &'static str {
        match self {
            Self::Kill { power: false, .. } => "kill",
            Self::Kill { .. } | Self::Fuse { .. } | Self::Blackout { .. } => "power",
            Self::Stop { .. } => "stop",
            Self::Freeze { .. } => "pause",
            Self::Cut { .. } | Self::Isolate { .. } | Self::Deaf { .. } | Self::Late { .. } => "partition",
            Self::Hold { .. } | Self::Reset { .. } | Self::Slow { .. } => "network",
            Self::Hang { .. } | Self::LongFlush { .. } | Self::Error { .. } | Self::Rot { .. } => "disk",
            Self::Transfer { .. } => "transfer",
            Self::Remove { .. } | Self::Add { .. } | Self::Replace { .. } | Self::Wipe { .. } => "members",
        }
    }
}

/// Several faults that belong together.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// A leader is deposed while answers to its appends are under way.
    LateAnswers,
    /// A node is removed, runs on, and gets a successor with its id; then others lose their leader.
    Successor,
    /// All lose their power, and perhaps one its disk.
    Blackouts,
    /// A leader that was deposed replaces the end of its log while a flush hangs, and loses its power.
    Rewriting,
}

/// Of which each run draws one.
const COURSES: [Option<Course>; 8] = [
    None,
    None,
    None,
    None,
    Some(Course::LateAnswers),
    Some(Course::Successor),
    Some(Course::Blackouts),
    Some(Course::Rewriting),
];

impl Course {
    /// Its faults, if it begins at `at`, which becomes the time of the last.
    fn draw(self, rng: &mut Rng, nodes: u64, at: &mut u64) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut then = |at: &mut u64, after, what| {
            *at += after;
            faults.push(Fault { at: *at, what });
        };
        match self {
            Self::LateAnswers => {
                let late = rng.u64(1_200..5_000);
                let ends = (1..nodes).map(|_| late + rng.u64(0..100)).collect();
                then(at, 0, What::Late { node: 0, lasts: late + 1_000, ends });
                *at += late;
            }
            // Once in a run: the next id is taken then.
            Self::Successor if *at > 5_000 => {}
            Self::Successor => {
                let node = nodes + 1;
                then(at, 0, What::Add { asks: 0, node });
                then(at, 2_000, What::Transfer { asks: 0, to: one(rng, nodes) });
                for _ in 0..rng.u32(2..5) {
                    then(at, rng.u64(300..1_000), What::Transfer { asks: 0, to: one(rng, nodes) });
                }
                let lasts = rng.u64(1..6_000);
                then(at, 500, What::Freeze { node, lasts });
                then(at, rng.u64(1..100), What::Remove { asks: 0, node, force: rng.bool() });
                then(at, rng.u64(300..2_000), What::Replace { asks: 0, node });
                for _ in 0..3 {
                    then(at, rng.u64(1_000..3_000), What::Transfer { asks: 0, to: one(rng, node) });
                    for _ in 0..=(nodes - 1) / 2 {
                        then(
                            at,
                            rng.u64(0..500),
                            What::Deaf { node: one(rng, nodes), lasts: rng.u64(1_500..4_000) },
                        );
                    }
                }
            }
            Self::Blackouts => {
                let wiped = rng.bool().then(|| if rng.bool() { 1 } else { one(rng, nodes) });
                let pause = *rng.choice(&[0, 20, 200]).unwrap_or(&0);
                let most = *rng.choice(&[400, 400, 8_000]).unwrap_or(&400);
                let downs = (0..nodes).map(|_| rng.u64(1..most)).collect();
                // Its log ends before those of the others.
                then(at, 0, What::Deaf { node: one(rng, nodes), lasts: rng.u64(1_000..6_000) });
                then(at, rng.u64(1_000..6_000), What::Blackout { wiped, pause, downs });
                then(at, most + 2_000, What::Transfer { asks: 0, to: one(rng, nodes) });
            }
            Self::Rewriting => {
                let node = one(rng, nodes);
                // Until about when another is elected: the end that is replaced is longer than what replaces it.
                let lasts = rng.u64(900..2_500);
                then(at, 0, What::Transfer { asks: 0, to: node });
                then(at, rng.u64(200..500), What::Isolate { node, lasts });
                then(
                    at,
                    lasts - 1,
                    What::LongFlush { node, after: rng.u64(0..5), lasts: rng.u64(1_000..6_000) },
                );
                then(at, rng.u64(300..2_500), What::Kill { node, power: true, down: short(rng) });
            }
        }
        faults
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = |power: bool| if power { "loses its power" } else { "is killed" };
        match *self {
            Self::Kill { node, power, down } => write!(f, "node {node} {}, for {down} ms", machine(power)),
            Self::Fuse { node, operations, power, down } => {
                let what = machine(power);
                write!(f, "node {node} {what} after {operations} more operations of its disk, for {down} ms")
            }
            Self::Stop { node, down } => write!(f, "node {node} stops in order, for {down} ms"),
            Self::Freeze { node, lasts } => write!(f, "node {node} is frozen for {lasts} ms"),
            Self::Cut { from, to, lasts } => {
                write!(f, "nothing comes from node {from} to node {to} for {lasts} ms")
            }
            Self::Isolate { node, lasts } => write!(f, "node {node} is cut off for {lasts} ms"),
            Self::Deaf { node, lasts } => write!(f, "nobody can call node {node} for {lasts} ms"),
            Self::Late { node, lasts, .. } => {
                write!(f, "node {node} is cut off for {lasts} ms, but answers to its appends arrive late")
            }
            Self::Hold { from, to, channel, replies, lasts } => {
                let what = match replies {
                    None => "messages",
                    Some(true) => "replies",
                    Some(false) => "calls",
                };
                let channel = channel.map_or_else(|| "all channels".to_owned(), channel_name);
                write!(f, "{what} from node {from} to node {to} on {channel} are held for {lasts} ms")
            }
            Self::Reset { one, other } => write!(f, "the connections of nodes {one} and {other} break"),
            Self::Slow { most, lasts } => write!(f, "messages take up to {most} ms, for {lasts} ms"),
            Self::Hang { node, lasts } => write!(f, "the disk of node {node} hangs for {lasts} ms"),
            Self::LongFlush { node, after, lasts } => {
                write!(f, "after {after} more flushes, one of node {node} takes {lasts} ms")
            }
            Self::Blackout { wiped: None, .. } => write!(f, "all machines lose their power"),
            Self::Blackout { wiped: Some(node), .. } => {
                write!(f, "all machines lose their power, and node {node} its disk")
            }
            Self::Error { node, operations } => {
                write!(f, "the disk of node {node} will fail once, after {operations} more operations")
            }
            Self::Rot { node } => write!(f, "a bit of a snapshot of node {node} flips"),
            Self::Transfer { asks, to } => write!(f, "node {asks} is asked to make node {to} the leader"),
            Self::Remove { asks, node, force: false } => {
                write!(f, "node {asks} is asked to remove node {node}")
            }
            Self::Remove { asks, node, .. } => {
                write!(f, "node {asks} is asked to remove node {node} by force")
            }
            Self::Add { asks, node } => write!(f, "node {node} is new, and node {asks} is asked to add it"),
            Self::Replace { asks, node } => {
                write!(f, "another machine takes the id of node {node}, and node {asks} is asked to add it")
            }
            Self::Wipe { node, .. } => write!(f, "node {node} loses its disk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_back() {
        for seed in 0..200 {
            let plan = Plan::draw(seed);
            let text = serde_json::to_string_pretty(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{text}");
        }
    }

    #[test]
    fn a_wrong_plan_is_refused_by_name() {
        let mut plan = serde_json::to_value(Plan::draw(1)).unwrap();
        plan["faults"] = serde_json::json!([{"at": 1, "what": "freeze", "node": 1}]);
        let error = serde_json::from_value::<Plan>(plan).unwrap_err().to_string();
        assert!(error.contains("lasts"), "{error}");
    }
}
