//! Requests that wait to be packed. Those who ask take turns, however much each of them asks for.
//!
//! - **Who asks for little waits little.** The next request is the one that would be done first if all who ask were served side by side, each
//!   at the same pace (fair queueing). So a small request waits for about as much of each of the others as it costs itself, and for a
//!   large one whose turn it is: not for a large one of each.
//! - **Who asks for too much is refused, and nobody else.** One alone may have half of three quarters of the queue, and of several, each as
//!   much as is left for the others. The last quarter is for those who have little here: they are never refused for what others have.
//! - **The requests of one who asks stay in order.** So a release cannot overtake the acquire before it.
//!
//! The time of this clock is what each would have got by now. So a request takes as long as it costs, and begins when it comes, or after the
//! one before it; and while requests are taken, time passes as fast as each of those who share would be served. When a request would be
//! done is known of the first one of each only: what it costs shows in the table.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::unconstrained;

use super::asker::Asker;
use super::proposal::{Failure, MAX_QUEUED, MAX_QUEUED_BYTES, Proposal};

/// What those share who have more than a little here.
const SHARED: usize = MAX_QUEUED / 4 * 3;
const SHARED_BYTES: usize = MAX_QUEUED_BYTES / 4 * 3;
/// So little that others' requests are no reason to refuse more.
const LITTLE: usize = 64;
const LITTLE_BYTES: usize = 64 << 10;
/// The time that a byte of cost takes: many who share it get a part of it each.
const PER_BYTE: u64 = 1 << 10;
/// The most messages that are received at once.
const AT_ONCE: usize = 1_024;
/// For how many requests an empty list keeps its memory.
const MOST_KEPT: usize = 64;

/// Queued requests.
pub(super) struct Queue {
    messages: mpsc::UnboundedReceiver<Vec<Proposal>>,
    /// Empty, with room for messages.
    received: Vec<Vec<Proposal>>,
    now: u64,
    /// The places of those whose first request has a time, and when that would be done.
    order: BTreeSet<(u64, usize)>,
    /// Those of who had no request before.
    new: VecDeque<usize>,
    /// Those of who has no request, and has got more than it would have by now: until then it shares with the others.
    ahead: BTreeSet<(u64, usize)>,
    /// The places of all of these in `all`.
    places: HashMap<Asker, usize>,
    /// Some are nobody's.
    all: Vec<Own>,
    free: Vec<usize>,
    /// The totals of what was received.
    requests: usize,
    bytes: usize,
}

/// The requests of one who asks.
struct Own {
    asker: Asker,
    requests: VecDeque<Proposal>,
    bytes: usize,
    /// What the first one costs, if it has a time.
    cost: usize,
    /// When the last one would be done that was taken.
    until: u64,
}

impl Queue {
    pub(super) fn new(messages: mpsc::UnboundedReceiver<Vec<Proposal>>) -> Self {
        Self {
            messages,
            received: Vec::new(),
            now: 0,
            order: BTreeSet::new(),
            new: VecDeque::new(),
            ahead: BTreeSet::new(),
            places: HashMap::new(),
            all: Vec::new(),
            free: Vec::new(),
            requests: 0,
            bytes: 0,
        }
    }

    /// Waits for a request; `false` if the queue was closed.
    pub(super) async fn wait(&mut self) -> bool {
        while self.requests == 0 {
            let Some(message) = self.messages.recv().await else { return false };
            self.add(message);
        }
        true
    }

    /// Receives what was sent. What stays behind would be first come, first served.
    pub(super) fn receive(&mut self) {
        for _ in 0..MAX_QUEUED / AT_ONCE {
            let mut received = mem::take(&mut self.received);
            // `try_recv` would park this thread while another is in the middle of sending. With a budget, there would seem to be no more
            // after 128 messages.
            let number = unconstrained(self.messages.recv_many(&mut received, AT_ONCE)).now_or_never();
            received.drain(..).for_each(|message| self.add(message));
            self.received = received;
            if number.is_none_or(|number| number < AT_ONCE) {
                break;
            }
        }
    }

    fn add(&mut self, message: Vec<Proposal>) {
        // Most of those that come together are of one who asks.
        let mut last = None;
        for proposal in message {
            let (asker, bytes) = (proposal.asker, proposal.bytes());
            let place =
                last.filter(|(of, _)| *of == asker).map_or_else(|| self.place(asker), |(_, place)| place);
            last = Some((asker, place));
            let own = &mut self.all[place];
            let left = SHARED.saturating_sub(self.requests + 1).max(LITTLE);
            let left_bytes = SHARED_BYTES.saturating_sub(self.bytes + bytes).max(LITTLE_BYTES);
            let has_room = own.requests.len() < left && own.bytes + bytes <= left_bytes;
            if !has_room && asker != Asker::NODE {
                proposal.refuse(Failure::Full);
                continue;
            }
            if own.requests.is_empty() {
                self.ahead.remove(&(own.until, place));
                self.new.push_back(place);
            }
            own.requests.push_back(proposal);
            own.bytes += bytes;
            (self.requests, self.bytes) = (self.requests + 1, self.bytes + bytes);
        }
    }

    /// The place of one who asks. If it had none, it has got nothing.
    fn place(&mut self, asker: Asker) -> usize {
        if let Some(place) = self.places.get(&asker) {
            return *place;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(Own { asker, requests: VecDeque::new(), bytes: 0, cost: 0, until: 0 });
            self.all.len() - 1
        });
        (self.all[place].asker, self.all[place].until) = (asker, 0);
        self.places.insert(asker, place);
        self.ahead.insert((0, place));
        place
    }

    /// The next request, if there is one and it `fits`, as that says by what it costs. Skips requests that nobody waits for any more: a
    /// client whose outcome is unknown repeats its request.
    pub(super) fn next_if(
        &mut self,
        cost: impl Fn(&Proposal) -> usize,
        mut fits: impl FnMut(&Proposal, usize) -> bool,
    ) -> Option<Proposal> {
        while let Some(place) = self.new.pop_front() {
            let begins = self.all[place].until.max(self.now);
            self.order.extend(self.all[place].next_until(begins, &cost).map(|until| (until, place)));
        }
        while let Some(&(until, place)) = self.order.first() {
            let own = &mut self.all[place];
            let first = own.requests.front().expect("whoever is in the order has requests");
            let is_next = !first.is_abandoned();
            if is_next && !fits(first, own.cost) {
                return None;
            }
            let time = time_of(own.cost);
            let first = own.requests.pop_front()?;
            own.bytes -= first.bytes();
            (self.requests, self.bytes) = (self.requests - 1, self.bytes - first.bytes());
            own.until = if is_next { until } else { until - time };
            let begins = own.until;
            let next = own.next_until(begins, &cost);
            self.order.pop_first();
            match next {
                Some(until) => self.order.insert((until, place)),
                None => self.ahead.insert((begins, place)),
            };
            if is_next {
                self.pass(time);
                return Some(first);
            }
        }
        // Nobody has got anything instead of another.
        self.forget_until(u64::MAX);
        self.now = 0;
        None
    }

    /// Time passes while a request is taken. Whoever has nothing more to get leaves meanwhile, and from then on the others are served
    /// faster: who comes anew would else begin far behind them.
    fn pass(&mut self, mut time: u64) {
        while let sharing @ 1.. = (self.order.len() + self.ahead.len()) as u64 {
            let leaves = self.ahead.first().map(|(until, _)| until.saturating_sub(self.now));
            let Some(leaves) = leaves.filter(|leaves| leaves.saturating_mul(sharing) <= time) else {
                self.now += time / sharing;
                break;
            };
            self.now += leaves;
            time -= leaves * sharing;
            self.forget_until(self.now);
        }
    }

    /// Forgets who has no requests, and would have got by then what it got.
    fn forget_until(&mut self, time: u64) {
        while let Some((_, place)) = self.ahead.first().copied().filter(|(until, _)| *until <= time) {
            self.ahead.pop_first();
            self.places.remove(&self.all[place].asker);
            if self.all[place].requests.capacity() > MOST_KEPT {
                self.all[place].requests = VecDeque::new();
            }
            self.free.push(place);
        }
    }
}

impl Own {
    /// When its first request would be done, if there is one that begins then.
    fn next_until(&mut self, begins: u64, cost: impl Fn(&Proposal) -> usize) -> Option<u64> {
        let first = self.requests.front()?;
        // What nobody waits for is skipped: no table is asked what it would cost.
        self.cost = if first.is_abandoned() { 0 } else { cost(first) };
        Some(begins + time_of(self.cost))
    }
}

fn time_of(cost: usize) -> u64 {
    cost as u64 * PER_BYTE
}

#[cfg(test)]
mod tests;
