//! A command that only the next rules have is refused until they are raised, whichever node is asked and whichever leads.

use std::time::Duration;

use anyhow::Context;
use ringfence_harness::{RawAnswer, until};
use ringfence_wire::{Problem, ProblemKind};

use super::scene::{Age, Scene};

/// What `patches/next-rules.patch` makes the command of. To other programs it is the release of a lease that nobody acquired.
const NEXT: &str = "/v1/leases/00000000-0000-0000-0000-000000040000";
/// Bounds one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bounds the time until a node has an answer of the cluster.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// What became of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The rules do not have it yet.
    Refused,
    Done,
    /// The program knows no such command.
    Unknown,
}

impl Scene<'_> {
    /// Has every new node propose it, while it must be refused. Returns the nodes that did refuse it.
    pub(super) async fn propose_too_early(&self) -> anyhow::Result<Vec<u64>> {
        let mut refused = Vec::new();
        for id in (1..=self.field.nodes()).filter(|id| self.age(*id) == Age::New) {
            match self.propose_next(id).await? {
                Next::Refused => refused.push(id),
                Next::Done => self.field.found(id, "it did what the rules in use do not have".to_owned()),
                Next::Unknown => {}
            }
        }
        Ok(refused)
    }

    /// Has every node propose it, now that it must be done.
    pub(super) async fn propose_raised(&self) -> anyhow::Result<()> {
        for id in 1..=self.field.nodes() {
            if self.propose_next(id).await? == Next::Refused {
                self.field.found(id, "it refused what the rules in use have".to_owned());
            }
        }
        Ok(())
    }

    async fn propose_next(&self, id: u64) -> anyhow::Result<Next> {
        let client = self.field.client(id).within(PATIENCE);
        let propose = async || match client.raw("DELETE", NEXT, "").await {
            Ok(answer) => outcome(&answer),
            Err(_) => None,
        };
        let next = until(ANSWERED_WITHIN, "the outcome of the command of newer rules", propose).await;
        next.with_context(|| format!("node {id}"))
    }
}

/// `None`: nobody led, or that is not known.
fn outcome(answer: &RawAnswer) -> Option<Next> {
    if answer.status == 204 {
        return Some(Next::Unknown);
    }
    let problem: Problem = serde_json::from_slice(&answer.body).ok()?;
    match problem.kind {
        ProblemKind::NotLive => Some(Next::Done),
        ProblemKind::Unavailable if problem.detail.contains("ringfence cluster upgrade") => {
            Some(Next::Refused)
        }
        _ => None,
    }
}
