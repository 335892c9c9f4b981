//! The network between the nodes: connections whose messages are delivered one by one, when the world says so.

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
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::port::{Port, Reader, Writer};
use crate::coverage::Coverage;
use crate::messages::{APPENDS, HEAD, INSTALLED, PREFACE, describe, split};
use crate::story::Story;

/// Bytes on their way in one direction; a writer waits beyond.
const WINDOW: usize = 1 << 20;
/// How many bytes the digest takes at once.
const DIGESTED: usize = 64 << 10;

/// A network. Clones are the same one.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

/// How long messages take, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// At least.
    pub least: u64,
    /// At most, as a rule.
    pub most: u64,
    /// How many of 1,000 messages take up to [`Latency::spike`].
    pub spikes: u32,
    /// The most that such a message takes.
    pub spike: u64,
}

/// What goes one way on one channel waits until a time.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// `None`: on all channels.
    pub channel: Option<u8>,
    /// Whether only replies are held, on connections that the receiver opened, or only calls; `None`: both.
    pub replies: Option<bool>,
    /// Only messages of more bytes than this. The rest of a stream waits behind them, as TCP keeps the order.
    pub over: usize,
    /// The time until which.
    pub until: u64,
}

/// A path that carries few bytes, one way. Each connection has its share: none waits for the others.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// Bytes per second of each connection.
    pub rate: u64,
    /// The time until which.
    pub until: u64,
}

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

struct Direction {
    from: NodeId,
    to: NodeId,
    /// Whether it goes to the node that opened the connection.
    is_back: bool,
    /// The other direction of the connection.
    other: usize,
    channel: Option<u8>,
    /// Written, but not yet a whole message.
    partial: Vec<u8>,
    has_begun: bool,
    /// Messages on their way.
    queue: VecDeque<(u64, Vec<u8>)>,
    in_flight: usize,
    readable: VecDeque<u8>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// Closed by the writer: the reader gets what is on its way, and then the end.
    Closed,
    /// Both ends fail at once.
    Reset,
    /// The machine of the writer lost its power: nothing comes any more.
    Silent,
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
        self.lock().listeners.insert(address.to_owned(), listener);
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
                    direction.end = end;
                    touched.extend([direction.from, direction.to]);
                    if end == End::Reset {
                        wakers.extend(direction.reader.take());
                        wakers.extend(direction.writer.take());
                    }
                    direction.lose_all(coverage);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while the network is locked")
    }
}

impl State {
    fn schedule(&mut self, direction: usize, due: u64) {
        self.numbered += 1;
        self.due.push(Reverse((due, self.numbered, direction)));
    }

    fn delay(&mut self) -> u64 {
        let Latency { least, most, spikes, spike } = self.latency;
        match self.rng.u32(0..1_000) < spikes {
            true => self.rng.u64(least..=spike.max(least)),
            false => self.rng.u64(least..=most.max(least)),
        }
    }

    /// How long a connection is busy with so many bytes, where its path is narrow.
    fn transmission(&mut self, from: NodeId, to: NodeId, bytes: usize) -> u64 {
        let narrow = self.narrows.iter().filter(|it| (it.from, it.to) == (from, to));
        let Some(narrow) = narrow.min_by_key(|it| it.rate) else { return 0 };
        self.coverage.count("messages on narrow paths");
        (bytes as u64 * 1_000 / narrow.rate.max(1)).min(narrow.until.saturating_sub(self.now))
    }

    /// Puts a whole message on its way.
    fn send(&mut self, direction: usize, message: Vec<u8>) {
        let mut due = self.now + self.delay().max(1);
        let Direction { from, to, .. } = self.directions[direction];
        if self.directions[direction].queue.is_empty() {
            due += self.transmission(from, to, message.len());
        }
        let pipe = &mut self.directions[direction];
        let due = pipe.queue.back().map_or(due, |(last, _)| due.max(*last));
        pipe.in_flight += message.len();
        pipe.queue.push_back((due, message));
        if pipe.queue.len() == 1 {
            self.schedule(direction, due);
        }
    }

    /// Delivers the first message of a direction, if it is due and nothing holds it.
    fn deliver_first(&mut self, number: usize, wakers: &mut Vec<Waker>) {
        let now = self.now;
        let direction = &self.directions[number];
        let Some((due, first)) = direction.queue.front() else { return };
        let (due, bytes) = (*due, first.len());
        if due > now {
            // It was scheduled again.
            return self.schedule(number, due);
        }
        let link = (direction.from, direction.to);
        let holds = |hold: &&Hold| {
            (hold.from, hold.to) == link
                && hold.channel.is_none_or(|channel| direction.channel == Some(channel))
                && hold.replies.is_none_or(|replies| replies == direction.is_back)
                && hold.over < bytes
        };
        let held_until = self.holds.iter().filter(holds).map(|hold| hold.until).max();
        let is_large = self.holds.iter().filter(holds).any(|hold| hold.over > 0);
        let waits_until = match self.cut.contains(&link) {
            // Looked at again after a while: nothing says when the cut ends.
            true => Some(now + 100),
            false => held_until,
        };
        if let Some(until) = waits_until {
            if held_until.is_some() && direction.is_acknowledging() {
                self.coverage.count("acknowledgements held");
            }
            if is_large {
                self.coverage.count("large messages held");
            }
            self.directions[number].queue[0].0 = until;
            return self.schedule(number, until);
        }
        let direction = &mut self.directions[number];
        let Some((_, message)) = direction.queue.pop_front() else { return };
        direction.in_flight -= message.len();
        for bytes in [&now.to_le_bytes()[..], &(number as u64).to_le_bytes(), &message] {
            self.digest.write_all(bytes).expect("a hasher takes all");
        }
        self.coverage.count("messages");
        let (from, to) = (direction.from, direction.to);
        if split(&message).is_some_and(|(kind, _)| kind == INSTALLED) {
            self.coverage.count("snapshots installed");
            self.story.tell(now, format!("node {from} has installed a snapshot of node {to}"));
        }
        let channel = direction.channel;
        self.story.detail(now, || format!("node {from} to node {to}: {}", describe(channel, &message)));
        direction.readable.extend(message);
        wakers.extend(direction.reader.take());
        self.touched.push(direction.to);
        // The sender has nothing to do unless it waits for room.
        if let Some(writer) = direction.writer.take() {
            wakers.push(writer);
            self.touched.push(direction.from);
        }
        let next = direction.queue.front().map(|(due, message)| (*due, message.len()));
        if let Some((due, bytes)) = next {
            let due = due.max(now + self.transmission(from, to, bytes));
            self.directions[number].queue[0].0 = due;
            self.schedule(number, due);
        }
    }
}

impl Direction {
    fn new(from: NodeId, to: NodeId, is_back: bool, other: usize) -> Self {
        Self {
            from,
            to,
            is_back,
            other,
            channel: None,
            partial: Vec::new(),
            has_begun: false,
            queue: VecDeque::new(),
            in_flight: 0,
            readable: VecDeque::new(),
            reader: None,
            writer: None,
            end: End::Open,
        }
    }

    /// Whether it carries the answers to appends.
    fn is_acknowledging(&self) -> bool {
        self.is_back && self.channel == Some(APPENDS)
    }

    /// Loses what is on its way.
    fn lose_all(&mut self, coverage: &mut Coverage) {
        if self.is_acknowledging() {
            coverage.add("acknowledgements lost", self.queue.len() as u64);
        }
        self.queue.clear();
        self.in_flight = 0;
    }

    /// Takes the next whole message off what was written.
    fn next_message(&mut self) -> Option<Vec<u8>> {
        let preface = if self.has_begun { 0 } else { PREFACE };
        let head = self.partial.get(preface..preface + HEAD)?;
        let length = u32::from_le_bytes(*head.first_chunk().expect("a head has 8 bytes")) as usize;
        let end = preface + HEAD + length;
        if self.partial.len() < end {
            return None;
        }
        let rest = self.partial.split_off(end);
        let message = std::mem::replace(&mut self.partial, rest);
        self.has_begun = true;
        Some(message)
    }
}

impl Network {
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
}
