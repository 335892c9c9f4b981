//! Faults, each for itself.

mod text;

use fastrand::Rng;
use ringfence_raft::NodeId;
use serde::{Deserialize, Serialize};

use crate::network::Hold;

/// The newest rules of any simulated program: rules that the product does not have are as the newest that it has.
pub const NEWEST_RULES: u8 = 4;

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
    /// As [`What::Kill`], at the `operations`-th operation of the disk from now on.
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
    /// No message of more than `over` bytes comes from a node, nor what follows it on its connection.
    Clog { node: NodeId, over: usize, lasts: u64 },
    /// No snapshot of a node arrives: its connection breaks at the end.
    Tear { node: NodeId, lasts: u64 },
    /// Each connection carries `rate` bytes per second from one to the other.
    Narrow { from: NodeId, to: NodeId, rate: u64, lasts: u64 },
    /// All connections between two break.
    Reset { one: NodeId, other: NodeId },
    /// Messages take longer.
    Slow {
        #[serde(default)]
        least: u64,
        most: u64,
        lasts: u64,
    },
    /// Each flush of any node takes longer.
    SlowDisks { least: u64, most: u64, lasts: u64 },
    /// The disk hangs.
    Hang { node: NodeId, lasts: u64 },
    /// After `after` more flushes of the log, one takes `lasts`. The rest of the disk works.
    LongFlush { node: NodeId, after: u64, lasts: u64 },
    /// All machines lose their power, each for one of `downs`. The machine `wiped` also loses its disk; its node is started
    /// again as before. The machines are busy then: each start pauses for `pause` between any two steps.
    Blackout { wiped: Option<NodeId>, pause: u64, downs: Vec<u64> },
    /// The `operations`-th operation of the disk from now on fails.
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
    /// The process stops in order, and another program is started, which supports rules up to `newest`.
    Reinstall { node: NodeId, newest: u8, down: u64 },
    /// The process stops in order, and is started at another address, which nobody else is told of.
    Move { node: NodeId, down: u64 },
    /// Somebody raises the rules as far as all members support them.
    Raise { asks: NodeId },
    /// The machine loses its disk; the node is started again, empty, under its old id. `join`: to wait until it is added.
    Wipe { node: NodeId, join: bool },
    /// All disks are copied.
    Copy,
    /// The processes are killed, and started again after `down` with the disks as they were when they were last copied.
    TurnBack { nodes: Vec<NodeId>, down: u64 },
    /// A second process is started, at another address, with a copy of the disk of a node that goes on.
    Clone { node: NodeId },
}

/// The kinds of faults, each with its weight in a run.
const KINDS: [fn(&mut Rng, u64, u64) -> What; 24] = [
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
    // Now and then for as long as it takes to see that others serve.
    |rng, n, _| What::Deaf {
        node: any(rng, n),
        lasts: if rng.u32(0..8) == 0 { rng.u64(16_000..30_000) } else { short(rng) },
    },
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
    |rng, _, _| What::Slow { least: 0, most: rng.u64(10..600), lasts: short(rng) },
    |rng, n, _| What::Clog { node: any(rng, n), over: large(rng), lasts: short(rng) },
    |rng, n, _| What::Tear { node: any(rng, n), lasts: short(rng) },
    |rng, n, _| {
        let (from, to) = two(rng, n);
        let rate = *rng.choice(&[300, 2_000, 20_000]).unwrap_or(&300);
        What::Narrow { from, to, rate, lasts: short(rng) }
    },
    |rng, _, _| What::SlowDisks { least: 0, most: rng.u64(50..1_000), lasts: short(rng) },
    |rng, n, _| What::Hang { node: any(rng, n), lasts: short(rng) },
    |rng, n, _| What::Error { node: any(rng, n), operations: rng.u64(1..200) },
    |rng, n, _| What::Rot { node: any(rng, n) },
    |rng, n, _| What::Reinstall { node: any(rng, n), newest: rng.u8(1..=NEWEST_RULES), down: short(rng) },
    |rng, n, _| What::Raise { asks: any(rng, n) },
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

/// The faults of a run that have nothing to do with each other.
pub(super) fn draw_faults(rng: &mut Rng, nodes: u64, time: u64) -> Vec<Fault> {
    let mut weights = [0_u32; KINDS.len()];
    for weight in &mut weights {
        *weight = *rng.choice(&[0, 0, 1, 1, 5]).unwrap_or(&1);
    }
    // Membership is for clusters of some.
    if nodes < 3 {
        weights[21..].fill(0);
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

pub(super) fn one(rng: &mut Rng, nodes: u64) -> NodeId {
    rng.u64(1..=nodes)
}

fn two(rng: &mut Rng, nodes: u64) -> (NodeId, NodeId) {
    let (first, second) = (one(rng, nodes), one(rng, nodes));
    if first == second { (first, first % nodes + 1) } else { (first, second) }
}

/// Mostly short, at times longer than any timeout.
pub(super) fn short(rng: &mut Rng) -> u64 {
    let most = *rng.choice(&[20, 200, 1_500, 4_000, 12_000]).unwrap_or(&200);
    rng.u64(1..most)
}

/// A number of bytes: what opens a connection, heartbeats and votes have fewer, some appends have more.
pub(super) fn large(rng: &mut Rng) -> usize {
    rng.usize(125..180)
}

impl What {
    /// The hold that it is, if it is one, when it begins at `now`, between these places.
    pub fn hold(&self, now: u64, place: impl Fn(NodeId) -> u64) -> Option<Hold> {
        let &Self::Hold { from, to, channel, replies, lasts } = self else { return None };
        Some(Hold { from: place(from), to: place(to), channel, replies, over: 0, until: now + lasts })
    }

    /// The same, of the node that leads where it says so.
    pub fn of(mut self, leader: NodeId) -> Self {
        if let Some(node) = self.aim()
            && *node == 0
        {
            *node = leader;
        }
        self
    }

    /// The node that may be the one that leads.
    fn aim(&mut self) -> Option<&mut NodeId> {
        match self {
            Self::Kill { node, .. }
            | Self::Fuse { node, .. }
            | Self::Stop { node, .. }
            | Self::Freeze { node, .. }
            | Self::Isolate { node, .. }
            | Self::Deaf { node, .. }
            | Self::Late { node, .. }
            | Self::Clog { node, .. }
            | Self::Tear { node, .. }
            | Self::Narrow { from: node, .. }
            | Self::Hang { node, .. }
            | Self::LongFlush { node, .. }
            | Self::Error { node, .. }
            | Self::Rot { node }
            | Self::Wipe { node, .. }
            | Self::Transfer { asks: node, .. }
            | Self::Remove { asks: node, .. }
            | Self::Replace { asks: node, .. }
            | Self::Add { asks: node, .. }
            | Self::Reinstall { node, .. }
            | Self::Move { node, .. }
            | Self::Raise { asks: node } => Some(node),
            Self::Cut { .. } | Self::Hold { .. } | Self::Reset { .. } | Self::Slow { .. } => None,
            Self::SlowDisks { .. } | Self::Blackout { .. } | Self::Copy => None,
            Self::TurnBack { .. } | Self::Clone { .. } => None,
        }
    }

    /// The nodes that it is aimed at.
    pub fn nodes(&self) -> Vec<NodeId> {
        match *self {
            Self::TurnBack { ref nodes, .. } => nodes.clone(),
            Self::Clone { node }
            | Self::Remove { node, .. }
            | Self::Add { node, .. }
            | Self::Replace { node, .. } => vec![node],
            Self::Cut { from, to, .. } | Self::Hold { from, to, .. } | Self::Narrow { from, to, .. } => {
                vec![from, to]
            }
            Self::Reset { one, other } => vec![one, other],
            Self::Transfer { to, .. } => vec![to],
            Self::Raise { .. } => Vec::new(),
            _ => self.clone().aim().map(|node| *node).into_iter().collect(),
        }
    }

    /// How long it lasts, in milliseconds.
    pub fn lasts(&self) -> u64 {
        match *self {
            Self::Kill { down, .. }
            | Self::Fuse { down, .. }
            | Self::Stop { down, .. }
            | Self::TurnBack { down, .. }
            | Self::Move { down, .. }
            | Self::Reinstall { down, .. } => down,
            Self::Freeze { lasts, .. }
            | Self::Cut { lasts, .. }
            | Self::Isolate { lasts, .. }
            | Self::Deaf { lasts, .. }
            | Self::Late { lasts, .. }
            | Self::LongFlush { lasts, .. }
            | Self::Hold { lasts, .. }
            | Self::Clog { lasts, .. }
            | Self::Tear { lasts, .. }
            | Self::Narrow { lasts, .. }
            | Self::Slow { lasts, .. }
            | Self::SlowDisks { lasts, .. }
            | Self::Hang { lasts, .. } => lasts,
            _ => 0,
        }
    }

    /// The nemesis of jepsen/ that does the like.
    pub fn nemesis(&self) -> &'static str {
        match self {
            Self::Kill { power: false, .. } => "kill",
            Self::Kill { .. } | Self::Fuse { .. } | Self::Blackout { .. } => "power",
            Self::Stop { .. } | Self::Move { .. } => "stop",
            Self::Reinstall { .. } | Self::Raise { .. } => "upgrade",
            Self::Freeze { .. } => "pause",
            Self::Cut { .. } | Self::Isolate { .. } | Self::Deaf { .. } | Self::Late { .. } => "partition",
            Self::Hold { .. } | Self::Clog { .. } | Self::Tear { .. } | Self::Narrow { .. } => "network",
            Self::Reset { .. } | Self::Slow { .. } => "network",
            Self::Hang { .. } | Self::LongFlush { .. } | Self::SlowDisks { .. } => "disk",
            Self::Error { .. } | Self::Rot { .. } => "disk",
            Self::Copy | Self::TurnBack { .. } | Self::Clone { .. } => "turn-back",
            Self::Transfer { .. } => "transfer",
            Self::Remove { .. } | Self::Add { .. } | Self::Replace { .. } | Self::Wipe { .. } => "members",
        }
    }
}
