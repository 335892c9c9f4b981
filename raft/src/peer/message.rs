//! What nodes send each other after the handshake.
//!
//! A call carries a number, which its answer repeats; many can be in flight. Appends and their answers come in order.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use ringfence_lease::{Command, Outcome, Request};
use ringfence_wire::{Key, Revision, Upgraded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::frame::invalid;
use super::handshake::{Channel, Program, get, put};
use crate::applied::witness::Difference;
use crate::consensus::{Consensus, LogId, Member, NodeId, Vote, log_id};
use crate::gate::{Since, is_known};
use crate::storage::record::{
    RecordError, put_entry, put_option_log_id, put_vote, read_entry, read_option_log_id, read_vote,
};

/// A question with one answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Call {
    Vote(Ballot),
    PreVote(Ballot),
    TransferLeader {
        from: VoteWord,
        to: NodeId,
        last: Option<LogIdWord>,
    },
    Propose(Vec<Command>),
    ReadIndex,
    /// Who are you, and do you belong to a cluster?
    Probe,
    /// Belong to this cluster.
    Adopt {
        cluster: Uuid,
    },
    Order(Order),
    /// Does the leader's mirror show these keys at this revision, or later?
    MirrorHas {
        keys: Vec<Key>,
        revision: Revision,
    },
    /// Is this still your vote?
    Confirm {
        vote: VoteWord,
    },
    /// Raise the rules, or only check whether they can be raised. Since frames 2.
    Upgrade {
        to: Option<u8>,
        check: bool,
    },
    /// What did the entries do that you applied after the first `after`, up to the first `upto`? Since frames 2.
    Difference {
        after: u64,
        upto: u64,
    },
    /// As [`Call::Propose`], with who gave the commands. Since frames 3: programs that have it send nothing else to each other.
    ProposeBy(Request),
    /// As [`Call::ProposeBy`], with the calling node's number of the asker, for turns, and with the newest rules that that node supports:
    /// under newer ones, its clients are told that it is not done. Since frames 4: programs that have it send nothing else to each other.
    ProposeOf {
        asker: u64,
        supports: u8,
        request: Request,
    },
}

impl Call {
    /// The only channel that takes it.
    pub(super) fn channel(&self) -> Channel {
        match self {
            Self::Vote(_)
            | Self::PreVote(_)
            | Self::TransferLeader { .. }
            | Self::Confirm { .. }
            | Self::Difference { .. } => Channel::Votes,
            Self::Propose(_)
            | Self::ProposeBy(_)
            | Self::ProposeOf { .. }
            | Self::ReadIndex
            | Self::Order(_)
            | Self::Upgrade { .. } => Channel::Forwards,
            Self::MirrorHas { .. } => Channel::Mirror,
            Self::Probe | Self::Adopt { .. } => Channel::Founding,
        }
    }

    /// The vote of the node that this is from, and the newest entry that it names.
    pub(super) fn speaker(&self) -> Option<(Vote, Option<LogId>)> {
        let (vote, last) = match self {
            Self::Vote(Ballot { vote, last, .. }) | Self::PreVote(Ballot { vote, last, .. }) => (vote, last),
            Self::TransferLeader { from, last, .. } => (from, last),
            _ => return None,
        };
        Some(((*vote).into(), last.map(Into::into)))
    }

    /// The call for this program, which closes the connection if it cannot read it; `None` if it has none.
    pub(super) fn within(self, program: &Program, since: Since) -> Option<Self> {
        match self {
            Self::ProposeBy(request) | Self::ProposeOf { request, .. }
                if !is_known(&request, program.rules.newest, since) =>
            {
                None
            }
            // It supports no rules under which owners make a difference.
            Self::ProposeBy(request) | Self::ProposeOf { request, .. } if program.frames < 3 => {
                Some(Self::Propose(request.commands))
            }
            Self::ProposeOf { request, .. } if program.frames < 4 => Some(Self::ProposeBy(request)),
            Self::Upgrade { .. } | Self::Difference { .. } if program.frames < 2 => None,
            call => Some(call),
        }
    }
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Vote(BallotAnswer),
    TransferLeader {
        refused: Option<String>,
    },
    /// In the order of the commands.
    Outcomes(Vec<Outcome>),
    /// The node does not lead, or cannot be sure to: certainly not done.
    NotDone,
    /// May or may not have been done.
    Unknown,
    ReadPoint {
        last: LogIdWord,
        now_ms: u64,
    },
    Probed(Probed),
    Adopted,
    Refused {
        reason: String,
    },
    /// The order is done.
    Ordered,
    MirrorHas(bool),
    Confirmed(bool),
    Upgraded(Upgraded),
    /// `None`: not known any more, or not applied yet.
    Difference(Option<Difference>),
    /// Certainly not done: the asker has its whole share of the queue. Only to a [`Call::ProposeOf`].
    Full,
}

/// An operator's change of the members or the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    Add {
        id: NodeId,
        peer: String,
    },
    Remove {
        id: NodeId,
    },
    Transfer {
        to: Option<NodeId>,
    },
    /// Remove, whether or not a majority of the remaining voters is heard.
    ForceRemove {
        id: NodeId,
    },
}

/// What a node says of itself to one that founds, or looks for, its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probed {
    pub(crate) incarnation: Uuid,
    pub(crate) cluster: Option<Uuid>,
    /// Whether it has neither voted nor any log entry.
    pub(crate) pristine: bool,
    /// The members that its log names.
    pub(crate) members: Vec<(NodeId, Member)>,
}

/// Up to where the log must be applied for a read, and the leader's clock in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    pub(crate) log_id: LogId,
    pub(crate) now_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteWord {
    term: u64,
    node: NodeId,
    committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogIdWord {
    term: u64,
    index: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ballot {
    vote: VoteWord,
    last: Option<LogIdWord>,
    leadership_transfer: bool,
}

impl Ballot {
    /// Whether the node that asks with this one should be elected before the other. If terms differ, none should.
    pub(crate) fn outranks(&self, other: &Self) -> bool {
        let rank = |ballot: &Self| (ballot.last.map(|last| (last.term, last.index)), ballot.vote.node);
        self.vote.term == other.vote.term && rank(self) > rank(other)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BallotAnswer {
    vote: VoteWord,
    granted: bool,
    last: Option<LogIdWord>,
}

impl From<Vote> for VoteWord {
    fn from(vote: Vote) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
    }
}

impl From<VoteWord> for Vote {
    fn from(word: VoteWord) -> Self {
        Self { leader_id: openraft::vote::RaftLeaderId::new(word.term, word.node), committed: word.committed }
    }
}

impl From<LogId> for LogIdWord {
    fn from(id: LogId) -> Self {
        Self { term: id.committed_leader_id().term, index: id.index() }
    }
}

impl From<LogIdWord> for LogId {
    fn from(word: LogIdWord) -> Self {
        log_id(word.term, word.index)
    }
}

impl From<VoteRequest<Consensus>> for Ballot {
    fn from(request: VoteRequest<Consensus>) -> Self {
        Self {
            vote: request.vote.into(),
            last: request.last_log_id.map(Into::into),
            leadership_transfer: request.leadership_transfer,
        }
    }
}

impl From<Ballot> for VoteRequest<Consensus> {
    fn from(ballot: Ballot) -> Self {
        let mut request = Self::new(ballot.vote.into(), ballot.last.map(Into::into));
        request.leadership_transfer = ballot.leadership_transfer;
        request
    }
}

impl From<VoteResponse<Consensus>> for BallotAnswer {
    fn from(response: VoteResponse<Consensus>) -> Self {
        Self {
            vote: response.vote.into(),
            granted: response.vote_granted,
            last: response.last_log_id.map(Into::into),
        }
    }
}

impl From<BallotAnswer> for VoteResponse<Consensus> {
    fn from(answer: BallotAnswer) -> Self {
        Self {
            vote: answer.vote.into(),
            vote_granted: answer.granted,
            last_log_id: answer.last.map(Into::into),
        }
    }
}

impl From<TransferLeaderRequest<Consensus>> for Call {
    fn from(request: TransferLeaderRequest<Consensus>) -> Self {
        Self::TransferLeader {
            from: (*request.from_leader()).into(),
            to: *request.to_node_id(),
            last: request.last_log_id().copied().map(Into::into),
        }
    }
}

/// The kind of a frame that carries a numbered [`Call`] or [`Answer`].
pub(super) const CALL: u8 = 16;
pub(super) const ANSWER: u8 = 17;
/// The kinds on append and heartbeat channels.
pub(super) const APPEND: u8 = 32;
pub(super) const APPENDED: u8 = 33;
/// An append without entries that announces what is committed; answered only if it is refused.
pub(super) const COMMITTED: u8 = 34;
/// The kinds on a snapshot channel.
pub(super) const SNAPSHOT_BEGIN: u8 = 48;
pub(super) const SNAPSHOT_CHUNK: u8 = 49;
pub(super) const SNAPSHOT_END: u8 = 50;
pub(super) const SNAPSHOT_INSTALLED: u8 = 51;
/// Instead of that, or before the end: why the snapshot is not installed. Older builds close the connection without a word.
pub(super) const SNAPSHOT_REFUSED: u8 = 52;

/// Writes the body of a call or an answer.
pub(super) fn put_numbered(out: &mut BytesMut, number: u64, message: &impl Serialize) {
    out.put_u64_le(number);
    put(out, message);
}

/// Reads the body of a call or an answer.
pub(super) fn get_numbered<T: DeserializeOwned>(mut body: Bytes) -> io::Result<(u64, T)> {
    let number = body.try_get_u64_le().map_err(|_| invalid("a message without a number"))?;
    Ok((number, get(&body)?))
}

/// Writes the body of an append.
pub(super) fn put_append(out: &mut BytesMut, request: &AppendEntriesRequest<Consensus>) {
    put_vote(out, &request.vote);
    put_option_log_id(out, request.prev_log_id.as_ref());
    put_option_log_id(out, request.leader_commit.as_ref());
    for entry in &request.entries {
        let start = out.len();
        out.put_bytes(0, 5);
        let kind = put_entry(out, entry);
        let len = u32::try_from(out.len() - start - 5).expect("an entry is far below 4 GiB");
        out[start] = kind;
        out[start + 1..start + 5].copy_from_slice(&len.to_le_bytes());
    }
}

/// Reads the body of an append.
pub(super) fn read_append(mut body: Bytes) -> Result<AppendEntriesRequest<Consensus>, RecordError> {
    let vote = read_vote(&mut body)?;
    let prev_log_id = read_option_log_id(&mut body)?;
    let leader_commit = read_option_log_id(&mut body)?;
    let mut entries = Vec::new();
    while body.has_remaining() {
        let kind = body.get_u8();
        let len = body.try_get_u32_le().map_err(|_| RecordError::Short)? as usize;
        if len > body.len() {
            return Err(RecordError::Short);
        }
        entries.push(read_entry(kind, body.split_to(len))?);
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

/// Writes the body of the answer to an append.
pub(super) fn put_appended(out: &mut BytesMut, result: &StreamAppendResult<Consensus>) {
    match result {
        Ok(last) => {
            out.put_u8(0);
            put_option_log_id(out, last.as_ref());
        }
        Err(StreamAppendError::Conflict(id)) => {
            out.put_u8(1);
            put_option_log_id(out, Some(id));
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            out.put_u8(2);
            put_vote(out, vote);
        }
    }
}

/// Reads the answer to an append from the front of a body.
pub(super) fn read_appended(body: &mut Bytes) -> Result<StreamAppendResult<Consensus>, RecordError> {
    match body.try_get_u8().map_err(|_| RecordError::Short)? {
        0 => Ok(Ok(read_option_log_id(body)?)),
        1 => {
            let id = read_option_log_id(body)?.ok_or(RecordError::Short)?;
            Ok(Err(StreamAppendError::Conflict(id)))
        }
        2 => Ok(Err(StreamAppendError::HigherVote(read_vote(body)?))),
        kind => Err(RecordError::Kind(kind)),
    }
}

#[cfg(test)]
mod tests;
