use std::borrow::Cow;
use std::{io, iter};

use ringfence_wire::{Key, LeaseId, Revision};

use super::LeaseTable;
use super::snapshot::{Record, write_records};
use crate::ended::EndedLease;
use crate::fifo::Fifo;
use crate::lease::Lease;
use crate::slots::{Chunks, Slot};

/// A table as it was at one instant, for whatever thread wants to write it down while the table itself goes on.
///
/// It has its memory in common with the table. What the table changes while the view is there, it changes in a copy
/// of the small chunk around it, and the view keeps the other one. So at worst all leases are there twice, but none of
/// the maps; and a view that is dropped has that memory to free, which is better done on its own thread too.
#[derive(Debug)]
pub struct FrozenTable {
    at_ms: u64,
    first_revision: Revision,
    revision: Revision,
    live: usize,
    waiters: usize,
    leases: Chunks<Lease>,
    ended: Fifo<EndedLease>,
    /// Hardly ever any: see [`crate::line::Line`].
    lags: Vec<(Revision, Key)>,
}

impl LeaseTable {
    /// The table of this instant. It copies no lease: with a million of them it takes half a millisecond.
    pub fn freeze(&self) -> FrozenTable {
        FrozenTable {
            at_ms: self.at_ms,
            first_revision: self.first_revision,
            revision: self.revision,
            live: self.live(),
            waiters: self.waiters(),
            leases: self.leases.freeze(),
            ended: self.ended.freeze(),
            lags: self.lines.lags().iter().cloned().collect(),
        }
    }

    /// The whole table as bytes for [`Self::restore`]: what [`FrozenTable::write_to`] writes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.freeze().write_to(&mut bytes).expect("memory takes all bytes");
        bytes
    }
}

impl FrozenTable {
    /// Cluster time, in milliseconds.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// The number of the latest change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many leases are live.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Writes the bytes for [`LeaseTable::restore`]; equal tables give equal bytes. In pieces of some 64 KiB. While
    /// it does, it takes 12 bytes of memory for each lease.
    pub fn write_to(&self, out: &mut impl io::Write) -> io::Result<()> {
        write_records(self.records(), out)
    }

    fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let by_id = self.by_id();
        let head =
            Record::Head { at_ms: self.at_ms, first_revision: self.first_revision, revision: self.revision };
        let tail = Record::Tail { leases: by_id.len() as u64, ended: self.ended.len() as u64 };
        let leases = by_id.into_iter().flat_map(|(_, slot)| {
            let lease = self.leases.get(slot);
            let puts = lease.wait().map(|wait| &wait.puts).filter(|puts| puts.as_slice().len() > 1);
            iter::once(Record::Lease(lease.into())).chain(puts.map(|puts| Record::Puts(Cow::Borrowed(puts))))
        });
        let ended = self.ended.iter().map(|EndedLease { ended_ms, id, end }| Record::Ended {
            ended_ms,
            lease_id: id,
            end,
        });
        let lags =
            self.lags.iter().map(|(place, key)| Record::Lag { place: *place, key: Cow::Borrowed(key) });
        iter::once(head).chain(leases).chain(ended).chain(lags).chain([tail])
    }

    /// The leases by id. The first half of each id is kept at hand: the leases are looked at only where it is the same.
    fn by_id(&self) -> Vec<([u32; 2], Slot)> {
        let first_half = |id: LeaseId| [(id.to_u128() >> 96) as u32, (id.to_u128() >> 64) as u32];
        let mut by_id = Vec::with_capacity(self.live + self.waiters);
        by_id.extend(self.leases.iter().map(|(slot, lease)| (first_half(lease.id), slot)));
        let id = |slot| self.leases.get(slot).id;
        by_id.sort_unstable_by(|&(half, slot), &(other_half, other)| {
            half.cmp(&other_half).then_with(|| id(slot).cmp(&id(other)))
        });
        by_id
    }
}
