//! Random histories with few keys, few ids and short times, so that everything interacts.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, PrincipalName, Revision, Token, Ttl, Wait};

use super::make::key;
use crate::limits::Limits;
use crate::table::LeaseTable;
use crate::{Acquire, Attachment, Command, Owner, Quota, Request};

mod conditional;

/// The last key is mostly in conditionals.
pub(super) const KEYS: [&str; 4] = ["a", "a/b", "c", "d"];
/// How many ids acquires use.
const IDS: u128 = 9;
/// How many ids there are, with those that only conditionals use.
const MOST_IDS: u128 = 12;
/// More keys than all of them have.
pub(super) const MANY: usize = MOST_IDS as usize * KEYS.len();

/// A random history.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) limits: Limits,
    /// Whether commands have owners.
    pub(super) has_owners: bool,
    pub(super) entries: Vec<Entry>,
}

/// One line per command, for debugging.
impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.limits)?;
        for entry in &self.entries {
            let restore = if entry.restore { ", restore" } else { "" };
            let freeze = if entry.freeze { ", freeze" } else { "" };
            writeln!(f, "{:+} ms{restore}{freeze}, floor {:?}", entry.step_ms, entry.floor)?;
            entry.actions.iter().try_for_each(|action| writeln!(f, "    {action:?}"))?;
        }
        Ok(())
    }
}

/// An entry of the log. The tokens to revoke are found when it is played.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// How far the time advances. A negative step tries to turn it back.
    pub(super) step_ms: i64,
    pub(super) actions: Vec<Action>,
    /// Who gives each of them, if the script has owners.
    pub(super) owners: Vec<Option<Owner>>,
    /// Whether the second table is saved and restored before this entry.
    pub(super) restore: bool,
    /// Whether a view of the table is taken before this entry.
    pub(super) freeze: bool,
    /// How far the floor of this entry is above the revision, or below it.
    floor: Option<i64>,
}

impl Entry {
    pub(super) fn floor(&self, revision: Revision) -> Option<Revision> {
        self.floor.map(|by| Revision(revision.0.saturating_add_signed(by)))
    }
}

impl Script {
    /// The requests of an entry, each of one command.
    pub(super) fn requests(&self, entry: &Entry, table: &LeaseTable) -> Vec<Request> {
        let request = |(action, owner): (&Action, &Option<Owner>)| {
            let by = owner.clone().filter(|_| self.has_owners);
            let name = by.as_ref().map(|owner| &owner.name);
            Request { commands: vec![action.played(name, table)], by }
        };
        entry.actions.iter().zip(&entry.owners).map(request).collect()
    }
}

pub(super) const OWNERS: [&str; 2] = ["ann", "bob"];

pub(super) fn principal(name: &str) -> PrincipalName {
    PrincipalName::new(name).expect("a legal name")
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Command(Command),
    Conditional(conditional::Drawn),
    /// Revokes the token so many revisions back.
    Revoke {
        key: Key,
        back: u64,
    },
}

impl Action {
    fn played(&self, by: Option<&PrincipalName>, table: &LeaseTable) -> Command {
        match self {
            Self::Command(command) => command.clone(),
            Self::Revoke { key, back } => {
                Command::Revoke { key: key.clone(), token: Token(table.revision().0.saturating_sub(*back)) }
            }
            Self::Conditional(drawn) => Command::Conditional(Box::new(drawn.played(by, table))),
        }
    }
}

pub(super) fn ids() -> impl Iterator<Item = LeaseId> {
    (1..=MOST_IDS).filter_map(LeaseId::from_u128)
}

pub(super) fn scripts() -> impl Strategy<Value = Script> {
    // In every other history the limits are met all the time.
    let limits = (
        select(vec![0, 1, 2, 4_096, 4_096, 4_096]),
        select(vec![1, 1, 2, 4_096, 4_096]),
        select(vec![2, 4, 10_000]),
        select(vec![1, 3, 2_000_000]),
    )
        .prop_map(|(ends, grants, queue, remembered)| Limits { ends, grants, queue, remembered });
    (limits, prop::bool::weighted(0.25), vec(entry(), 1..40))
        .prop_map(|(limits, has_owners, entries)| Script { limits, has_owners, entries })
}

fn owner() -> impl Strategy<Value = Option<Owner>> {
    let quota = || select(vec![None, None, Some(0), Some(1), Some(2)]);
    let bytes = select(vec![None, None, Some(900), Some(3_000)]);
    (select(vec![None, Some(OWNERS[0]), Some(OWNERS[0]), Some(OWNERS[1])]), quota(), quota(), bytes).prop_map(
        |(name, leases, waiting, bytes)| {
            Some(Owner { name: principal(name?), quota: Quota { leases, waiting, bytes } })
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    let step_ms = prop_oneof![
        4 => Just(0),
        8 => 1..90_i64,
        2 => select(vec![-50, 1_000, 5_001]),
        1 => select(vec![30_000, 60_001]),
    ];
    let floor = select(vec![None, None, None, None, Some(-3), Some(0), Some(1), Some(40), Some(1 << 52)]);
    (step_ms, vec((action(), owner()), 0..5), any::<bool>(), prop::bool::weighted(0.1), floor).prop_map(
        |(step_ms, actions, restore, freeze, floor)| {
            let (actions, owners) = actions.into_iter().unzip();
            Entry { step_ms, actions, owners, restore, freeze, floor }
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    let acquired = || (1..=IDS).prop_map(|bits| LeaseId::from_u128(bits).unwrap());
    let any_id = || (1..=MOST_IDS).prop_map(|bits| LeaseId::from_u128(bits).unwrap());
    let id = || prop_oneof![9 => acquired(), 1 => any_id()];
    let any_key = || select(&KEYS[..]).prop_map(key);
    let attachment = || (0..3_u64).prop_map(Attachment);
    let ttl = || select(vec![100, 101, 150, 400, 2_000]).prop_map(|ms| Ttl::from_ms(ms).unwrap());
    let command = prop_oneof![
        12 => acquire(acquired(), ttl(), attachment()).prop_map(|acquire| Command::Acquire(Box::new(acquire))),
        3 => (id(), option::of(ttl())).prop_map(|(lease_id, ttl)| Command::Renew { lease_id, ttl }),
        4 => id().prop_map(|lease_id| Command::Release { lease_id }),
        2 => (any_id(), attachment())
            .prop_map(|(lease_id, attachment)| Command::TakeBack { lease_id, attachment }),
        5 => (acquired(), attachment())
            .prop_map(|(lease_id, attachment)| Command::Detach { lease_id, attachment }),
        1 => select(vec![0, 7, u64::MAX]).prop_map(|n| Command::Start { revision: Revision(n) }),
    ];
    prop_oneof![
        11 => command.prop_map(Action::Command),
        4 => conditional::drawn().prop_map(Action::Conditional),
        1 => (any_key(), 0..8_u64).prop_map(|(key, back)| Action::Revoke { key, back }),
    ]
}

fn acquire(
    id: impl Strategy<Value = LeaseId>,
    ttl: impl Strategy<Value = Ttl>,
    attachment: impl Strategy<Value = Attachment>,
) -> impl Strategy<Value = Acquire> {
    let others = subsequence(KEYS.to_vec(), 1..=2);
    let mode = prop_oneof![
        2 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared { limit: None }),
        2 => (1..4_u32).prop_map(|limit| Mode::Shared { limit: NonZeroU32::new(limit) }),
    ];
    let wait = select(vec![0, 1, 60, 60, 110, 3_000, 60_000]).prop_map(|ms| Wait::from_ms(ms).unwrap());
    let holder = select(vec![None, Some("ann"), Some("bob")]).prop_map(|name| name.and_then(Holder::new));
    let metadata = select(vec![0, 0, 7]).prop_map(|job: u8| match job {
        0 => Metadata::default(),
        job => Metadata::new(BTreeMap::from([("job".to_owned(), job.to_string())])).unwrap(),
    });
    // An id mostly has the same keys, in either order.
    let keys =
        (id, others, prop::bool::weighted(0.1), any::<bool>()).prop_map(|(id, others, other, turned)| {
            let mut keys = if other { others } else { usual_keys(id) };
            if turned {
                keys.reverse();
            }
            (id, keys)
        });
    (keys, vec(mode, 2), ttl, wait, prop::bool::weighted(0.2), holder, metadata, attachment).prop_map(
        |((lease_id, keys), modes, ttl, wait, keep_place, holder, metadata, attachment)| Acquire {
            lease_id,
            claims: keys.into_iter().map(key).zip(modes).collect(),
            ttl,
            wait,
            keep_place,
            holder,
            metadata,
            attachment,
        },
    )
}

fn usual_keys(id: LeaseId) -> Vec<&'static str> {
    let [a, b, c, d] = KEYS;
    let usual = [vec![a], vec![b], vec![a, b], vec![a, c], vec![a], vec![b, a], vec![b, c], vec![c], vec![d]];
    usual[ids().position(|other| other == id).unwrap()].clone()
}
