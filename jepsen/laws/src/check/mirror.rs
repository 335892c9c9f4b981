//! Redis shows what was true, though it may be old; and once all is well it shows what the table has.
//!
//! - **Never ahead**: no revision is in Redis before the table can have had it, and what is there is the state that the key
//!   had at that revision, by the log.
//! - **Never falling**: what one reader saw, a later one sees, or newer; a hash that was there stays.
//! - **Equal in the end**: token, state and fence of a held key are those of a linearizable read. A free key keeps the fence
//!   that it was freed at. It may have no hash, as an absent hash says nothing: one that was held for less than the mirror
//!   takes may never have been written, if the leader changed or Redis was away. Only a run without any fault must have one.
//! - **Before the answer**: a grant that was answered as mirrored was in Redis before that, and every later reader sees it.
//!   When it got there depends on the answer: a grant made by this very call was written while the call was under way; one
//!   that a repeat found may have been written at any time since its lease was first asked for, because the mirror remembers
//!   what it confirmed for a while, even if Redis loses it. What was written is the state as of the grant: a fence that rose
//!   later, which the answer to a repeat or after a wait may show, may still be on its way.
//!
//! A Redis that lost its data says nothing false by that. So *never falling* and *before the answer* are judged only from
//! what was seen after the last fault that can lose data, up to the next one: all faults of Redis (`redis-…`) but a stop.

use std::collections::{BTreeMap, HashMap};

use ringfence_wire::{Key, LeaseId};

use super::facts::{Facts, at};
use super::{Checker, Found};
use crate::history::{Conclusion, Fault, History, Invocation, MirrorEntry, MirrorSight};

/// The mirror is never ahead of the table.
pub const MIRROR_NEVER_AHEAD: Checker = Checker {
    name: "mirror-never-ahead",
    law: "What stands in Redis is a state that the key had at that revision.",
    check: never_ahead,
};

/// The mirror never falls, unless Redis lost its data.
pub const MIRROR_NEVER_FALLS: Checker = Checker {
    name: "mirror-never-falls",
    law: "Revision and fence of a key in Redis never fall, and no hash vanishes, unless Redis lost its data.",
    check: never_falls,
};

/// The mirror is equal to the table in the end.
pub const MIRROR_EQUAL_AT_END: Checker = Checker {
    name: "mirror-equal-at-end",
    law: "When all is well, Redis shows what the table has.",
    check: equal_at_end,
};

/// A grant that was answered as mirrored is in Redis.
pub const BEFORE_ANSWER: Checker = Checker {
    name: "before-answer",
    law: "Every later read of Redis shows a grant that was answered as mirrored, unless Redis lost its data.",
    check: before_answer,
};

fn never_ahead(facts: &Facts) -> Found {
    let mut found = Found::default();
    let sights = by_key(facts.history);
    for (sight, entry) in sights.values().flatten().filter_map(|sight| Some((sight, sight.entry.as_ref()?))) {
        found.saw("hashes read");
        let (key, seen, rev) = (&sight.key, at_end(sight.ended_us), entry.rev.0);
        if let Some(most) = facts.revisions.ceiling(sight.ended_us).filter(|most| rev > most.number) {
            let what = format!(
                "{key}: revision {rev} was in Redis at {seen}, and the table had {} or less",
                most.number
            );
            found.breach(what, most.call);
        } else if let Some(line) = facts.log.known_line(key).filter(|_| facts.log.has(rev)) {
            found.saw("hashes compared with the state at their revision");
            let (newest, fence) = (line.at(rev).newest, line.fence(rev));
            let token = newest.unwrap_or(0);
            if (entry.fence.0, entry.token.0, entry.held) != (fence, token, newest.is_some()) {
                let what = format!(
                    "{key}: Redis had {} at {seen}; at that revision it had fence {fence} and token {token}",
                    words(entry)
                );
                found.breach(what, []);
            }
        }
    }
    found.needs(&["hashes read"], "no hash was read in Redis");
    found
}

fn never_falls(facts: &Facts) -> Found {
    let mut found = Found::default();
    for (key, sights) in &by_key(facts.history) {
        let seen = sights.iter().filter_map(|sight| {
            let entry = sight.entry.as_ref()?;
            let (rev, fence) = (entry.rev.0, entry.fence.0);
            Some(Written { sent_us: sight.sent_us, ended_us: sight.ended_us, rev, fence, call: None })
        });
        falls(key, sights, seen.collect(), facts.history, &mut found);
    }
    found.needs(&["sights after others"], "no key was read twice in Redis");
    found
}

fn before_answer(facts: &Facts) -> Found {
    let mut found = Found::default();
    let mut first_sent_us: HashMap<LeaseId, u64> = HashMap::new();
    let mut answered: HashMap<&Key, Vec<Written>> = HashMap::new();
    for call in &facts.history.calls {
        let Invocation::Acquire { lease, wait_ms, .. } = call.invocation else { continue };
        let first_sent_us = *first_sent_us.entry(lease).or_insert(call.sent_us);
        let Conclusion::Granted { grant, standing, mirrored: Some(mirrored) } = &call.conclusion else {
            continue;
        };
        if !mirrored {
            found.saw("grants answered before they were mirrored");
            continue;
        }
        found.saw("grants answered as mirrored");
        let is_as_granted = !standing && wait_ms == 0;
        for held in &grant.keys {
            answered.entry(&held.key).or_default().push(Written {
                sent_us: if *standing { first_sent_us } else { call.sent_us },
                ended_us: call.ended_us,
                rev: grant.token.0,
                fence: if is_as_granted { held.fence.0 } else { 0 },
                call: Some(call.id),
            });
        }
    }
    for (key, sights) in &by_key(facts.history) {
        falls(key, sights, answered.remove(key).unwrap_or_default(), facts.history, &mut found);
    }
    found.needs(&["sights after others"], "no grant was answered as mirrored, or none was looked for");
    found
}

/// What was in Redis at one instant between these times, or something newer.
struct Written {
    sent_us: u64,
    ended_us: u64,
    rev: u64,
    /// At least; 0 where that is not known.
    fence: u64,
    call: Option<u64>,
}

/// Looks for sights that show less than what was written before them.
fn falls(key: &Key, sights: &[MirrorSight], written: Vec<Written>, history: &History, found: &mut Found) {
    for sight in sights {
        let lost_us = lost_us(history, sight);
        let lasts = |it: &&Written| it.ended_us < sight.sent_us && lost_us.is_none_or(|us| us < it.sent_us);
        let Some(newest) = written.iter().filter(lasts).max_by_key(|it| it.rev) else { continue };
        let highest = written.iter().filter(lasts).max_by_key(|it| it.fence).unwrap_or(newest);
        found.saw("sights after others");
        let (rev, fence) = sight.entry.as_ref().map_or((0, 0), |entry| (entry.rev.0, entry.fence.0));
        let fell = if sight.entry.is_none() || rev < newest.rev { newest } else { highest };
        if sight.entry.is_none() || rev < newest.rev || fence < highest.fence {
            let fence = if fell.fence == 0 { String::new() } else { format!(" with fence {}", fell.fence) };
            let what = format!(
                "{key}: revision {}{fence} was in Redis at {}, and at {} {}",
                fell.rev,
                at_end(fell.ended_us),
                at_end(sight.ended_us),
                sight.entry.as_ref().map_or("nothing".to_owned(), words)
            );
            found.breach(what, fell.call);
        }
    }
}

/// Until when Redis may have lost what was written, as the sight shows it.
fn lost_us(history: &History, sight: &MirrorSight) -> Option<u64> {
    let loses = |it: &&Fault| it.nemesis.starts_with("redis-") && it.nemesis != "redis-stop";
    let losses = history.faults.iter().filter(loses).filter(|fault| fault.from_us <= sight.ended_us);
    losses.map(|fault| fault.to_us).max()
}

fn equal_at_end(facts: &Facts) -> Found {
    let mut found = Found::default();
    let end = &facts.history.end;
    for view in &end.keys {
        let key = &view.key;
        let newest = view.holders.iter().map(|holder| holder.token.0).max();
        let Some(entry) = end.mirror.get(key) else {
            found.undecided = Some("a key was not looked for in Redis in the end".to_owned());
            continue;
        };
        found.saw(if newest.is_some() { "keys held" } else { "keys free" });
        let line = facts.log.known_line(key);
        let last_granted = line.and_then(|line| Some(*line.lives.range(..=view.revision.0).next_back()?.0));
        let fits = match (entry, newest) {
            (Some(entry), Some(newest)) => entry.held && entry.token.0 == newest && entry.fence == view.fence,
            (None, Some(_)) => false,
            (Some(entry), None) => {
                let is_as_freed = !entry.held && entry.token.0 == 0 && entry.fence.0 == entry.rev.0 + 1;
                let is_newer_than_its_last = last_granted.is_none_or(|last| entry.fence.0 > last);
                is_as_freed && is_newer_than_its_last && entry.fence <= view.fence
            }
            (None, None) => !facts.history.faults.is_empty() || last_granted.is_none(),
        };
        if !fits {
            let what = format!(
                "{key}: in the end it has fence {} and {}, and Redis has {}",
                view.fence,
                newest.map_or("no holder".to_owned(), |newest| format!("token {newest}")),
                entry.as_ref().map_or("nothing".to_owned(), words)
            );
            found.breach(what, []);
        }
    }
    if !end.mirror.values().any(Option::is_some) {
        found.undecided = Some("Redis showed no key in the end".to_owned());
    }
    found
}

/// The sights of each key by time, those in the end last.
fn by_key(history: &History) -> BTreeMap<Key, Vec<MirrorSight>> {
    let mut by_key: BTreeMap<Key, Vec<MirrorSight>> = BTreeMap::new();
    for sight in &history.mirror {
        by_key.entry(sight.key.clone()).or_default().push(sight.clone());
    }
    let last_us = history.mirror.iter().map(|sight| sight.ended_us).fold(history.end.read_us, u64::max);
    for (key, entry) in &history.end.mirror {
        let (key, entry) = (key.clone(), entry.clone());
        let sight = MirrorSight { sent_us: last_us + 1, ended_us: u64::MAX, key: key.clone(), entry };
        by_key.entry(key).or_default().push(sight);
    }
    by_key
}

fn words(entry: &MirrorEntry) -> String {
    let state = if entry.held { "held" } else { "free" };
    format!("revision {} with fence {}, token {}, {state}", entry.rev, entry.fence, entry.token)
}

fn at_end(us: u64) -> String {
    if us == u64::MAX { "the end".to_owned() } else { at(us) }
}
