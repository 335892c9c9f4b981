//! The network between the nodes: connections whose messages are delivered one by one, when the world says so.

mod delays;
mod delivery;
mod direction;
mod port;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use fastrand::Rng;
use ringfence_raft::{Connection, NodeId, Transport};
use tokio::sync::mpsc;

pub use self::delays::{Hold, Latency, Narrow};
use self::direction::{Direction, End};
use self::port::{Port, Reader, Writer};
use crate::coverage::Coverage;
use crate::story::Story;

/// Bytes on their way in one direction; a writer waits beyond.
const WINDOW: usize = 1 << 20;
/// How many bytes the digest takes at once.
const DIGESTED: usize = 64 << 10;

/// A network. Clones are the same one.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

struct State {
    now: u64,
    rng: Rng,
    latency: Latency,
    directions: Vec<Direction>,
    /// When the first message of a direction is due; the number keeps the order of those at one time.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    numbered: u64,
    listeners: BTreeMap<String, Listener>,
    cut: BTreeSet<(NodeId, NodeId)>,
    holds: Vec<Hold>,
    narrows: Vec<Narrow>,
    /// From which nodes no snapshot arrives, and until when.
    tears: Vec<(NodeId, u64)>,
    /// How many connections each node has opened to each other since [`Network::take_opened`].
    opened: BTreeMap<(NodeId, NodeId), u64>,
    /// BLAKE3 of all that was delivered, in order. It takes much at once faster than a little at a time.
    digest: BufWriter<blake3::Hasher>,
    coverage: Coverage,
    story: Story,
    /// The nodes that were given something, some of them more than once.
    touched: Vec<NodeId>,
}

#[derive(Clone)]
struct Listener {
    node: NodeId,
    is_on: Arc<AtomicBool>,
    accepting: mpsc::UnboundedSender<Connection>,
}

impl Network {
    /// A network whose delays come from `seed`.
    pub fn new(seed: u64, latency: Latency, story: Story) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: 0,
            rng: Rng::with_seed(seed),
            latency,
            directions: Vec::new(),
            due: BinaryHeap::new(),
            numbered: 0,
            listeners: BTreeMap::new(),
            cut: BTreeSet::new(),
            holds: Vec::new(),
            narrows: Vec::new(),
            tears: Vec::new(),
            opened: BTreeMap::new(),
            digest: BufWriter::with_capacity(DIGESTED, blake3::Hasher::new()),
            coverage: Coverage::default(),
            story,
            touched: Vec::new(),
        })))
    }

    /// The port of `node`, which listens at `address` while `is_on`.
    pub fn port(&self, node: NodeId, address: &str, is_on: &Arc<AtomicBool>) -> Arc<dyn Transport> {
        let (accepting, accepted) = mpsc::unbounded_channel();
        let listener = Listener { node, is_on: Arc::clone(is_on), accepting };
        let listeners = &mut self.lock().listeners;
        // It may have listened elsewhere before.
        listeners.retain(|_, it| it.node != node);
        listeners.insert(address.to_owned(), listener);
        Arc::new(Port {
            network: self.clone(),
            node,
            is_on: Arc::clone(is_on),
            accepted: tokio::sync::Mutex::new(accepted),
        })
    }

    /// When the next message is due.
    pub fn next_due(&self) -> Option<u64> {
        self.lock().due.peek().map(|Reverse((due, ..))| *due)
    }

    /// Advances the time to `now`; returns the nodes for which a message is due, one for each message.
    pub fn advance(&self, now: u64) -> Vec<NodeId> {
        let mut state = self.lock();
        state.now = now;
        let due = state.due.iter().filter(|Reverse((due, ..))| *due <= now);
        due.map(|Reverse((.., direction))| state.directions[*direction].to).collect()
    }

    /// Takes the nodes that were given something since the last call, some of them more than once.
    pub fn take_touched(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.lock().touched)
    }

    /// Delivers all that is due.
    pub fn deliver(&self) {
        let mut wakers = Vec::new();
        {
            let mut state = self.lock();
            let now = state.now;
            state.holds.retain(|hold| hold.until > now);
            state.narrows.retain(|narrow| narrow.until > now);
            state.tears.retain(|(_, until)| *until > now);
            while let Some(Reverse((due, _, direction))) = state.due.peek().copied()
                && due <= now
            {
                state.due.pop();
                state.deliver_first(direction, &mut wakers);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lets nothing through from one node to the other, until [`Network::heal`].
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.lock().cut.insert((from, to));
    }

    /// Ends all cuts and holds, and widens all paths.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.cut.clear();
        state.holds.clear();
        state.narrows.clear();
        state.tears.clear();
        let now = state.now;
        for direction in 0..state.directions.len() {
            // No message is due before the one in front of it: so all are brought forward.
            let queue = &mut state.directions[direction].queue;
            queue.iter_mut().for_each(|(due, _)| *due = (*due).min(now + 1));
            if let Some((due, _)) = queue.front() {
                let due = *due;
                state.schedule(direction, due);
            }
        }
    }

    /// Holds messages until a time. They are delivered then, in order.
    pub fn hold(&self, hold: Hold) {
        self.lock().holds.push(hold);
    }

    /// Narrows a path until a time.
    pub fn narrow(&self, narrow: Narrow) {
        self.lock().narrows.push(narrow);
    }

    /// Lets no snapshot arrive from `node` until a time.
    pub fn tear(&self, node: NodeId, until: u64) {
        self.lock().tears.push((node, until));
    }

    /// Whether something keeps messages back, between these two, either way.
    pub fn is_disturbed(&self, one: NodeId, other: NodeId) -> bool {
        let state = self.lock();
        let is_between = |from, to| (from, to) == (one, other) || (from, to) == (other, one);
        state.cut.iter().any(|(from, to)| is_between(*from, *to))
            || state.holds.iter().any(|hold| is_between(hold.from, hold.to))
            || state.narrows.iter().any(|narrow| is_between(narrow.from, narrow.to))
    }

    /// The most messages take, and how many of 1,000 take longer.
    pub fn latency(&self) -> Latency {
        self.lock().latency
    }

    /// Takes how many connections each node has opened to each other since the last call.
    pub fn take_opened(&self) -> BTreeMap<(NodeId, NodeId), u64> {
        std::mem::take(&mut self.lock().opened)
    }

    /// Changes how long messages take from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.lock().latency = latency;
    }

    /// Resets the connections between two nodes.
    pub fn reset(&self, one: NodeId, other: NodeId) {
        self.end_all(End::Reset, |direction| {
            (direction.from, direction.to) == (one, other) || (direction.from, direction.to) == (other, one)
        });
    }

    /// The power of a node's machine is gone: its peers hear nothing, until their kernels give up.
    pub fn silence(&self, node: NodeId) {
        self.end_all(End::Silent, |direction| direction.from == node || direction.to == node);
    }

    /// The kernels of the peers give up connections that became silent.
    pub fn give_up_silent(&self) {
        self.end_all(End::Reset, |direction| direction.end == End::Silent);
    }

    /// What was delivered, as one number; and what was exercised.
    pub fn take_digest(&self) -> (u64, Coverage) {
        let mut state = self.lock();
        state.digest.flush().expect("a hasher takes all");
        let hash = state.digest.get_ref().finalize();
        let digest = u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"));
        (digest, std::mem::take(&mut state.coverage))
    }

    fn end_all(&self, end: End, which: impl Fn(&Direction) -> bool) {
        let mut wakers = Vec::new();
        {
            let State { directions, touched, coverage, .. } = &mut *self.lock();
            for direction in directions {
                if direction.end != End::Reset && which(direction) {
                    touched.extend([direction.from, direction.to]);
                    direction.end_with(end, coverage, &mut wakers);
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The process of a node ends, and with it its connections, in an order that does not depend on its tasks.
    pub fn hang_up(&self, node: NodeId) {
        let ends: Vec<(usize, bool)> = {
            let state = self.lock();
            let ends = state.directions.iter().enumerate().filter(|(_, it)| it.from == node || it.to == node);
            ends.map(|(number, it)| (number, it.to == node)).collect()
        };
        for (number, reads) in ends {
            match reads {
                true => self.refuse(number),
                false => self.close(number),
            }
        }
    }

    fn connect(&self, from: NodeId, to: &str) -> Option<io::Result<Connection>> {
        let mut state = self.lock();
        let listener = state.listeners.get(to).cloned();
        let Some(listener) = listener.filter(|it| it.is_on.load(Relaxed) && !it.accepting.is_closed()) else {
            return Some(Err(ErrorKind::ConnectionRefused.into()));
        };
        let node = listener.node;
        if state.cut.contains(&(from, node)) || state.cut.contains(&(node, from)) {
            return None;
        }
        let there = state.directions.len();
        *state.opened.entry((from, node)).or_default() += 1;
        state.touched.push(node);
        state.directions.push(Direction::new(from, node, false, there + 1));
        state.directions.push(Direction::new(node, from, true, there));
        let caller_is_on =
            state.listeners.values().find(|it| it.node == from).map(|it| Arc::clone(&it.is_on));
        drop(state);
        let caller_is_on = caller_is_on.unwrap_or_else(|| Arc::new(AtomicBool::new(true)));
        let callee = self.connection(&from.to_string(), there, there + 1, &listener.is_on);
        if listener.accepting.send(callee).is_err() {
            return Some(Err(ErrorKind::ConnectionRefused.into()));
        }
        Some(Ok(self.connection(to, there + 1, there, &caller_is_on)))
    }

    fn connection(&self, peer: &str, reads: usize, writes: usize, is_on: &Arc<AtomicBool>) -> Connection {
        Connection {
            peer: peer.to_owned(),
            reader: Box::new(Reader { network: self.clone(), direction: reads }),
            writer: Box::new(Writer { network: self.clone(), direction: writes, is_on: Arc::clone(is_on) }),
            certificate: None,
        }
    }

    /// The reader of a direction is gone.
    fn refuse(&self, number: usize) {
        let mut state = self.lock();
        let State { directions, coverage, touched, .. } = &mut *state;
        let direction = &mut directions[number];
        if direction.end != End::Silent {
            direction.end = End::Reset;
        }
        direction.lose_all(coverage);
        direction.readable = VecDeque::new();
        let waker = direction.writer.take();
        touched.push(direction.from);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The writer of a direction is gone.
    fn close(&self, number: usize) {
        let mut state = self.lock();
        let direction = &mut state.directions[number];
        if direction.end == End::Open {
            direction.end = End::Closed;
        }
        let (waker, reader) = (direction.reader.take(), direction.to);
        state.touched.push(reader);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while the network is locked")
    }
}
