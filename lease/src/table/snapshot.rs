use std::borrow::Cow;
use std::io;

use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Ttl};
use serde::{Deserialize, Serialize};

use crate::Attachment;
use crate::requests::Requests;
use crate::store::End;

/// The format of the bytes after this number. A change to [`Record`], or to a type of `ringfence_wire` in it, makes a new
/// one.
pub(super) const FORMAT: u32 = 3;

/// The oldest format that can be read: the formats up to [`FORMAT`] have the same records, or fewer kinds of them.
pub(super) const OLDEST_FORMAT: u32 = 2;

/// A snapshot is the format number in four bytes, little-endian, and then these records: the head, the leases by id (each
/// followed by its requests), the ended ids from the oldest on, the ready keys by place, and the tail.
///
/// A record has nothing that follows from others (queues, fences, deadlines in order) and nothing that depends on how the
/// table came about: equal tables give equal bytes. Writing borrows from the table.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record<'a> {
    Head {
        at_ms: u64,
        first_revision: Revision,
        revision: Revision,
    },
    Lease(LeaseRecord<'a>),
    Ended {
        ended_ms: u64,
        lease_id: LeaseId,
        end: End,
    },
    /// The last record. Without it the snapshot is truncated.
    Tail {
        leases: u64,
        ended: u64,
    },
    /// The waiter at `place` fits `key` and is not admitted there yet. Since format 3.
    Ready {
        place: Revision,
        key: Cow<'a, Key>,
    },
    /// The requests of the waiter before, if there are several. Since format 3.
    Requests(Cow<'a, Requests>),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRecord<'a> {
    pub(crate) lease_id: LeaseId,
    pub(crate) keys: Cow<'a, [(Key, Mode)]>,
    pub(crate) ttl: Ttl,
    pub(crate) holder: Option<Cow<'a, Holder>>,
    pub(crate) metadata: Cow<'a, Metadata>,
    /// For a waiter, that of its only request.
    pub(crate) attachment: Option<Attachment>,
    pub(crate) number: Revision,
    pub(crate) deadline_ms: u64,
    /// `None` for a live lease.
    pub(crate) waits_since_ms: Option<u64>,
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Another version of the program wrote it.
    #[error("the snapshot has format {found}, and this version reads formats {OLDEST_FORMAT} to {FORMAT}")]
    UnknownFormat {
        /// The format number at its start.
        found: u32,
    },
    /// The bytes end too early or do not form records.
    #[error("the snapshot is damaged: {0}")]
    Malformed(&'static str),
    /// The records contradict each other.
    #[error("the snapshot contradicts itself: {0}")]
    Inconsistent(&'static str),
    /// The source failed.
    #[error("the snapshot cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// Writes are collected up to this size.
const BUFFER_BYTES: usize = 64 << 10;

/// Writes the format number and the records.
pub(crate) fn write_records<'a>(
    records: impl IntoIterator<Item = Record<'a>>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut buffer = FORMAT.to_le_bytes().to_vec();
    for record in records {
        buffer = postcard::to_extend(&record, buffer)
            .expect("a vector takes all bytes, and every sequence knows its length");
        if buffer.len() >= BUFFER_BYTES {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)
}
