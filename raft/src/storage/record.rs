//! The records of the log: one for each entry, vote, commit position, truncation and purge, in one ordered stream.
//!
//! The layout is our own: openraft's types may change, the bytes on disk may not. Integers are little endian. A record of
//! an unknown kind makes the log unreadable, by design.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use openraft::vote::RaftLeaderId;
use ringfence_wal::Record;
use serde::{Deserialize, Serialize};

use crate::consensus::{
    EncodedBatch, Entry, LogId, Member, Membership, NodeId, SnapshotMeta, StoredMembership, Vote, log_id,
};

const BLANK: u8 = 1;
const NORMAL: u8 = 2;
const MEMBERSHIP: u8 = 3;
const VOTE: u8 = 4;
const COMMITTED: u8 = 5;
const TRUNCATED: u8 = 6;
const PURGED: u8 = 7;

/// A decoded record of the log.
#[derive(Debug, PartialEq)]
pub(crate) enum LogRecord {
    Entry(Entry),
    Vote(Vote),
    /// Everything up to this entry is committed.
    Committed(LogId),
    /// The entries after this index are void; `None`: all entries.
    Truncated(Option<u64>),
    /// The entries up to this one are in a snapshot.
    Purged(LogId),
}

/// A record, or a peer's message, that this version cannot read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("it is of kind {0}, which this version of ringfence does not know")]
    Kind(u8),
    #[error("it is too short")]
    Short,
    #[error("it is malformed: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("its membership contradicts itself: {0}")]
    Membership(String),
}

impl LogRecord {
    pub(crate) fn read(record: Record) -> Result<Self, RecordError> {
        let mut body = record.payload;
        match record.kind {
            BLANK | NORMAL | MEMBERSHIP => Ok(Self::Entry(read_entry(record.kind, body)?)),
            VOTE => Ok(Self::Vote(read_vote(&mut body)?)),
            COMMITTED => Ok(Self::Committed(read_log_id(&mut body)?)),
            TRUNCATED if body.is_empty() => Ok(Self::Truncated(None)),
            TRUNCATED => Ok(Self::Truncated(Some(body.try_get_u64_le().map_err(|_| RecordError::Short)?))),
            PURGED => Ok(Self::Purged(read_log_id(&mut body)?)),
            kind => Err(RecordError::Kind(kind)),
        }
    }
}

pub(crate) fn vote_record(vote: &Vote) -> Record {
    let mut body = BytesMut::new();
    put_vote(&mut body, vote);
    Record { kind: VOTE, payload: body.freeze() }
}

pub(crate) fn committed_record(id: &LogId) -> Record {
    Record { kind: COMMITTED, payload: log_id_bytes(id) }
}

pub(crate) fn truncated_record(last: Option<u64>) -> Record {
    let payload = last.map_or_else(Bytes::new, |index| Bytes::copy_from_slice(&index.to_le_bytes()));
    Record { kind: TRUNCATED, payload }
}

pub(crate) fn purged_record(id: &LogId) -> Record {
    Record { kind: PURGED, payload: log_id_bytes(id) }
}

pub(crate) fn entry_record(entry: &Entry) -> Record {
    let mut payload = BytesMut::with_capacity(16 + body_len(entry));
    let kind = put_entry(&mut payload, entry);
    Record { kind, payload: payload.freeze() }
}

/// About how many bytes an entry takes in the log and on the wire.
pub(crate) fn body_len(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(batch) => batch.0.len(),
        EntryPayload::Blank => 0,
        EntryPayload::Membership(_) => 256,
    }
}

/// Encodes an entry, and returns its kind.
pub(crate) fn put_entry(out: &mut BytesMut, entry: &Entry) -> u8 {
    put_log_id(out, &entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => BLANK,
        EntryPayload::Normal(batch) => {
            out.extend_from_slice(&batch.0);
            NORMAL
        }
        EntryPayload::Membership(membership) => {
            out.extend_from_slice(&membership_bytes(membership));
            MEMBERSHIP
        }
    }
}

pub(crate) fn read_entry(kind: u8, mut body: Bytes) -> Result<Entry, RecordError> {
    let log_id = read_log_id(&mut body)?;
    let payload = match kind {
        BLANK => EntryPayload::Blank,
        NORMAL => EntryPayload::Normal(EncodedBatch(body)),
        MEMBERSHIP => EntryPayload::Membership(read_membership(&body)?),
        kind => return Err(RecordError::Kind(kind)),
    };
    Ok(Entry { log_id, payload })
}

pub(crate) fn put_log_id(out: &mut BytesMut, id: &LogId) {
    out.put_u64_le(id.committed_leader_id().term);
    out.put_u64_le(id.index());
}

pub(crate) fn read_log_id(body: &mut Bytes) -> Result<LogId, RecordError> {
    let term = body.try_get_u64_le().map_err(|_| RecordError::Short)?;
    let index = body.try_get_u64_le().map_err(|_| RecordError::Short)?;
    Ok(log_id(term, index))
}

pub(crate) fn put_option_log_id(out: &mut BytesMut, id: Option<&LogId>) {
    out.put_u8(u8::from(id.is_some()));
    if let Some(id) = id {
        put_log_id(out, id);
    }
}

pub(crate) fn read_option_log_id(body: &mut Bytes) -> Result<Option<LogId>, RecordError> {
    match body.try_get_u8().map_err(|_| RecordError::Short)? {
        0 => Ok(None),
        _ => Ok(Some(read_log_id(body)?)),
    }
}

fn log_id_bytes(id: &LogId) -> Bytes {
    let mut out = BytesMut::with_capacity(16);
    put_log_id(&mut out, id);
    out.freeze()
}

pub(crate) fn put_vote(out: &mut BytesMut, vote: &Vote) {
    out.put_u64_le(vote.leader_id.term);
    out.put_u64_le(vote.leader_id.voted_for);
    out.put_u8(u8::from(vote.committed));
}

pub(crate) fn read_vote(body: &mut Bytes) -> Result<Vote, RecordError> {
    let term = body.try_get_u64_le().map_err(|_| RecordError::Short)?;
    let node = body.try_get_u64_le().map_err(|_| RecordError::Short)?;
    let committed = body.try_get_u8().map_err(|_| RecordError::Short)? != 0;
    Ok(Vote { leader_id: RaftLeaderId::new(term, node), committed })
}

#[derive(Serialize, Deserialize)]
struct MembershipRecord {
    configs: Vec<BTreeSet<NodeId>>,
    nodes: BTreeMap<NodeId, Member>,
}

pub(crate) fn membership_bytes(membership: &Membership) -> Vec<u8> {
    let record = MembershipRecord {
        configs: membership.get_joint_config().clone(),
        nodes: membership.nodes().map(|(id, member)| (*id, member.clone())).collect(),
    };
    postcard::to_stdvec(&record).expect("a membership contains nothing that postcard cannot encode")
}

pub(crate) fn read_membership(body: &[u8]) -> Result<Membership, RecordError> {
    let record: MembershipRecord = postcard::from_bytes(body)?;
    if record.configs.is_empty() && record.nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(record.configs, record.nodes).map_err(|error| RecordError::Membership(error.to_string()))
}

/// Encodes what a snapshot covers.
pub(crate) fn put_meta(out: &mut BytesMut, meta: &SnapshotMeta) {
    put_option_log_id(out, meta.last_log_id.as_ref());
    put_option_log_id(out, meta.last_membership.log_id().as_ref());
    let membership = membership_bytes(meta.last_membership.membership());
    out.put_u32_le(membership.len() as u32);
    out.extend_from_slice(&membership);
}

pub(crate) fn read_meta(bytes: &mut Bytes) -> Result<SnapshotMeta, RecordError> {
    let last_log_id = read_option_log_id(bytes)?;
    let membership_log_id = read_option_log_id(bytes)?;
    let len = bytes.try_get_u32_le().map_err(|_| RecordError::Short)? as usize;
    if len > bytes.len() {
        return Err(RecordError::Short);
    }
    let membership = read_membership(&bytes.split_to(len))?;
    Ok(SnapshotMeta { last_log_id, last_membership: StoredMembership::new(membership_log_id, membership) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let member = Member { peer: "10.0.0.1:7500".to_owned(), incarnation: uuid::Uuid::from_u128(7) };
        let membership = Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, member)])).unwrap();
        vec![
            Entry { log_id: log_id(1, 0), payload: EntryPayload::Membership(membership) },
            Entry { log_id: log_id(1, 1), payload: EntryPayload::Blank },
            Entry {
                log_id: log_id(3, 2),
                payload: EntryPayload::Normal(EncodedBatch(Bytes::from_static(b"body"))),
            },
        ]
    }

    #[test]
    fn records_read_back_as_they_were_written() {
        for entry in entries() {
            assert_eq!(LogRecord::read(entry_record(&entry)).unwrap(), LogRecord::Entry(entry));
        }
        let vote = Vote { leader_id: RaftLeaderId::new(9, 2), committed: true };
        assert_eq!(LogRecord::read(vote_record(&vote)).unwrap(), LogRecord::Vote(vote));
        assert_eq!(LogRecord::read(purged_record(&log_id(2, 7))).unwrap(), LogRecord::Purged(log_id(2, 7)));
        assert_eq!(LogRecord::read(truncated_record(None)).unwrap(), LogRecord::Truncated(None));
        assert_eq!(LogRecord::read(truncated_record(Some(5))).unwrap(), LogRecord::Truncated(Some(5)));
    }

    /// Old logs must stay readable: these bytes may never change under their kinds.
    #[test]
    fn the_bytes_of_a_record_are_fixed() {
        let golden: Vec<(u8, Vec<u8>)> =
            entries().iter().map(entry_record).map(|r| (r.kind, r.payload.to_vec())).collect();
        let mut membership = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        membership.extend([1, 1, 1, 1, 1, 13]);
        membership.extend(b"10.0.0.1:7500");
        membership.push(16);
        membership.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(golden[0], (3, membership));
        assert_eq!(golden[1], (1, vec![1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]));
        let mut normal = vec![3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        normal.extend(b"body");
        assert_eq!(golden[2], (2, normal));
        let vote = vote_record(&Vote { leader_id: RaftLeaderId::new(9, 2), committed: true });
        assert_eq!(
            (vote.kind, vote.payload.to_vec()),
            (4, vec![9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1])
        );
    }
}
