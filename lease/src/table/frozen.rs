use std::borrow::Cow;
use std::collections::BTreeMap;
use std::{io, iter};

use ringfence_wire::{Key, LeaseId, PrincipalName, Revision};

use super::LeaseTable;
use super::snapshot::{LeaseRecord, Record, write_records};
use crate::lease::Lease;
use crate::owner::SpaceNo;
use crate::store::{Chunks, EndedLease, Fifo, Slot};

/// The table as it was at one instant. Any thread can write it while the table goes on.
///
/// It shares its memory with the table, which copies a small chunk before it changes it. So at worst all leases are in
/// memory twice, but no index is. Dropping a view frees that memory, which is best done on the same other thread.
#[derive(Debug)]
pub struct FrozenTable {
    rules: u8,
    at_ms: u64,
    first_revision: Revision,
    revision: Revision,
    live: usize,
    leases: Chunks<Lease>,
    /// What nobody owns, and then the owners by name.
    spaces: Vec<FrozenSpace>,
    /// Rarely any.
    ready: Vec<(Revision, Key)>,
}

#[derive(Debug)]
struct FrozenSpace {
    number: SpaceNo,
    owner: Option<PrincipalName>,
    leases: usize,
    ended: Fifo<EndedLease>,
}

/// The leases of one owner by id. Beside each slot is the first half of the id, so that a sort looks at few leases.
type ById = Vec<([u32; 2], Slot)>;

impl LeaseTable {
    /// The table of this instant. It copies no lease, and takes half a millisecond for a million of them, and a quarter of one for
    /// a thousand owners.
    pub fn freeze(&self) -> FrozenTable {
        FrozenTable {
            rules: self.rules,
            at_ms: self.at_ms,
            first_revision: self.first_revision,
            revision: self.revision,
            live: self.live(),
            leases: self.store.freeze(),
            spaces: self.frozen_spaces().collect(),
            ready: self.store.ready().iter().cloned().collect(),
        }
    }

    fn frozen_spaces(&self) -> impl Iterator<Item = FrozenSpace> {
        self.store.frozen_spaces().map(|(number, owner, leases, ended)| FrozenSpace {
            number,
            owner: owner.cloned(),
            leases,
            ended,
        })
    }

    /// The bytes that [`FrozenTable::write_to`] writes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.freeze().write_to(&mut bytes).expect("a vector takes all bytes");
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

    /// The number of live leases.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Writes the bytes for [`LeaseTable::restore`], in pieces of about 64 KiB. Equal tables give equal bytes. It needs 12
    /// bytes of memory for each lease.
    pub fn write_to(&self, out: &mut impl io::Write) -> io::Result<()> {
        write_records(self.rules, self.records(), out)
    }

    fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let Self { at_ms, first_revision, revision, .. } = *self;
        let leases = self.spaces.iter().map(|space| space.leases as u64).sum();
        let ended = self.spaces.iter().map(|space| space.ended.len() as u64).sum();
        let spaces = self.spaces.iter().zip(self.by_id()).flat_map(|(space, by_id)| {
            let owner = space.owner.iter().map(|name| Record::Owner(Cow::Borrowed(name)));
            let ended = space.ended.iter();
            let ended = ended.map(|EndedLease { ended_ms, id: lease_id, end }| Record::Ended {
                ended_ms,
                lease_id,
                end,
            });
            owner.chain(self.lease_records(by_id)).chain(ended)
        });
        let ready =
            self.ready.iter().map(|(place, key)| Record::Ready { place: *place, key: Cow::Borrowed(key) });
        let head = Record::Head { at_ms, first_revision, revision };
        iter::once(head).chain(spaces).chain(ready).chain([Record::Tail { leases, ended }])
    }

    fn lease_records(&self, by_id: ById) -> impl Iterator<Item = Record<'_>> {
        by_id.into_iter().flat_map(|(_, slot)| {
            let lease = self.leases.get(slot);
            let requests = lease.wait().map(|wait| &wait.requests).filter(|all| all.as_slice().len() > 1);
            let requests = requests.map(|requests| Record::Requests(Cow::Borrowed(requests)));
            let value = lease.value().map(|value| Record::Value(Cow::Borrowed(value)));
            iter::once(Record::Lease(lease.into())).chain(requests).chain(value)
        })
    }

    /// The leases of each space, by id.
    fn by_id(&self) -> Vec<ById> {
        let first_half = |id: LeaseId| [(id.to_u128() >> 96) as u32, (id.to_u128() >> 64) as u32];
        let mut by_id: Vec<ById> = self.spaces.iter().map(|space| Vec::with_capacity(space.leases)).collect();
        let places: BTreeMap<SpaceNo, usize> =
            self.spaces.iter().enumerate().map(|(place, space)| (space.number, place)).collect();
        for (slot, lease) in self.leases.iter() {
            by_id[places[&lease.space]].push((first_half(lease.id), slot));
        }
        let id = |slot| self.leases.get(slot).id;
        for leases in &mut by_id {
            leases.sort_unstable_by(|&(half, slot), &(other_half, other)| {
                half.cmp(&other_half).then_with(|| id(slot).cmp(&id(other)))
            });
        }
        by_id
    }
}

impl<'a> From<&'a Lease> for LeaseRecord<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self {
            lease_id: lease.id,
            keys: Cow::Borrowed(&lease.keys),
            ttl: lease.ttl,
            holder: lease.holder.as_ref().map(Cow::Borrowed),
            metadata: lease.metadata().map(Cow::Borrowed).unwrap_or_default(),
            attachment: lease.wait().map_or(lease.attachment(), |wait| wait.requests.sole(0)),
            number: lease.number,
            deadline_ms: lease.deadline_ms,
            waits_since_ms: lease.wait().map(|wait| wait.since_ms),
        }
    }
}
