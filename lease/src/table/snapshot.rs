use std::borrow::Cow;
use std::io;

use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, PrincipalName, Revision, Ttl};
use serde::{Deserialize, Serialize};

use crate::requests::Requests;
use crate::rules::FIRST;
use crate::store::End;
use crate::{Attachment, UnsupportedRules, Value};

/// The format under the first rules. A change to [`Record`], or to a type of `ringfence_wire` in it, makes new rules, and
/// those have the next format: the number at the start of a snapshot tells its rules, too.
const FORMAT: u32 = 3;

/// The oldest format that can be read: it has fewer kinds of records than [`FORMAT`], and the same rules.
const OLDEST_FORMAT: u32 = 2;

/// The format of a snapshot under `rules`.
fn format_of(rules: u8) -> u32 {
    FORMAT + u32::from(rules - FIRST)
}

/// The rules of a snapshot with this format.
pub(super) fn rules_of(format: u32) -> Result<u8, RestoreError> {
    let unknown = RestoreError::UnknownFormat { found: format };
    match format {
        OLDEST_FORMAT => Ok(FIRST),
        _ => format
            .checked_sub(FORMAT - u32::from(FIRST))
            .and_then(|rules| u8::try_from(rules).ok())
            .ok_or(unknown),
    }
}

/// A snapshot is the format number in four bytes, little-endian, and then these records: the head, what nobody owns, then the
/// name of each owner and what it owns, by name; the ready keys by place, and the tail. What somebody owns, or nobody, are the
/// leases by id (each followed by its requests or its value), and the ended ids from the oldest on.
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
    /// The leases and ended ids that follow are this one's. Since format 4.
    Owner(Cow<'a, PrincipalName>),
    /// The value of the lease before. Since format 6.
    Value(Cow<'a, Value>),
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
    /// It is under rules that the program does not support.
    #[error(transparent)]
    Rules(#[from] UnsupportedRules),
    /// Its format is none.
    #[error("the snapshot has format {found}, which no supported version of ringfence writes")]
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

/// Writes the format number of these rules and the records.
pub(crate) fn write_records<'a>(
    rules: u8,
    records: impl IntoIterator<Item = Record<'a>>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut buffer = format_of(rules).to_le_bytes().to_vec();
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
