//! What a node remembers of the processes of the members: which it met and refused, to find copies of a data directory, and where they
//! are.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::consensus::{LogId, NodeId};
use crate::storage::starts::Start;

/// A node, and its data directory.
pub(super) type Process = (NodeId, Uuid);

/// Entries from one index to another.
pub(super) type Run = RangeInclusive<u64>;

/// What a node knows of the processes of one member.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The newest start of a data directory, and when it was heard.
    pub(super) met: Option<(Uuid, Start)>,
    pub(super) heard: Option<Instant>,
    pub(super) whereabouts: Whereabouts,
    /// Why a process of this id was refused last, and when, until one is welcome.
    pub(super) refused: Option<(String, Instant)>,
    pub(super) sent: Option<Sent>,
    /// The data directory that answered last, or was asked first, and when.
    pub(super) answered: Option<(Uuid, Instant)>,
    pub(super) undelivered: Option<Undelivered>,
    /// Why the last snapshot from it was not received.
    pub(super) unreceived: Option<String>,
    /// A data directory that has lost something, and what.
    pub(super) lost: Option<(Uuid, String)>,
}

impl Known {
    /// Whether the process that was met last was heard within this time.
    pub(super) fn is_heard(&self, within: Duration) -> bool {
        self.heard.is_some_and(|heard| heard.elapsed() < within)
    }
}

/// Where a member is found.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    /// The address given by an operator who adds it.
    pub(super) given: Option<String>,
    /// Where it answered last, and where it was recorded then.
    pub(super) answered_at: Option<(String, Option<String>)>,
    /// Where it last did not answer.
    pub(super) failed_at: Option<String>,
    /// What it says of that while it does not answer where it is called.
    pub(super) claim: Option<Claim>,
    /// Where it called this node last.
    pub(super) called: Option<String>,
}

/// A process says that it is a member, and where it listens.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) by: Uuid,
    pub(super) start: Start,
    pub(super) address: String,
    pub(super) at: Instant,
}

/// What this node, as the leader of a term, has sent to a data directory.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) to: Uuid,
    pub(super) term: u64,
    /// The last run of entries without a gap, as entries or in a snapshot that was installed.
    pub(super) run: Run,
    /// The last entry that it acknowledged of such a run.
    pub(super) acknowledged: Option<LogId>,
}

impl Sent {
    /// What is known once `run` was sent, too.
    pub(super) fn after(before: Option<Self>, to: Uuid, term: u64, run: Run) -> Self {
        let before = before.filter(|sent| (sent.to, sent.term) == (to, term));
        let acknowledged = before.as_ref().and_then(|sent| sent.acknowledged);
        let is_joined = |before: &Run| *run.start() <= *before.end() + 1 && *before.start() <= *run.end() + 1;
        let run = match before.map(|sent| sent.run).filter(is_joined) {
            Some(before) => *before.start().min(run.start())..=*before.end().max(run.end()),
            None => run,
        };
        Self { to, term, run, acknowledged }
    }
}

/// The snapshot that this node, as the leader of a term, last failed to deliver to a data directory.
#[derive(Debug)]
pub(super) struct Undelivered {
    pub(super) to: Uuid,
    pub(super) term: u64,
    /// The last entry that it covers.
    pub(super) covers: Option<LogId>,
    pub(super) reason: String,
    /// The pause after it, and when that ends.
    pub(super) pause: Duration,
    pub(super) next: Instant,
}
