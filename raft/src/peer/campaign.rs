//! Nodes that campaign at the same time.
//!
//! Each of two nodes that hear no leader may ask for pre-votes before it hears the other: over long links, most do. If both
//! granted, both would vote for themselves, and neither would be elected. So the node whose log is longer refuses the other; if
//! the logs are alike, the node with the larger id does.
//!
//! It does so only in every other turn of its own: the other may be the only one that enough nodes hear.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::message::Ballot;

/// How long a turn lasts: until a pre-vote and then a vote are answered over round trips of 500 ms, with connections that have to be
/// made.
const TURN: Duration = Duration::from_secs(2);

/// How this node campaigns.
#[derive(Default)]
pub(super) struct Campaign(Mutex<Option<Turn>>);

struct Turn {
    began: Instant,
    /// What it asks with.
    ballot: Ballot,
    yields: bool,
}

impl Campaign {
    /// This node asks another for its pre-vote.
    pub(super) fn ask(&self, ballot: &Ballot) {
        let mut turn = self.0.lock().expect("no panic while a turn is locked");
        let (began, yields) = match &*turn {
            Some(turn) if turn.began.elapsed() < TURN => (turn.began, turn.yields),
            Some(turn) if turn.began.elapsed() < 2 * TURN => (Instant::now(), !turn.yields),
            _ => (Instant::now(), false),
        };
        *turn = Some(Turn { began, ballot: ballot.clone(), yields });
    }

    /// Whether this node, which may campaign itself, refuses its pre-vote to a rival.
    pub(super) fn refuses(&self, rival: &Ballot) -> bool {
        let turn = self.0.lock().expect("no panic while a turn is locked");
        let is_on = |turn: &&Turn| !turn.yields && turn.began.elapsed() < TURN;
        turn.as_ref().filter(is_on).is_some_and(|turn| turn.ballot.outranks(rival))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::consensus::{Vote, log_id};

    /// What the node asks with, whose log ends there.
    fn ballot(term: u64, node: u64, last: u64) -> Ballot {
        openraft::raft::VoteRequest::new(Vote::new(term, node), Some(log_id(1, last))).into()
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_rivals_one_refuses_the_other_in_every_other_turn() {
        let (two, three) = (Campaign::default(), Campaign::default());
        let (from_two, from_three) = (ballot(2, 2, 7), ballot(2, 3, 7));
        assert!(!three.refuses(&from_two));
        for refuses in [true, false, true] {
            // Each asks again and again.
            for _ in 0..4 {
                two.ask(&from_two);
                three.ask(&from_three);
                assert!(!two.refuses(&from_three));
                assert_eq!(three.refuses(&from_two), refuses);
                // The longer log, or the later term, comes first.
                assert!(!three.refuses(&ballot(2, 2, 8)));
                assert!(!three.refuses(&ballot(3, 2, 7)));
                advance(TURN / 4).await;
            }
            assert!(!three.refuses(&from_two));
        }
        // Another campaign.
        three.ask(&from_three);
        assert!(!three.refuses(&from_two));
        advance(2 * TURN).await;
        three.ask(&from_three);
        assert!(three.refuses(&from_two));
    }
}
