//! Turns, and what is refused.

use std::cell::Cell;

use tokio::sync::oneshot;

use super::*;
use crate::propose::proposal::Proposed;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

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

    /// Takes all requests that cost at most this together, or else the first one. Returns the asker of each.
    fn take(&mut self, most: usize) -> Vec<u64> {
        let mut sum = 0;
        let mut taken = Vec::new();
        while let Some(next) = self.queue.next_if(Proposal::bytes, |_, cost| {
            let fits = sum == 0 || sum + cost <= most;
            sum += cost;
            fits
        }) {
            taken.push(next.asker.number());
        }
        taken
    }

    fn refused(&mut self) -> usize {
        self.answers.iter_mut().filter_map(|answer| answer.try_recv().ok()).filter(Result::is_err).count()
    }
}

/// All askers once waited for the whole 64 MiB that one had sent.
#[tokio::test]
async fn one_who_asks_for_little_waits_for_little() {
    let mut waiting = Waiting::new();
    for many in 2..=4 {
        waiting.add(many, 150, 34 * KIB);
    }
    waiting.add(9, 1, 100);
    let taken = waiting.take(MIB);
    assert_eq!(taken.len(), 31);
    assert_eq!(taken[0], 9);
    let of = |asker| taken.iter().filter(|one| **one == asker).count();
    assert_eq!([of(2), of(3), of(4)], [10, 10, 10]);
    waiting.add(9, 1, 100);
    assert_eq!(waiting.take(100), [9]);
}

/// A large request of each asker once went first, as its cost was counted only afterwards.
#[tokio::test]
async fn a_small_request_does_not_wait_for_a_large_one_of_each() {
    let mut waiting = Waiting::new();
    for many in 2..12 {
        waiting.add(many, 2, MIB);
    }
    for round in 0..20 {
        waiting.add(99, 3, 600);
        assert_eq!(waiting.take(2 * KIB), [99; 3], "{round}");
        assert_ne!(waiting.take(KIB), [99]);
    }
}

/// Time once passed too slowly while small requests came and went: an asker that came after that was served alone for long.
#[tokio::test]
async fn whoever_comes_late_is_served_beside_who_was_there() {
    let mut waiting = Waiting::new();
    waiting.add(2, 4, MIB);
    for _ in 0..100 {
        waiting.add(3, 1, KIB);
        waiting.add(2, 1, MIB);
        assert_eq!(waiting.take(2 * MIB), [3, 2]);
    }
    waiting.add(4, 10, MIB);
    let taken: Vec<_> = (0..6).flat_map(|_| waiting.take(1)).collect();
    let of = |asker| taken.iter().filter(|one| **one == asker).count();
    assert!(of(2) >= 2 && of(4) >= 3, "{taken:?}");
}

/// By what requests cost, not by their number.
#[tokio::test]
async fn turns_are_as_long_for_those_with_large_requests() {
    let mut waiting = Waiting::new();
    waiting.add(2, 4, MIB);
    waiting.add(3, 5_000, KIB);
    let taken = waiting.take(6 * MIB);
    let large: Vec<_> = (0..taken.len()).filter(|place| taken[*place] == 2).collect();
    assert_eq!(large, [1_023, 2_048, 3_073]);
}

/// Nor does it help to ask for one after the other.
#[tokio::test]
async fn whoever_comes_again_has_had_what_it_got() {
    let mut waiting = Waiting::new();
    waiting.add(2, 2, MIB);
    let mut small = 0;
    loop {
        waiting.add(3, 1, KIB);
        match waiting.take(1)[..] {
            [3] => small += 1,
            _ => break,
        }
    }
    assert_eq!(small, 1_023);
}

#[tokio::test]
async fn whoever_has_too_much_is_refused_and_nobody_else() {
    let mut waiting = Waiting::new();
    waiting.add(2, 100, MIB);
    assert_eq!(waiting.refused(), 76, "one alone gets half of 48 MiB");
    waiting.add(3, 10, MIB);
    assert_eq!(waiting.refused(), 0);
    waiting.add(2, 1, MIB);
    assert_eq!(waiting.refused(), 1);
    waiting.take(8 * MIB);
    waiting.add(2, 1, MIB);
    assert_eq!(waiting.refused(), 0);
}

/// When eighteen askers asked for as much as they could, everybody was once refused, even this node itself.
#[tokio::test]
async fn whoever_has_little_is_not_refused_for_what_others_have() {
    for (count, bytes) in [(MAX_QUEUED / 4 * 3, 1), (100, 100 * KIB)] {
        let mut waiting = Waiting::new();
        for asker in 100..130 {
            waiting.add(asker, count, bytes);
        }
        assert!(waiting.refused() > 0);
        waiting.add(2, REQUESTS.little, BYTES.little / REQUESTS.little);
        waiting.add(Asker::NODE.number(), 100, KIB);
        assert_eq!(waiting.refused(), 0);
        waiting.add(2, 1, 1);
        assert_eq!(waiting.refused(), 1);
    }
}

/// Only 128 messages were once received at a time. The others were first come, first served.
#[tokio::test]
async fn all_that_was_sent_is_received_at_once() {
    let mut waiting = Waiting::new();
    for _ in 0..3_000 {
        let (proposal, answer) = Proposal::of(Asker::from_number(2), 7);
        waiting.answers.push(answer);
        assert!(waiting.sender.send(vec![proposal]).is_ok());
    }
    waiting.queue.receive();
    assert_eq!(waiting.queue.requests, 3_000);
}

/// After a stall, abandoned requests were once committed before all others.
#[tokio::test]
async fn abandoned_requests_are_skipped_and_leave_the_queue() {
    let mut waiting = Waiting::new();
    waiting.add(2, 3, 7);
    waiting.add(3, 1, 7);
    drop(waiting.answers.drain(1..3));
    let costed = Cell::new(0);
    let mut next = || {
        let cost = |proposal: &Proposal| {
            costed.set(costed.get() + 1);
            proposal.bytes()
        };
        waiting.queue.next_if(cost, |_, _| true).map(|next| next.asker.number())
    };
    assert_eq!([next(), next(), next()], [Some(2), Some(3), None]);
    assert_eq!(costed.get(), 2, "to look up what the others cost keeps the table from all");
    assert_eq!((waiting.queue.requests, waiting.queue.bytes), (0, 0));
    assert!(waiting.queue.order.is_empty() && waiting.queue.places.is_empty());
}

/// Askers that have gone and never come back are not kept.
#[tokio::test]
async fn many_who_ask_once_leave_nothing() {
    let mut waiting = Waiting::new();
    for asker in 2..10_000 {
        waiting.add(asker, 1, 100 * KIB);
        waiting.take(MIB);
    }
    assert!(waiting.queue.places.is_empty() && waiting.queue.all.len() <= 2);
    for asker in 2..10_000 {
        waiting.add(1, 1, 34 * KIB);
        waiting.add(asker, 1, 100);
        waiting.take(1);
    }
    let Queue { all, places, order, ahead, .. } = &waiting.queue;
    assert_eq!(places.len(), order.len() + ahead.len());
    assert!(all.len() < 1_000, "{}", all.len());
}
