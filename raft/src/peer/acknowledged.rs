//! What a node acknowledged, asked for once more before it is sent a snapshot.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use openraft::raft::{AppendEntriesRequest, StreamAppendError};

use super::append::AppendLink;
use super::directory::{Directory, Target};
use super::frame::closed;
use super::snapshot::Undeliverable;
use crate::consensus::Vote;

/// Asks a node for the last entry that it acknowledged to this leader; an error if it lacks that. A snapshot that covers the entry
/// would hide what else the node has lost. Gives the node's vote if that is higher than this leader's.
pub(super) async fn ask_for_acknowledged(
    directory: &Arc<Directory>,
    target: Target,
    vote: Vote,
) -> Result<Option<Vote>, Undeliverable> {
    let acknowledged =
        target.incarnation.and_then(|it| directory.acknowledged((target.to, it), vote.leader_id.term));
    let Some(last) = acknowledged else { return Ok(None) };
    let mut link = AppendLink::for_one(Arc::clone(directory), target);
    let request =
        AppendEntriesRequest { vote, prev_log_id: Some(last), entries: Vec::new(), leader_commit: None };
    let sent = link.stream(stream::iter([request])).await;
    let mut answers = pin!(sent.map_err(|error| Undeliverable::Unreached(io::Error::other(error)))?);
    match answers.next().await {
        Some(answer) => match answer.map_err(io::Error::other)? {
            Err(StreamAppendError::HigherVote(vote)) => Ok(Some(vote)),
            _ => Ok(None),
        },
        None => Err(closed("no answer to an append").into()),
    }
}
