//! Heartbeats, as a follower takes them.
//!
//! openraft answers a heartbeat when all that the node has accepted before is on disk. A leader that waits for that takes a slow
//! disk for a lost follower: it believes that it has lost its quorum, and falls silent. But a heartbeat has nothing to be written.
//! So it is answered as soon as Raft has taken it. From then on the node does not vote for others for a while, and the answer says
//! no more than that, and whether this node can call the leader ([`callable`](super::callable)).

use std::future::pending;
use std::io;

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult};

use super::append::checked;
use super::directory::Directory;
use super::frame::{FrameWriter, invalid, unexpected};
use super::link::Incoming;
use super::message::{APPEND, APPENDED, put_appended};
use crate::applied::state_machine::Raft;
use crate::consensus::Consensus;
use crate::storage::log_store::{HANGS, LogStore};

/// Receives heartbeats, one at a time.
pub(super) async fn receive(
    raft: &Raft,
    log: &LogStore,
    directory: &Directory,
    mut incoming: Incoming,
    mut writer: FrameWriter,
) -> io::Result<()> {
    let leader = incoming.caller();
    while let Some((kind, body)) = incoming.next().await? {
        if kind != APPEND {
            return Err(unexpected(kind, "a heartbeat"));
        }
        let request = checked(&incoming, log, body)?;
        // The answer would say that they are on disk.
        if !request.entries.is_empty() {
            return Err(invalid("a heartbeat with entries"));
        }
        let answer = taken(raft, log, request).await?;
        if answer.is_ok() {
            directory.note_followed(leader);
        }
        writer.put(APPENDED, |out| {
            put_appended(out, &answer);
            directory.callable.put(out, leader);
        });
        writer.flush().await?;
    }
    Ok(())
}

/// The answer: Raft's own, or that it has the leader's vote and entry, whichever is first. While the disk hangs, Raft's own: this
/// node helps nobody to commit.
async fn taken(
    raft: &Raft,
    log: &LogStore,
    heartbeat: AppendEntriesRequest<Consensus>,
) -> io::Result<StreamAppendResult<Consensus>> {
    let (vote, prev) = (heartbeat.vote, heartbeat.prev_log_id);
    let answer = raft.append_entries(heartbeat);
    // Raft takes what it gets in turn, so this comes after the heartbeat.
    let follows = async {
        let follows = raft.with_raft_state(move |state| {
            let has_prev = prev.is_none_or(|prev| state.log_ids.get(prev.index()) == Some(prev));
            *state.vote_ref() == vote && has_prev
        });
        if !matches!(follows.await, Ok(true)) || log.flushing() > HANGS {
            pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        answer = answer => match (answer.map_err(io::Error::other)?, prev) {
            (AppendEntriesResponse::HigherVote(vote), _) => Ok(Err(StreamAppendError::HigherVote(vote))),
            (AppendEntriesResponse::Conflict, Some(prev)) => Ok(Err(StreamAppendError::Conflict(prev))),
            _ => Ok(Ok(prev)),
        },
        () = follows => Ok(Ok(prev)),
    }
}
