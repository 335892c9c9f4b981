//! Requests that wait to be packed. Askers take turns, however much each of them asks for.
//!
//! - **An asker of little waits little.** The next request is the one that would end first if all askers were served side by side, each at
//!   the same pace (fair queueing). So a small request waits until each other asker got about what this request costs. It may also wait for
//!   one large request whose turn it is, but not for one of each asker.
//! - **An asker of too much is refused, and nobody else** ([`Bound::allows`]).
//! - **The requests of one asker stay in order.** So a release cannot overtake the acquire before it.
//!
//! The clock of this queue counts what each asker would have got by now. A request takes as long as it costs. It begins when it comes, or
//! after the one before it. While requests are taken, the clock goes as fast as each of the askers that share would be served. The end is
//! known only of the first request of each asker, as the table tells what it costs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;

use futures_util::FutureExt;
use ringfence_room::Bound;
use tokio::sync::mpsc;
use tokio::task::unconstrained;

use super::asker::Asker;
use super::proposal::{Failure, MAX_QUEUED, MAX_QUEUED_BYTES, Proposal};

const REQUESTS: Bound = Bound::of(MAX_QUEUED);
const BYTES: Bound = Bound::of(MAX_QUEUED_BYTES);
/// The time that a byte of cost takes. Large, so that something is left of it when many askers share it.
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
    /// When the first request of an asker would end, and the asker's place.
    order: BTreeSet<(u64, usize)>,
    /// The places of askers that had no request before. The end of their first one is not known yet.
    new: VecDeque<usize>,
    /// Askers that have no request, but got more than is due to them by now: when it is due, and their places. Until then, they share.
    ahead: BTreeSet<(u64, usize)>,
    /// The places of all these askers in `all`.
    places: HashMap<Asker, usize>,
    /// Some belong to no asker: those in `free`.
    all: Vec<Own>,
    free: Vec<usize>,
    /// The totals of what was received.
    requests: usize,
    bytes: usize,
}

/// The requests of one asker.
struct Own {
    asker: Asker,
    requests: VecDeque<Proposal>,
    bytes: usize,
    /// What the first one costs, if its end is known.
    cost: usize,
    /// When the last one that was taken would end.
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

    /// Receives all that was sent: what stays behind would be first come, first served.
    pub(super) fn receive(&mut self) {
        for _ in 0..MAX_QUEUED / AT_ONCE {
            let mut received = mem::take(&mut self.received);
            // `try_recv` would park this thread while another one is sending. With the budget of a task, the channel would seem empty
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
        // Most requests that come together are of one asker.
        let mut last = None;
        for proposal in message {
            let (asker, bytes) = (proposal.asker, proposal.bytes());
            let place =
                last.filter(|(of, _)| *of == asker).map_or_else(|| self.place(asker), |(_, place)| place);
            last = Some((asker, place));
            let own = &mut self.all[place];
            let has_room = REQUESTS.allows(self.requests + 1, own.requests.len() + 1)
                && BYTES.allows(self.bytes + bytes, own.bytes + bytes);
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

    /// The place of an asker. One without a place has got nothing so far.
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

    /// The next request, if there is one and `fits` says so of it and of its cost. Skips requests that nobody waits for any more: a
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
        // Nobody waits, so nobody got anything at the expense of another.
        self.forget_until(u64::MAX);
        self.now = 0;
        None
    }

    /// Lets time pass while a request is taken. Askers of `ahead` leave once they are not ahead any more. From then on, the others are
    /// served faster: otherwise, an asker that comes anew would begin far behind them.
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

    /// Forgets the askers of `ahead` to which all that they got is due by this time.
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
    /// When its first request would end if it `begins` then; `None` if there is none.
    fn next_until(&mut self, begins: u64, cost: impl Fn(&Proposal) -> usize) -> Option<u64> {
        let first = self.requests.front()?;
        // A request that nobody waits for is skipped, so the table is not asked for its cost.
        self.cost = if first.is_abandoned() { 0 } else { cost(first) };
        Some(begins + time_of(self.cost))
    }
}

fn time_of(cost: usize) -> u64 {
    cost as u64 * PER_BYTE
}

#[cfg(test)]
mod tests;
