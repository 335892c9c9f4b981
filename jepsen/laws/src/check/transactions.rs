//! Sets over RESP, of one key or several: all keys are granted or none, and a lease that its client does not know is taken back.
//!
//! No client sees the id of a lease that it set. If a client got the token, [`super::plain`] has named the lease by its value, and the
//! laws of leases judge it. The other leases are *nameless* in the log. These laws judge which sets may have made them:
//!
//! - **Each has its own.** Each set that was answered OK, but whose token no client got, has a grant of its own in the log. Each nameless
//!   grant of a key has a set of its own, which may have been done at that time. Both are matchings, and if each exists, one exists that
//!   is both (Mendelsohn and Dulmage, 1958).
//! - **Whole.** The keys of one set are granted in one entry, and only while the key that it depends on had the value.
//! - **Taken back.** Where no fault is near, a lease ends 2 s after all clients that may have asked for it have hung up. A new leader or
//!   a slow message may delay the grant, so the law allows [`LATE_MS`] more. It measures cluster time, which is never faster than real
//!   time.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{Key, Mode};

use super::facts::{Facts, Life};
use super::log::Stage;
use super::{Checker, Found};
use crate::history::{Call, ChangeName, Conclusion, Invocation, ValuedKey};

/// Judges that a set is done as a whole.
pub const WHOLE_SETS: Checker = Checker {
    name: "whole-sets",
    law: "Keys that are set together are granted in one step, while the condition of the set holds, or none of them is.",
    check: whole_sets,
};

/// Judges that a lease is taken back if its client hung up. Over a network, the answer may be on its way then, and the lock stays: so only
/// the simulator judges by this.
pub const TAKEN_BACK: Checker = Checker {
    name: "taken-back",
    law: "Where no fault is near, a lease ends soon after its client hung up before the answer.",
    check: taken_back,
};

/// How long after its connection closed an unanswered lease is taken back, in milliseconds.
const TAKEN_BACK_MS: u64 = 2_000;
/// How much later it may be where no fault is near, in milliseconds.
const LATE_MS: u64 = 5_000;
/// How long a fault may have consequences.
const NEAR_US: u64 = 20_000_000;

/// A key of a set whose token no client got.
struct Wish<'f> {
    call: &'f Call,
    at: &'f ValuedKey,
}

/// A grant of one key, to a lease that no call names.
struct Nameless<'f, 'h> {
    key: &'f Key,
    revision: u64,
    stage: &'f Stage<'h>,
}

/// Part of `no-grant-lost`.
pub(super) fn sets_have_their_grants(facts: &Facts, found: &mut Found) {
    let (wishes, grants) = (wishes(facts), nameless(facts));
    let certain: Vec<&Wish> = wishes.iter().filter(|it| is_in_the_log(facts, it)).collect();
    let of_wishes = certain.iter().map(|wish| places(&grants, |grant| may_be(facts, wish, grant)));
    for place in unmatched(of_wishes.collect(), grants.len()) {
        let Wish { call, at } = certain[place];
        let what = format!("{} was set to {}, and no grant in the log can be that", at.key, at.value);
        found.breach(what, [call.id]);
    }
    certain.iter().for_each(|_| found.saw("sets without a token"));
    // A call of the client library that was not answered has another id than its lease.
    if facts.history.calls.iter().any(Call::is_of_library) {
        return;
    }
    let of_grants = grants.iter().map(|grant| places(&wishes, |wish| may_be(facts, wish, grant)));
    for place in unmatched(of_grants.collect(), wishes.len()) {
        let Nameless { key, revision, .. } = grants[place];
        found.breach(
            format!("{key} is Granted at revision {revision} of the log, and no call can have done that"),
            [],
        );
    }
}

fn whole_sets(facts: &Facts) -> Found {
    let mut found = Found::default();
    for (call, keys, only_if) in sets(facts) {
        let granted: Vec<_> = keys.iter().filter_map(|at| Some((at, granted(facts, at)?))).collect();
        for (at, stage) in &granted {
            if let Some(only_if) = only_if {
                depended(facts, call, at, stage, only_if, &mut found);
            }
        }
        let Some((first, stage)) = granted.first().filter(|_| keys.len() > 1) else { continue };
        found.saw("sets of several keys");
        let index = stage.begun.map_or(0, |change| change.index);
        for other in keys.iter().filter(|at| at.key != first.key && !is_granted(facts, at, index)) {
            let what = format!(
                "{} was set to {} in entry {index} of the log, and {} not with it",
                first.key, first.value, other.key
            );
            found.breach(what, [call.id]);
        }
    }
    found.needs(&["sets of several keys"], "no set of several keys was found in the log");
    found.needs(&["sets on a condition"], "no set on a condition was found in the log");
    found
}

/// Judges that the lease with the value that a set was to depend on was live when it was done.
fn depended(
    facts: &Facts,
    call: &Call,
    at: &ValuedKey,
    stage: &Stage,
    only_if: &ValuedKey,
    found: &mut Found,
) {
    let Some(life) = facts.lives.get(&only_if.value).filter(|life| !life.stages.is_empty()) else { return };
    found.saw("sets on a condition");
    let revision = stage.during.start;
    if !life.stages.iter().any(|it| it.token.is_some() && it.during.contains(&revision)) {
        let what = format!(
            "{} was set at revision {revision}, only if {} is {}, which was not so",
            at.key, only_if.key, only_if.value
        );
        found.breach(what, [call.id]);
    }
}

fn taken_back(facts: &Facts) -> Found {
    let mut found = Found::default();
    for (lease, life) in &facts.lives {
        let acquires: Vec<&Call> = life.acquires().map(|acquire| acquire.call).collect();
        let renewed = life.calls.iter().any(|call| matches!(call.invocation, Invocation::Renew { .. }));
        if !acquires.is_empty() && !renewed {
            life.stages
                .iter()
                .for_each(|stage| in_time(facts, &acquires, stage, &lease.to_string(), &mut found));
        }
    }
    let wishes = wishes(facts);
    for grant in nameless(facts) {
        let asked = wishes.iter().filter(|wish| may_be(facts, wish, &grant)).map(|wish| wish.call);
        in_time(facts, &asked.collect::<Vec<_>>(), grant.stage, "without a name", &mut found);
    }
    found.needs(&["leases whose clients hung up"], "no client hung up where no fault was near");
    found
}

/// Judges a lease that one of these calls asked for.
fn in_time(facts: &Facts, asked: &[&Call], stage: &Stage, name: &str, found: &mut Found) {
    let (Some(granted), Some(ended)) = (stage.begun.filter(|_| stage.token.is_some()), stage.ended) else {
        return;
    };
    if asked.is_empty() || !asked.iter().all(|call| call.hung_up() && !is_near_a_fault(facts, call)) {
        return;
    }
    found.saw("leases whose clients hung up");
    let took_us = asked.iter().map(|call| call.ended_us - call.sent_us).max().unwrap_or(0);
    let most_ms = took_us / 1_000 + TAKEN_BACK_MS + LATE_MS;
    if ended.at_ms > granted.at_ms + most_ms {
        let what = format!(
            "lease {name}, token {}, was granted at {} ms of cluster time, its client hung up, and it ended at {} ms",
            granted.revision, granted.at_ms, ended.at_ms
        );
        found.breach(what, asked.iter().map(|call| call.id));
    }
}

fn is_near_a_fault(facts: &Facts, call: &Call) -> bool {
    let until_us = call.ended_us + (TAKEN_BACK_MS + LATE_MS) * 1_000;
    facts.history.faults.iter().any(|it| it.from_us < until_us && it.to_us + NEAR_US > call.sent_us)
}

fn sets<'f>(facts: &'f Facts) -> impl Iterator<Item = (&'f Call, &'f [ValuedKey], Option<&'f ValuedKey>)> {
    facts.sets.iter().filter_map(|call| match &call.invocation {
        Invocation::Set { keys, only_if, .. } => Some((*call, &keys[..], only_if.as_ref())),
        _ => None,
    })
}

/// The grants, of keys that are set, to leases that no call names.
fn nameless<'f, 'h>(facts: &'f Facts<'h>) -> Vec<Nameless<'f, 'h>> {
    let keys: BTreeSet<&Key> = sets(facts).flat_map(|(_, keys, _)| keys).map(|at| &at.key).collect();
    let lives = facts.lives.values().filter(|life| life.calls.is_empty());
    let stages = lives.flat_map(|life| &life.stages).filter(|stage| stage.token.is_some());
    let nameless = stages.filter_map(|stage| {
        let begun = stage.begun.filter(|change| change.change == ChangeName::Granted)?;
        let [changed] = &begun.keys[..] else { return None };
        let is_set = changed.mode == Mode::Exclusive && keys.contains(&changed.key);
        is_set.then_some(Nameless { key: &changed.key, revision: begun.revision.0, stage })
    });
    nameless.collect()
}

/// Whether the log must have the grant of this.
fn is_in_the_log(facts: &Facts, wish: &Wish) -> bool {
    let known = facts.revisions.floor(wish.call.sent_us).map_or(0, |known| known.number);
    wish.call.conclusion == Conclusion::Done
        && facts.log.has(known)
        && wish.call.ended_us < facts.history.end.read_us
}

/// Whether this set may have made this grant.
fn may_be(facts: &Facts, wish: &Wish, grant: &Nameless) -> bool {
    let Wish { call, at } = wish;
    let is_after = facts.revisions.floor(call.sent_us).is_none_or(|known| known.number < grant.revision);
    let ceiling = facts.revisions.ceiling(call.ended_us).filter(|_| call.is_definite());
    at.key == *grant.key && is_after && ceiling.is_none_or(|most| grant.revision <= most.number)
}

/// The grant of a value whose token was told.
fn granted<'f, 'h>(facts: &'f Facts<'h>, at: &ValuedKey) -> Option<&'f Stage<'h>> {
    let life: &Life = facts.lives.get(&at.value)?;
    life.stages.iter().find(|stage| stage.token.is_some() && stage.begun.is_some())
}

/// Whether this was granted in this entry, as far as can be told.
fn is_granted(facts: &Facts, at: &ValuedKey, index: u64) -> bool {
    let in_entry = |stage: &Stage| stage.begun.is_some_and(|change| change.index == index);
    match granted(facts, at) {
        Some(stage) => in_entry(stage),
        None => nameless(facts).iter().any(|grant| *grant.key == at.key && in_entry(grant.stage)),
    }
}

fn wishes<'f>(facts: &Facts<'f>) -> Vec<Wish<'f>> {
    facts.untold().map(|(call, at)| Wish { call, at }).collect()
}

fn places<T>(all: &[T], fits: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, it)| fits(it)).map(|(place, _)| place).collect()
}

/// The members of the left side that a largest matching leaves over. `left` has the places on the right side that each may have.
fn unmatched(left: Vec<Vec<usize>>, right: usize) -> Vec<usize> {
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    let without = |start: &usize| {
        let mut tried = vec![false; right];
        !place(&left, *start, &mut tried, &mut taken)
    };
    (0..left.len()).filter(without).collect()
}

/// Finds a place for `one`, for which others may move.
fn place(left: &[Vec<usize>], one: usize, tried: &mut [bool], taken: &mut BTreeMap<usize, usize>) -> bool {
    for &at in &left[one] {
        if !std::mem::replace(&mut tried[at], true)
            && taken.get(&at).copied().is_none_or(|other| place(left, other, tried, taken))
        {
            taken.insert(at, one);
            return true;
        }
    }
    false
}
