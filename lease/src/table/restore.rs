use std::borrow::Cow;
use std::{io, mem};

use ringfence_mutant::{Mutant, is};
use ringfence_wire::{Key, LeaseId, Mode, Revision};

use super::LeaseTable;
use super::reader::RecordReader;
use super::snapshot::{FORMAT, LeaseRecord, OLDEST_FORMAT, Record};
use crate::claims::Claims;
use crate::deadlines::Deadlines;
use crate::ended::{End, Ended, EndedLease};
use crate::fifo::Fifo;
use crate::ids::Ids;
use crate::lease::Lease;
use crate::limits::REVISION_END;
use crate::line::Claim;
use crate::puts::Puts;
use crate::slots::Slot;

/// Why there is no snapshot that this program can use.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Another version of the program wrote it.
    #[error("the snapshot has format {found}, and this version reads formats {OLDEST_FORMAT} to {FORMAT}")]
    UnknownFormat {
        /// The format number that it starts with.
        found: u32,
    },
    /// The bytes end too early or do not form records.
    #[error("the snapshot is damaged: {0}")]
    Malformed(&'static str),
    /// The records contradict each other.
    #[error("the snapshot contradicts itself: {0}")]
    Inconsistent(&'static str),
    /// The bytes could not be had.
    #[error("the snapshot cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

use RestoreError::{Inconsistent, Malformed};

impl LeaseTable {
    /// The table that [`Self::snapshot`] or [`FrozenTable::write_to`](crate::FrozenTable::write_to) wrote: it goes on
    /// exactly as the other would have. Bytes that do not describe a possible table are refused. The source is read
    /// to its end, in pieces of some 256 KiB; it needs no buffer of its own.
    pub fn restore(mut source: impl io::Read) -> Result<Self, RestoreError> {
        let mut format = [0; 4];
        source.read_exact(&mut format).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Malformed("it has no format number"),
            _ => RestoreError::Unreadable(error),
        })?;
        match u32::from_le_bytes(format) {
            OLDEST_FORMAT..=FORMAT => {}
            found => return Err(RestoreError::UnknownFormat { found }),
        }
        let mut records = RecordReader::new(source);
        let mut restorer = Restorer::default();
        while !restorer.complete {
            restorer.take(records.next()?)?;
        }
        if !records.is_at_end()? {
            return Err(Malformed("something follows its end"));
        }
        if is(Mutant::RevisionLeftOutOfSnapshot) {
            let table = &mut restorer.table;
            let newest = table.leases.iter().map(|(_, lease)| lease.number).max();
            table.revision = newest.unwrap_or(table.first_revision);
        }
        Ok(restorer.table)
    }
}

/// Builds a table from its records. What it has of a million leases in maps it collects first, in the order in which
/// they come, and makes the maps at the end: putting them in one by one takes several times as long.
#[derive(Default)]
struct Restorer {
    table: LeaseTable,
    started: bool,
    complete: bool,
    by_id: Vec<(LeaseId, Slot)>,
    /// The holders that bear nobody beside them. The others are in their lines already: then keys that many hold have
    /// their text in common from the start.
    alone: Vec<(Key, Slot)>,
    ended: Fifo<EndedLease>,
    lags: Vec<(Revision, Key)>,
}

impl Restorer {
    fn take(&mut self, record: Record<'_>) -> Result<(), RestoreError> {
        match record {
            Record::Head { at_ms, first_revision, revision } if !self.started => {
                self.head(at_ms, first_revision, revision)
            }
            Record::Lease(lease) if self.started => self.lease(lease),
            Record::Ended { ended_ms, lease_id, end } if self.started => self.ended(ended_ms, lease_id, end),
            Record::Puts(puts) if self.started => self.puts(puts.into_owned()),
            Record::Lag { place, key } if self.started => self.lag(place, key.into_owned()),
            Record::Tail { leases, ended } if self.started => self.tail(leases, ended),
            _ => Err(Malformed("its head is not its first record and its only one")),
        }
    }

    fn head(&mut self, at_ms: u64, first: Revision, revision: Revision) -> Result<(), RestoreError> {
        // A table is started below 2^53, and no cluster makes as many changes again.
        if revision.0 > 2 * REVISION_END {
            return Err(Inconsistent("its revision is out of range"));
        }
        if first > revision {
            return Err(Inconsistent("it was started at a revision that is yet to come"));
        }
        self.table.at_ms = at_ms;
        self.table.first_revision = first;
        self.table.revision = revision;
        self.started = true;
        Ok(())
    }

    fn lease(&mut self, record: LeaseRecord<'_>) -> Result<(), RestoreError> {
        let (id, number) = (record.lease_id, record.number);
        if number == Revision(0) || number > self.table.revision {
            return Err(Inconsistent("a lease was made by a change that is yet to come"));
        }
        if self.by_id.last().is_some_and(|&(last_id, _)| last_id >= id) {
            return Err(Inconsistent("the leases are not in the order of their ids"));
        }
        let named = record.claims.len();
        let mut lease = Lease::from(record);
        if lease.claims.len() != named {
            return Err(Inconsistent("a lease has a key twice"));
        }
        let table = &mut self.table;
        let is_live = !lease.waits();
        for &mut (ref mut key, mode) in lease.claims.iter_mut().filter(|_| is_live) {
            if mode != Mode::Exclusive && !table.lines.fits(key, mode, &table.leases) {
                return Err(Inconsistent(CONFLICT));
            }
        }
        let slot = table.leases.insert(lease);
        self.by_id.push((id, slot));
        for &(ref key, mode) in table.leases.get(slot).claims.iter().filter(|_| is_live) {
            if mode == Mode::Exclusive {
                self.alone.push((key.clone(), slot));
            } else {
                table.lines.hold(key, Claim { number, mode, slot }, &table.leases);
            }
        }
        Ok(())
    }

    fn ended(&mut self, ended_ms: u64, id: LeaseId, end: End) -> Result<(), RestoreError> {
        if ended_ms > self.table.at_ms {
            return Err(Inconsistent("a lease ended in time to come"));
        }
        if self.ended.back().is_some_and(|latest| ended_ms < latest.ended_ms) {
            return Err(Inconsistent("the ended leases are not in the order of their ends"));
        }
        self.ended.push_back(EndedLease { ended_ms, id, end });
        Ok(())
    }

    fn puts(&mut self, puts: Puts) -> Result<(), RestoreError> {
        let last = self.by_id.last().map(|&(_, slot)| self.table.leases.get_mut(slot));
        let waiter = last.and_then(|lease| Some((lease.deadline_ms, lease.wait_mut()?)));
        match waiter {
            Some((deadline_ms, wait)) if puts.is_possible() && puts.until_ms() == Some(deadline_ms) => {
                wait.puts = puts;
                Ok(())
            }
            _ => Err(Inconsistent("acquires stand for what does not wait, or not so long")),
        }
    }

    fn lag(&mut self, place: Revision, key: Key) -> Result<(), RestoreError> {
        if self.lags.last().is_some_and(|(last, last_key)| (*last, last_key) >= (place, &key)) {
            return Err(Inconsistent("the lags are not in the order of their places"));
        }
        self.lags.push((place, key));
        Ok(())
    }

    fn tail(&mut self, leases: u64, ended: u64) -> Result<(), RestoreError> {
        if self.has_a_lease_that_ended() {
            return Err(Inconsistent("a lease ended and has not ended"));
        }
        self.make_maps()?;
        if self.table.by_id.len() as u64 != leases || self.table.ended.len() as u64 != ended {
            return Err(Malformed("records are missing"));
        }
        self.waiters_line_up()?;
        self.complete = true;
        Ok(())
    }

    fn make_maps(&mut self) -> Result<(), RestoreError> {
        let table = &mut self.table;
        if !table.lines.hold_alone(mem::take(&mut self.alone)) {
            return Err(Inconsistent(CONFLICT));
        }
        table.by_id =
            Ids::of(mem::take(&mut self.by_id).into_iter()).ok_or(Inconsistent("two leases have one id"))?;
        table.ended =
            Ended::restore(mem::take(&mut self.ended)).ok_or(Inconsistent("a lease ended twice"))?;
        let mut numbers: Vec<Revision> = table.leases.iter().map(|(_, lease)| lease.number).collect();
        numbers.sort_unstable();
        if !numbers.is_sorted_by(|one, next| one < next) {
            return Err(Inconsistent("two leases were made by one change"));
        }
        table.live = Deadlines::of(table.leases.iter().filter(|(_, lease)| !lease.waits()));
        Ok(())
    }

    /// It goes through both lists in order: a search for each id takes longer than all the rest.
    fn has_a_lease_that_ended(&self) -> bool {
        let mut ended: Vec<LeaseId> = self.ended.iter().map(|ended| ended.id).collect();
        ended.sort_unstable();
        let mut ended = ended.into_iter().peekable();
        self.by_id.iter().any(|&(id, _)| {
            while ended.next_if(|ended| *ended < id).is_some() {}
            ended.peek() == Some(&id)
        })
    }

    /// Each is put at the tail of its queues, as it was at first.
    fn waiters_line_up(&mut self) -> Result<(), RestoreError> {
        let table = &mut self.table;
        for (place, key) in &self.lags {
            if !table.lines.restore_lag(key, *place, &table.leases) {
                return Err(Inconsistent("a line lags twice"));
            }
        }
        let waiters = table.leases.iter().filter(|(_, lease)| lease.waits());
        let mut waiters: Vec<(Revision, Slot)> =
            waiters.map(|(slot, waiter)| (waiter.number, slot)).collect();
        waiters.sort_unstable_by_key(|&(place, _)| place);
        for (_, slot) in waiters {
            for (key, _) in table.leases.get_mut(slot).claims.iter_mut() {
                table.lines.share_text(key);
            }
            table.line_up(slot);
            let waiter = table.leases.get(slot);
            if waiter.wait().is_some_and(|wait| wait.unfit == 0) && !waiter.is_past(table.at_ms) {
                return Err(Inconsistent("a lease waits though nothing is in its way"));
            }
        }
        if !table.lines.lag_as_noted() {
            return Err(Inconsistent("a line lags otherwise than it must"));
        }
        Ok(())
    }
}

const CONFLICT: &str = "two leases hold a key that do not bear each other";

impl From<LeaseRecord<'_>> for Lease {
    fn from(record: LeaseRecord<'_>) -> Self {
        let claims = Claims::new(record.claims.into_owned());
        let holder = record.holder.map(Cow::into_owned);
        let mut lease = Self::new(record.lease_id, claims, record.ttl, holder, record.metadata.into_owned());
        lease.attach(record.attachment);
        lease.number = record.number;
        lease.deadline_ms = record.deadline_ms;
        if let Some(since_ms) = record.waits_since_ms {
            lease.begin_wait(since_ms);
        }
        lease
    }
}
