use std::io;

use ringfence_wire::{LeaseId, Revision};

use super::LeaseTable;
use super::records::Records;
use super::snapshot::{FORMAT, LeaseRecord, Record};
use crate::claims::Claims;
use crate::ended::End;
use crate::lease::{Lease, WaitState};
use crate::limits::REVISION_END;

/// Why there is no snapshot that this program can use.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Another version of the program wrote it.
    #[error("the snapshot has format {found}, and this version reads format {FORMAT} only")]
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
            FORMAT => {}
            found => return Err(RestoreError::UnknownFormat { found }),
        }
        let mut records = Records::new(source);
        let mut restorer = Restorer::default();
        while !restorer.complete {
            restorer.take(records.next()?)?;
        }
        if !records.is_at_end()? {
            return Err(Malformed("something follows its end"));
        }
        Ok(restorer.table)
    }
}

/// Builds a table from its records.
#[derive(Default)]
struct Restorer {
    table: LeaseTable,
    started: bool,
    complete: bool,
    /// Kept until all holders are in: a waiter is put at the tail of its queues, as it was at first.
    waiters: Vec<Lease>,
    numbers: Vec<Revision>,
    last_id: Option<LeaseId>,
}

impl Restorer {
    fn take(&mut self, record: Record) -> Result<(), RestoreError> {
        match record {
            Record::Head { at_ms, revision } if !self.started => self.head(at_ms, revision),
            Record::Lease(lease) if self.started => self.lease(lease),
            Record::Ended { ended_ms, lease_id, end } if self.started => self.ended(ended_ms, lease_id, end),
            Record::Tail { leases, ended } if self.started => self.tail(leases, ended),
            _ => Err(Malformed("its head is not its first record and its only one")),
        }
    }

    fn head(&mut self, at_ms: u64, revision: Revision) -> Result<(), RestoreError> {
        // A table is started below 2^53, and no cluster makes as many changes again.
        if revision.0 > 2 * REVISION_END {
            return Err(Inconsistent("its revision is out of range"));
        }
        self.table.at_ms = at_ms;
        self.table.revision = revision;
        self.started = true;
        Ok(())
    }

    fn lease(&mut self, record: LeaseRecord) -> Result<(), RestoreError> {
        if record.number == Revision(0) || record.number > self.table.revision {
            return Err(Inconsistent("a lease was made by a change that is yet to come"));
        }
        if self.last_id.is_some_and(|last_id| last_id >= record.lease_id) {
            return Err(Inconsistent("the leases are not in the order of their ids"));
        }
        self.last_id = Some(record.lease_id);
        self.numbers.push(record.number);
        let named = record.claims.len();
        let mut lease = Lease::from(record);
        if lease.claims.len() != named {
            return Err(Inconsistent("a lease has a key twice"));
        }
        if lease.wait.is_some() {
            self.waiters.push(lease);
            return Ok(());
        }
        for (key, mode) in lease.claims.iter_mut() {
            if !self.table.lines.fits(key, *mode) {
                return Err(Inconsistent("two leases hold a key that do not bear each other"));
            }
        }
        self.table.enter_live(lease);
        Ok(())
    }

    fn ended(&mut self, ended_ms: u64, id: LeaseId, end: End) -> Result<(), RestoreError> {
        if ended_ms > self.table.at_ms {
            return Err(Inconsistent("a lease ended in time to come"));
        }
        if self.table.ended.latest_ms().is_some_and(|latest_ms| ended_ms < latest_ms) {
            return Err(Inconsistent("the ended leases are not in the order of their ends"));
        }
        if self.table.ended.get(id).is_some() {
            return Err(Inconsistent("a lease ended twice"));
        }
        self.table.ended.remember(id, end, ended_ms, usize::MAX);
        Ok(())
    }

    fn tail(&mut self, leases: u64, ended: u64) -> Result<(), RestoreError> {
        self.numbers.sort_unstable();
        if !self.numbers.is_sorted_by(|one, next| one < next) {
            return Err(Inconsistent("two leases were made by one change"));
        }
        self.waiters_line_up()?;
        if self.table.by_id.len() as u64 != leases || self.table.ended.len() as u64 != ended {
            return Err(Malformed("records are missing"));
        }
        if self.table.ended.freeze().iter().any(|ended| self.table.by_id.contains_key(&ended.id)) {
            return Err(Inconsistent("a lease ended and has not ended"));
        }
        self.complete = true;
        Ok(())
    }

    fn waiters_line_up(&mut self) -> Result<(), RestoreError> {
        let table = &mut self.table;
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.sort_unstable_by_key(|waiter| waiter.number);
        for mut waiter in waiters {
            for (key, _) in waiter.claims.iter_mut() {
                table.lines.share_text(key);
            }
            let slot = table.enter_waiting(waiter);
            let waiter = table.leases.get(slot);
            if waiter.wait.as_ref().is_some_and(|wait| wait.unfit == 0) && !waiter.is_past(table.at_ms) {
                return Err(Inconsistent("a lease waits though nothing is in its way"));
            }
        }
        Ok(())
    }
}

impl From<LeaseRecord> for Lease {
    fn from(record: LeaseRecord) -> Self {
        let claims = Claims::new(record.claims);
        let mut lease = Self::new(record.lease_id, claims, record.ttl, record.holder, record.metadata);
        lease.attach(record.attachment);
        lease.number = record.number;
        lease.deadline_ms = record.deadline_ms;
        lease.wait = record.waits_since_ms.map(|since_ms| Box::new(WaitState { since_ms, unfit: 0 }));
        lease
    }
}
