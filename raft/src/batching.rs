//! Batches what other threads ask of the Raft thread, and what it answers.
//!
//! Waking a task on another thread costs a system call, so requests share them. A batcher belongs to one runtime: it gathers
//! the commands and reads that its tasks send until the runtime next looks for what has become ready, and passes them on as one message.

use std::sync::Arc;

use ringfence_lease::Request;
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use crate::propose::proposal::{Failure, Origin, Proposal, Proposed};
use crate::propose::proposer::Proposer;
use crate::reads::{Read, Reads};
use crate::reply::{Answer, Answers, Reply};

/// The most requests in one message.
const MOST_GATHERED: usize = 1_024;

/// The queues of a node, and a batcher for each runtime that asks. Clones share them.
#[derive(Clone)]
pub(crate) struct Batching {
    proposer: Proposer,
    reads: Reads,
    all: Arc<[(Id, Batcher)]>,
}

/// What the tasks of one runtime share. Its own tasks end with it, or with the runtime.
struct Batcher {
    asked: mpsc::UnboundedSender<Asked>,
    answers: Answers,
}

enum Asked {
    Propose(Proposal),
    Read(Reply<Read>),
}

impl Batching {
    /// One batcher for each of `runtimes`. The tasks of others use the queues themselves.
    pub(crate) fn start(runtimes: &[Handle], proposer: Proposer, reads: Reads) -> Self {
        let start = |runtime: &Handle| {
            let (asked, asking) = mpsc::unbounded_channel();
            let (answers, answered) = mpsc::unbounded_channel();
            runtime.spawn(gather(asking, proposer.clone(), reads.clone()));
            runtime.spawn(complete(answered));
            (runtime.id(), Batcher { asked, answers })
        };
        let all = runtimes.iter().map(start).collect();
        Self { proposer, reads, all }
    }

    /// As [`Proposer::propose_of`], without raising the rules.
    pub(crate) async fn propose(&self, origin: Origin, request: Request) -> Proposed {
        let Some(batcher) = self.here() else { return self.proposer.propose_of(origin, None, request).await };
        let (reply, outcomes) = self.reply();
        let proposal = self.proposer.admit(origin, request, reply)?;
        batcher.ask(Asked::Propose(proposal));
        outcomes.await.unwrap_or(Err(Failure::Unknown))
    }

    /// As [`Reads::linearize`].
    pub(crate) async fn linearize(&self) -> Read {
        let Some(batcher) = self.here() else { return self.reads.linearize().await };
        let (reply, read) = self.reply();
        batcher.ask(Asked::Read(reply));
        Reads::answered(read).await
    }

    /// A reply that comes through the batcher of this runtime.
    pub(crate) fn reply<T: Send + 'static>(&self) -> (Reply<T>, oneshot::Receiver<T>) {
        Reply::new(self.here().map(|batcher| batcher.answers.clone()))
    }

    /// The batcher of the runtime that this is called in.
    fn here(&self) -> Option<&Batcher> {
        if self.all.is_empty() {
            return None;
        }
        let here = Handle::current().id();
        self.all.iter().find(|(id, _)| *id == here).map(|(_, batcher)| batcher)
    }
}

impl Batcher {
    /// A batcher whose tasks have ended drops the reply: the caller learns that its outcome is unknown.
    fn ask(&self, asked: Asked) {
        let _ = self.asked.send(asked);
    }
}

/// Passes on what was asked between two looks of the runtime. Its tasks may begin requests a few at a time.
async fn gather(mut asking: mpsc::UnboundedReceiver<Asked>, proposer: Proposer, reads: Reads) {
    let mut asked = Vec::new();
    while asking.recv_many(&mut asked, MOST_GATHERED).await > 0 {
        yield_now().await;
        while asked.len() < MOST_GATHERED
            && let Ok(one) = asking.try_recv()
        {
            asked.push(one);
        }
        let (mut proposals, mut replies) = (Vec::new(), Vec::new());
        for one in asked.drain(..) {
            match one {
                Asked::Propose(proposal) => proposals.push(proposal),
                Asked::Read(reply) => replies.push(reply),
            }
        }
        proposer.send(proposals);
        reads.send(replies);
    }
}

async fn complete(mut answered: mpsc::UnboundedReceiver<Answer>) {
    while let Some(answer) = answered.recv().await {
        answer();
    }
}
