use std::borrow::Cow;
use std::io;

use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Ttl};
use serde::{Deserialize, Serialize};

use crate::Attachment;
use crate::ended::End;
use crate::lease::Lease;
use crate::puts::Puts;

/// The format of the bytes that follow this number. A change of [`Record`], or of a word of `ringfence_wire` in it,
/// is a new one.
pub(super) const FORMAT: u32 = 3;

/// The oldest format that is read yet: those up to [`FORMAT`] have the same records, or fewer kinds of them.
pub(super) const OLDEST_FORMAT: u32 = 2;

/// A snapshot is the format number in four bytes, the least significant first, and then these records, one after
/// the other: the head, the leases by id and what belongs to each, the ended ids from the oldest on, the lags by place, the tail. Nothing stands in them that
/// follows from the rest (lines, fences, orders of ending), and nothing depends on how the table came to be what it
/// is: equal tables give equal bytes. What is long in them is borrowed from the table that is written; what was read
/// owns it.
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
    /// The last record; without it the snapshot was cut short.
    Tail {
        leases: u64,
        ended: u64,
    },
    /// The waiter at `place` fits `key`, and was not passed there yet: see [`crate::line::Line`]. New in format 3.
    Lag {
        place: Revision,
        key: Cow<'a, Key>,
    },
    /// The acquires that stand for the waiter before, where they are several. New in format 3.
    Puts(Cow<'a, Puts>),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRecord<'a> {
    pub(crate) lease_id: LeaseId,
    pub(crate) claims: Cow<'a, [(Key, Mode)]>,
    pub(crate) ttl: Ttl,
    pub(crate) holder: Option<Cow<'a, Holder>>,
    pub(crate) metadata: Cow<'a, Metadata>,
    /// Of a waiter: of the only acquire that stands for it.
    pub(crate) attachment: Option<Attachment>,
    pub(crate) number: Revision,
    pub(crate) deadline_ms: u64,
    /// Since when it waits; `None` if it is live.
    pub(crate) waits_since_ms: Option<u64>,
}

/// So many bytes are collected before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// Writes the format number and these records.
pub(crate) fn write_records<'a>(
    records: impl IntoIterator<Item = Record<'a>>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut buffer = FORMAT.to_le_bytes().to_vec();
    for record in records {
        buffer = postcard::to_extend(&record, buffer)
            .expect("memory takes all bytes, and every sequence knows its length");
        if buffer.len() >= BUFFER_BYTES {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)
}

impl<'a> From<&'a Lease> for LeaseRecord<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self {
            lease_id: lease.id,
            claims: Cow::Borrowed(&lease.claims),
            ttl: lease.ttl,
            holder: lease.holder.as_ref().map(Cow::Borrowed),
            metadata: lease.metadata().map(Cow::Borrowed).unwrap_or_default(),
            attachment: lease.wait().map_or(lease.attachment(), |wait| wait.puts.sole(0)),
            number: lease.number,
            deadline_ms: lease.deadline_ms,
            waits_since_ms: lease.wait().map(|wait| wait.since_ms),
        }
    }
}
