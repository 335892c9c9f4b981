use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use ringfence_wire::{Metadata, RulesRange};

use super::LeaseTable;
use super::snapshot::RestoreError::{self, Inconsistent, Malformed, Unreadable};
use super::snapshot::{LeaseRecord, Record, rules_of};
use crate::UnsupportedRules;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::limits::REVISION_END;
use crate::rules::{OWNERS, VALUES};
use crate::store::{EndedLease, Loader};

const HEAD: RestoreError = Malformed("its head is not its first record and its only one");

impl LeaseTable {
    /// The table that [`Self::snapshot`] or [`FrozenTable::write_to`](crate::FrozenTable::write_to) wrote: it continues
    /// exactly as the original does. Bytes that do not describe a possible table, or one under rules that are not
    /// `supported`, are refused. The source is read to its end, in pieces of 256 KiB, and needs no buffer of its own.
    pub fn restore(source: impl Read, supported: RulesRange) -> Result<Self, RestoreError> {
        let mut records = RecordReader::new(source);
        let format = records.bytes()?.ok_or(Malformed("it has no format number"))?;
        let rules = rules_of(u32::from_le_bytes(format))?;
        UnsupportedRules::check(rules, supported)?;
        let mut table = Self::restore_head(&records.next()?)?;
        table.raise_rules(rules);
        let mut loader = Loader::default();
        let (leases, ended) = loop {
            let added = match records.next()? {
                Record::Lease(record) if record.number.0 == 0 || record.number > table.revision => {
                    Err("a lease was made by a change that is yet to come")
                }
                Record::Lease(record) => {
                    let keys = record.keys.len();
                    let lease = Lease::from(record);
                    if lease.keys.len() == keys {
                        loader.lease(lease)
                    } else {
                        Err("a lease has a key twice")
                    }
                }
                Record::Ended { ended_ms, .. } if ended_ms > table.at_ms => {
                    Err("a lease ended in time to come")
                }
                Record::Ended { ended_ms, lease_id: id, end } => {
                    loader.ended(EndedLease { ended_ms, id, end })
                }
                Record::Value(_) if rules < VALUES => Err("a lease has a value before there were any"),
                Record::Value(value) => loader.value(value.into_owned()),
                Record::Requests(requests) => loader.requests(requests.into_owned()),
                Record::Ready { place, key } => loader.ready(place, key.into_owned()),
                Record::Owner(_) if rules < OWNERS => Err("leases have owners before there were any"),
                Record::Owner(name) => loader.owner(name.into_owned()),
                Record::Tail { leases, ended } => break (leases, ended),
                Record::Head { .. } => return Err(HEAD),
            };
            added.map_err(Inconsistent)?;
        };
        table.store = loader.finish(table.at_ms).map_err(Inconsistent)?;
        if (table.live() + table.waiters()) as u64 != leases || table.remembered() as u64 != ended {
            return Err(Malformed("records are missing"));
        }
        if records.bytes::<1>()?.is_some() {
            return Err(Malformed("something follows its end"));
        }
        Ok(table)
    }

    fn restore_head(record: &Record<'_>) -> Result<Self, RestoreError> {
        let &Record::Head { at_ms, first_revision, revision } = record else { return Err(HEAD) };
        // A table starts below 2^53, and no cluster makes as many changes again.
        if revision.0 > 2 * REVISION_END {
            return Err(Inconsistent("its revision is out of range"));
        }
        if first_revision > revision {
            return Err(Inconsistent("it was started at a revision that is yet to come"));
        }
        Ok(Self { at_ms, first_revision, revision, ..Self::default() })
    }
}

impl From<LeaseRecord<'_>> for Lease {
    fn from(record: LeaseRecord<'_>) -> Self {
        let keys = Keys::new(record.keys.into_owned());
        let holder = record.holder.map(Cow::into_owned);
        let mut lease = Self::new(record.lease_id, keys, record.ttl, holder, record.metadata.into_owned());
        lease.attach(record.attachment);
        lease.number = record.number;
        lease.deadline_ms = record.deadline_ms;
        if let Some(since_ms) = record.waits_since_ms {
            lease.begin_wait(record.number, since_ms);
        }
        lease
    }
}

/// Reads the records of a snapshot one by one.
pub(crate) struct RecordReader<R> {
    source: BufReader<Source<R>>,
    /// Takes one id and one text at a time. No valid text is longer, and a damaged length asks for no memory.
    scratch: [u8; 16 + Metadata::MAX_BYTES],
}

/// Keeps the error of the last read, which postcard does not pass on.
struct Source<R> {
    inner: R,
    error: Option<io::Error>,
}

/// The source is read in pieces of this size.
const BUFFER_BYTES: usize = 256 << 10;

impl<R: Read> RecordReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        let source = BufReader::with_capacity(BUFFER_BYTES, Source { inner, error: None });
        Self { source, scratch: [0; _] }
    }

    pub(crate) fn next(&mut self) -> Result<Record<'static>, RestoreError> {
        let buffered = self.source.buffer();
        if let Ok((record, rest)) = postcard::take_from_bytes(buffered) {
            let taken = buffered.len() - rest.len();
            self.source.consume(taken);
            return Ok(record);
        }
        // It may go on beyond the buffer. To read all of them like this, byte by byte, takes much longer.
        let read = postcard::from_io((&mut self.source, &mut self.scratch[..])).map(|(record, _)| record);
        read.map_err(|_| match self.source.get_mut().error.take() {
            Some(error) => Unreadable(error),
            None => Malformed("it is truncated, or a record cannot be decoded"),
        })
    }

    /// The next bytes; `None` if the source has fewer.
    fn bytes<const N: usize>(&mut self) -> Result<Option<[u8; N]>, RestoreError> {
        let mut bytes = [0; N];
        match self.source.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(Unreadable(error)),
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(room);
        self.error = read.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
        read
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::Revision;

    use super::*;
    use crate::table::write_records;

    /// A damaged length must not make the reader ask for memory that the source does not fill.
    #[test]
    fn a_record_with_a_huge_length_is_refused() {
        let mut bytes = Vec::new();
        let head = Record::Head { at_ms: 1, first_revision: Revision(0), revision: Revision(1) };
        write_records(1, [head], &mut bytes).unwrap();
        // A lease, its id, and one key, or a value; and 2^60 as the length of that key or value.
        let lease = [&[1, 16][..], &[7; 16], &[1]].concat();
        for record in [&lease[..], &[7]] {
            let length = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
            let bytes = [&bytes[4..], record, &length].concat();
            let source = io::Cursor::new(bytes).chain(io::repeat(b'a'));
            let mut reader = RecordReader::new(source);
            reader.next().unwrap();
            let error = reader.next().unwrap_err();
            assert!(error.to_string().contains("cannot be decoded"), "{error}");
        }
    }
}
