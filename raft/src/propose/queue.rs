//! Requests that wait to be packed. Those who ask take turns, however much each of them asks for.
//!
//! - **Who asks for little waits little.** A turn lasts until its requests have cost [`PER_TURN`]. Whoever costs more in one turn gets
//!   none before the others have had as much. So before the first request of somebody, each of the others has a turn at most, or a single
//!   request that costs more.
//! - **Who asks for too much is refused, and nobody else.** One alone may have half of the queue, and of several, each as much as is left
//!   for the others.
//! - **The requests of one who asks stay in order.** So a release cannot overtake the acquire before it.
//!
//! A request costs as much work here as another, however many wait.

use std::collections::{HashMap, VecDeque};

use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::asker::Asker;
use super::proposal::{Failure, MAX_QUEUED, MAX_QUEUED_BYTES, Proposal};

/// What the requests of a turn cost, in bytes of an entry: some twenty of one command on one key each.
const PER_TURN: i64 = 32 << 10;
/// The most messages that are received at once.
const MOST_RECEIVED: usize = 1_024;
/// For how many requests an empty list keeps its memory.
const MOST_KEPT: usize = 64;

/// Queued requests.
pub(super) struct Queue {
    messages: mpsc::UnboundedReceiver<Vec<Proposal>>,
    /// The places of those who have requests here, or cost too much in their last turns, in the order of their next turns.
    order: VecDeque<usize>,
    /// Their places in `all`.
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
    /// What is left of its turn; negative if it has cost more.
    left: i64,
}

impl Queue {
    pub(super) fn new(messages: mpsc::UnboundedReceiver<Vec<Proposal>>) -> Self {
        let (order, places, all, free) = (VecDeque::new(), HashMap::new(), Vec::new(), Vec::new());
        Self { messages, order, places, all, free, requests: 0, bytes: 0 }
    }

    /// Waits for a request; `false` if the queue was closed.
    pub(super) async fn wait(&mut self) -> bool {
        while self.requests == 0 {
            let Some(message) = self.messages.recv().await else { return false };
            self.add(message);
        }
        true
    }

    /// Receives what was sent.
    pub(super) fn receive(&mut self) {
        for _ in 0..MOST_RECEIVED {
            // `try_recv` would park this thread while another is in the middle of sending.
            let Some(Some(message)) = self.messages.recv().now_or_never() else { break };
            self.add(message);
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
            let left = MAX_QUEUED_BYTES.saturating_sub(self.bytes + bytes);
            let left_requests = MAX_QUEUED.saturating_sub(self.requests + 1);
            if own.bytes + bytes > left || own.requests.len() + 1 > left_requests {
                proposal.refuse(Failure::Full);
                continue;
            }
            own.requests.push_back(proposal);
            own.bytes += bytes;
            (self.requests, self.bytes) = (self.requests + 1, self.bytes + bytes);
        }
    }

    /// The place of one who asks, as the last in the order if it has none.
    fn place(&mut self, asker: Asker) -> usize {
        if let Some(place) = self.places.get(&asker) {
            return *place;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(Own { asker, requests: VecDeque::new(), bytes: 0, left: 0 });
            self.all.len() - 1
        });
        (self.all[place].asker, self.all[place].left) = (asker, PER_TURN);
        self.places.insert(asker, place);
        self.order.push_back(place);
        place
    }

    /// The next request, if there is one and it fits, as `fits` says by what it costs. Skips requests that nobody waits for any more: a
    /// client whose outcome is unknown repeats its request.
    pub(super) fn next_if(&mut self, mut fits: impl FnMut(&Proposal) -> Option<usize>) -> Option<Proposal> {
        while self.requests > 0 {
            let place = *self.order.front().expect("whoever has requests is in the order");
            let own = &mut self.all[place];
            if own.left <= 0 {
                own.left += PER_TURN;
                self.order.rotate_left(1);
                continue;
            }
            let Some(first) = own.requests.front() else {
                self.forget_first();
                continue;
            };
            let is_next = !first.is_abandoned();
            if is_next {
                own.left -= i64::try_from(fits(first)?).unwrap_or(i64::MAX);
            }
            let first = own.requests.pop_front()?;
            own.bytes -= first.bytes();
            (self.requests, self.bytes) = (self.requests - 1, self.bytes - first.bytes());
            if is_next {
                return Some(first);
            }
        }
        // Nobody was kept from a turn.
        while !self.order.is_empty() {
            self.forget_first();
        }
        None
    }

    /// Forgets who is first in the order, and has no requests.
    fn forget_first(&mut self) {
        if let Some(place) = self.order.pop_front() {
            self.places.remove(&self.all[place].asker);
            if self.all[place].requests.capacity() > MOST_KEPT {
                self.all[place].requests = VecDeque::new();
            }
            self.free.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::propose::proposal::Proposed;

    const KIB: usize = 1 << 10;

    struct Waiting {
        queue: Queue,
        sender: mpsc::UnboundedSender<Vec<Proposal>>,
        answers: Vec<oneshot::Receiver<Proposed>>,
    }

    impl Waiting {
        fn new() -> Self {
            let (sender, messages) = mpsc::unbounded_channel();
            Self { queue: Queue::new(messages), sender, answers: Vec::new() }
        }

        fn add(&mut self, asker: u64, count: usize, bytes: usize) {
            let (proposals, answers): (Vec<_>, Vec<_>) =
                (0..count).map(|_| Proposal::of(Asker::from_number(asker), bytes)).unzip();
            self.answers.extend(answers);
            assert!(self.sender.send(proposals).is_ok());
            self.queue.receive();
        }

        /// Takes as many as there are and cost at most this together: who asked for each.
        fn take(&mut self, most: usize) -> Vec<u64> {
            let mut cost = 0;
            let mut taken = Vec::new();
            while let Some(next) = self.queue.next_if(|next| {
                cost += next.bytes();
                (cost <= most).then(|| next.bytes())
            }) {
                taken.push(next.asker.number());
            }
            taken
        }

        fn refused(&mut self) -> usize {
            self.answers.iter_mut().filter_map(|answer| answer.try_recv().ok()).filter(Result::is_err).count()
        }
    }

    /// One who sent 64 MiB once had all others wait for all of it.
    #[tokio::test]
    async fn one_who_asks_for_little_waits_for_no_more_than_a_turn_of_each() {
        let mut waiting = Waiting::new();
        for many in 1..=3 {
            waiting.add(many, 200, 34 * KIB);
        }
        waiting.add(9, 1, 100);
        let taken = waiting.take(1 << 20);
        assert_eq!(taken.len(), 31);
        assert_eq!(taken.iter().position(|asker| *asker == 9), Some(3), "{taken:?}");
        let of = |asker| taken.iter().filter(|one| **one == asker).count();
        assert_eq!([of(1), of(2), of(3)], [10, 10, 10]);
        waiting.add(9, 1, 100);
        assert!(waiting.take(256 * KIB).contains(&9));
    }

    /// By what requests cost, not by their number.
    #[tokio::test]
    async fn turns_are_as_long_for_those_with_large_requests() {
        let mut waiting = Waiting::new();
        waiting.add(1, 4, 1 << 20);
        waiting.add(2, 5_000, KIB);
        let taken = waiting.take(6 << 20);
        let mut small = 0;
        for asker in &taken {
            match asker {
                1 => small = 0,
                _ => small += 1,
            }
            assert!(small <= 1_024 + 32, "{small}");
        }
        assert!((2..=4).contains(&taken.iter().filter(|asker| **asker == 1).count()), "{taken:?}");
    }

    #[tokio::test]
    async fn whoever_has_too_much_is_refused_and_nobody_else() {
        let mut waiting = Waiting::new();
        waiting.add(1, 100, 1 << 20);
        assert_eq!(waiting.refused(), 68, "one alone gets half of 64 MiB");
        waiting.add(2, 10, 1 << 20);
        assert_eq!(waiting.refused(), 0);
        waiting.add(1, 1, 1 << 20);
        assert_eq!(waiting.refused(), 1);
        waiting.take(8 << 20);
        waiting.add(1, 1, 1 << 20);
        assert_eq!(waiting.refused(), 0);
        for asker in 3..6 {
            waiting.add(asker, MAX_QUEUED, 1);
        }
        let requests = 2 * MAX_QUEUED + MAX_QUEUED - waiting.queue.requests;
        assert!(waiting.refused() >= requests - MAX_QUEUED / 2, "{requests}");
        waiting.add(7, 1, 1);
        assert_eq!(waiting.refused(), 0);
    }

    /// After a stall, abandoned requests were once committed before all others.
    #[tokio::test]
    async fn abandoned_requests_are_skipped_and_leave_the_queue() {
        let mut waiting = Waiting::new();
        waiting.add(1, 3, 7);
        waiting.add(2, 1, 7);
        drop(waiting.answers.drain(1..3));
        assert_eq!(waiting.take(1_000), [1, 2]);
        assert_eq!((waiting.queue.requests, waiting.queue.bytes), (0, 0));
        assert!(waiting.queue.order.is_empty() && waiting.queue.places.is_empty());
    }

    /// Those who have gone once and never come back are not kept.
    #[tokio::test]
    async fn many_who_ask_once_leave_nothing() {
        let mut waiting = Waiting::new();
        for asker in 0..10_000 {
            waiting.add(asker, 1, 100 * KIB);
            waiting.take(1 << 20);
        }
        assert!(
            waiting.queue.places.is_empty() && waiting.queue.all.len() <= 2,
            "{}",
            waiting.queue.all.len()
        );
    }
}
