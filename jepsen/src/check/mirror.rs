//! What stands in Redis is true, though it may be old; and once all is well it is what the table has.
//!
//! - **Never ahead**: no revision stands there before the table can have had it, and what stands is the state that the key
//!   had at that revision, by the logs. Without logs: no lease is known to live, by a call sent afterwards, whose token is
//!   below the fence that stood there.
//! - **Never falling**: what one reader saw, a later one sees, or newer; a hash that was there stays.
//! - **Equal in the end**: token, state and fence of a held key are those of a linearizable read. A free key keeps the fence
//!   that it was freed at. It may have no hash, as an absent hash says nothing: one that was held for less than the mirror
//!   takes may never have been written, if the leader changed or Redis was away. Only a run without any fault must have one.
//! - **Before the answer**: a grant that was answered as mirrored stood in Redis before that, and is seen by whoever reads
//!   afterwards. When it stood there depends on the answer: a grant made by this very call stood there while that was under
//!   way; one that a repeat found may have done so at any time since its lease was first asked for, for what is known to
//!   stand is remembered for a while after Redis has lost it. What stood is the state as of the grant: a fence that rose later,
//!   as an answer to a repeat or after a wait may tell it, may be on its way.
//!
//! A Redis that lost its data says nothing false by that. So the last two of these, and the first of the rest, are asked only
//! between what was seen after the last fault that can lose data, and before the next. Such are all faults of Redis
//! (`redis-…`) but its being stopped for a while.

use std::collections::{BTreeMap, HashMap};

use ringfence_wire::{Key, LeaseId, VerdictName};

use super::bounds::Bounds;
use super::states::States;
use super::{Checker, Found};
use crate::history::{Asked, Came, Fault, History, MirrorEntry, MirrorSight};

/// The mirror is never ahead of the table.
pub const MIRROR_NEVER_AHEAD: Checker = Checker {
    name: "mirror-never-ahead",
    law: "What stands in Redis is a state that the key had, and no token below the fence there is alive.",
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

/// A grant that was answered as mirrored stands in Redis.
pub const BEFORE_ANSWER: Checker = Checker {
    name: "before-answer",
    law: "A grant that was answered as mirrored is seen by whoever reads Redis afterwards, unless Redis lost its data.",
    check: before_answer,
};

fn never_ahead(history: &History) -> Found {
    let mut found = Found::default();
    let states = States::of(history);
    let revisions = Bounds::of_revision(history);
    let lives = Lives::of(history);
    for (sight, entry) in sights(history).iter().filter_map(|sight| Some((sight, sight.entry.as_ref()?))) {
        found.saw("hashes read");
        let MirrorSight { key, ended_us, .. } = sight;
        let (rev, fence) = (entry.rev.0, entry.fence.0);
        if let Some(most) = revisions.ceiling(*ended_us).filter(|most| rev > most.number) {
            let what = format!(
                "{key}: revision {rev} stood in Redis at {}, and the table had {} or less.",
                at(*ended_us),
                most.number
            );
            found.breach(what, most.call);
        } else if let Some(line) = states.line(key).filter(|_| states.has(rev)) {
            found.saw("hashes compared with the state at their revision");
            let step = line.at(rev);
            let token = step.newest.unwrap_or(0);
            if (fence, entry.token.0, entry.held) != (line.fence(rev), token, step.newest.is_some()) {
                let what = format!(
                    "{key}: in Redis stood {} at {}; at that revision it had fence {} and token {token}.",
                    words(entry),
                    at(*ended_us),
                    line.fence(rev)
                );
                found.breach(what, []);
            }
        }
        if let Some((token, call)) = lives.below(key, fence, *ended_us) {
            let what = format!(
                "{key}: in Redis stood {} at {}; and yet token {token} was alive afterwards.",
                words(entry),
                at(*ended_us)
            );
            found.breach(what, [call]);
        }
    }
    needs(&mut found, "hashes read", "no hash was read in Redis");
    found
}

/// For each key, the tokens that it was held by, and a call that showed it alive and was sent the latest.
struct Lives<'h>(HashMap<&'h Key, Vec<Alive>>);

#[derive(Clone, Copy)]
struct Alive {
    token: u64,
    sent_us: u64,
    call: u64,
    /// Of this token and all below it: that which was sent last, its call and token.
    last: (u64, u64, u64),
}

impl<'h> Lives<'h> {
    fn of(history: &'h History) -> Self {
        let mut lives: HashMap<&Key, Vec<Alive>> = HashMap::new();
        let mut saw = |key: &'h Key, token: u64, sent_us: u64, call: u64| {
            lives.entry(key).or_default().push(Alive { token, sent_us, call, last: (0, 0, 0) });
        };
        for call in &history.calls {
            match (&call.asked, &call.came) {
                (Asked::Lease { local: true, .. } | Asked::Key { local: true, .. }, _) => {}
                (_, Came::Granted { grant, .. }) => {
                    for granted in &grant.keys {
                        saw(&granted.key, grant.token.0, call.sent_us, call.id);
                    }
                }
                (_, Came::Key { view }) => {
                    for holder in &view.holders {
                        saw(&view.key, holder.token.0, call.sent_us, call.id);
                    }
                }
                (Asked::Validate { key, token, .. }, Came::Verdict { verdict })
                    if verdict.verdict == VerdictName::Live =>
                {
                    saw(key, token.0, call.sent_us, call.id);
                }
                _ => {}
            }
        }
        for tokens in lives.values_mut() {
            tokens.sort_by_key(|alive| alive.token);
            let mut last = (0, 0, 0);
            for alive in tokens {
                last = last.max((alive.sent_us, alive.call, alive.token));
                alive.last = last;
            }
        }
        Self(lives)
    }

    /// A token below `fence` that was alive after `ended_us`, and the call that showed it.
    fn below(&self, key: &Key, fence: u64, ended_us: u64) -> Option<(u64, u64)> {
        let tokens = self.0.get(key)?;
        let below = tokens.partition_point(|alive| alive.token < fence).checked_sub(1)?;
        let (sent_us, call, token) = tokens[below].last;
        (sent_us > ended_us).then_some((token, call))
    }
}

fn never_falls(history: &History) -> Found {
    let mut found = Found::default();
    let losses = Losses::of(history);
    for (key, sights) in &by_key(history) {
        let seen = sights.iter().filter_map(|sight| {
            let entry = sight.entry.as_ref()?;
            let (rev, fence) = (entry.rev.0, entry.fence.0);
            Some(Stood { sent_us: sight.sent_us, ended_us: sight.ended_us, rev, fence, call: None })
        });
        falls(key, sights, seen.collect(), &losses, &mut found);
    }
    needs(&mut found, "sights after others", "no key was read twice in Redis");
    found
}

fn before_answer(history: &History) -> Found {
    let mut found = Found::default();
    let losses = Losses::of(history);
    let mut first_sent_us: HashMap<LeaseId, u64> = HashMap::new();
    let mut answered: HashMap<&Key, Vec<Stood>> = HashMap::new();
    for call in &history.calls {
        let Asked::Acquire { lease, wait_ms, .. } = call.asked else { continue };
        let first_sent_us = *first_sent_us.entry(lease).or_insert(call.sent_us);
        let Came::Granted { grant, standing, mirrored: Some(mirrored) } = &call.came else { continue };
        if !mirrored {
            found.saw("grants answered before they were mirrored");
            continue;
        }
        found.saw("grants answered as mirrored");
        let is_as_granted = !standing && wait_ms == 0;
        for granted in &grant.keys {
            answered.entry(&granted.key).or_default().push(Stood {
                sent_us: if *standing { first_sent_us } else { call.sent_us },
                ended_us: call.ended_us,
                rev: grant.token.0,
                fence: if is_as_granted { granted.fence.0 } else { 0 },
                call: Some(call.id),
            });
        }
    }
    for (key, sights) in &by_key(history) {
        falls(key, sights, answered.remove(key).unwrap_or_default(), &losses, &mut found);
    }
    needs(&mut found, "sights after others", "no grant was answered as mirrored, or none was looked for");
    found
}

/// What stood in Redis at one instant between these times, or something newer.
struct Stood {
    sent_us: u64,
    ended_us: u64,
    rev: u64,
    /// At least; 0 where that is not known.
    fence: u64,
    call: Option<u64>,
}

impl Stood {
    fn words(&self) -> String {
        match (self.rev, self.fence) {
            (rev, 0) => format!("revision {rev}"),
            (rev, fence) => format!("revision {rev} with fence {fence}"),
        }
    }
}

/// Looks for sights that show less than what stood there before them.
fn falls(key: &Key, sights: &[MirrorSight], mut stood: Vec<Stood>, losses: &Losses, found: &mut Found) {
    stood.sort_by_key(|stood| stood.ended_us);
    let mut stood = stood.iter().peekable();
    let (mut newest, mut highest): (Option<&Stood>, Option<&Stood>) = (None, None);
    for sight in sights {
        while let Some(before) = stood.next_if(|before| before.ended_us < sight.sent_us) {
            newest = newest
                .filter(|newest| newest.rev >= before.rev && losses.none(newest, sight))
                .or(Some(before));
            highest = highest
                .filter(|highest| highest.fence >= before.fence && losses.none(highest, sight))
                .or(Some(before));
        }
        newest = newest.filter(|newest| losses.none(newest, sight));
        highest = highest.filter(|highest| losses.none(highest, sight));
        let (Some(newest), Some(highest)) = (newest, highest) else { continue };
        found.saw("sights after others");
        let shown = sight.entry.as_ref();
        let fell = if shown.is_none_or(|entry| entry.rev.0 < newest.rev) {
            newest
        } else if shown.is_none_or(|entry| entry.fence.0 < highest.fence) {
            highest
        } else {
            continue;
        };
        let what = format!(
            "{key}: {} stood in Redis at {}, and at {} {}.",
            fell.words(),
            at(fell.ended_us),
            at(sight.ended_us),
            shown.map_or("nothing".to_owned(), words)
        );
        found.breach(what, fell.call);
    }
}

fn equal_at_end(history: &History) -> Found {
    let mut found = Found::default();
    let states = States::of(history);
    let end = &history.end;
    let all_was_well = history.faults.is_empty();
    for view in &end.keys {
        let key = &view.key;
        let newest = view.holders.iter().map(|holder| holder.token.0).max();
        let Some(entry) = end.mirror.get(key) else {
            found.saw("keys not looked for");
            continue;
        };
        found.saw(if newest.is_some() { "keys held" } else { "keys free" });
        let line = states.line(key);
        let last_granted = line.and_then(|line| line.last_granted(view.revision.0));
        let fits = match (entry, newest) {
            (Some(entry), Some(newest)) => entry.held && entry.token.0 == newest && entry.fence == view.fence,
            (None, Some(_)) => false,
            (Some(entry), None) => {
                let newer_than_its_last = last_granted.is_none_or(|last| entry.fence.0 > last);
                let as_freed = entry.fence.0 == entry.rev.0 + 1;
                !entry.held
                    && entry.token.0 == 0
                    && as_freed
                    && entry.fence <= view.fence
                    && newer_than_its_last
            }
            (None, None) => !(all_was_well && last_granted.is_some()),
        };
        if !fits {
            let what = format!(
                "{key}: in the end it has fence {} and {}, and in Redis stands {}.",
                view.fence,
                newest.map_or("no holder".to_owned(), |newest| format!("token {newest}")),
                entry.as_ref().map_or("nothing".to_owned(), words)
            );
            found.breach(what, []);
        }
    }
    if found.counts.contains_key("keys not looked for") {
        found.undecided = Some("a key was not looked for in Redis in the end".to_owned());
    } else if !end.mirror.values().any(Option::is_some) {
        found.undecided = Some("Redis showed no key in the end".to_owned());
    }
    found
}

/// The times in which Redis may have lost data.
struct Losses {
    /// By their beginnings; and the last end of each and those before.
    faults: Vec<(u64, u64)>,
}

impl Losses {
    fn of(history: &History) -> Self {
        let loses = |fault: &&Fault| {
            let of_redis = fault.nemesis.strip_prefix("redis-");
            of_redis.is_some_and(|what| !matches!(what, "pause" | "stop"))
        };
        let lost = history.faults.iter().filter(loses);
        let mut faults: Vec<(u64, u64)> = lost.map(|fault| (fault.from_us, fault.to_us)).collect();
        faults.sort_unstable();
        let mut last = 0;
        for fault in &mut faults {
            last = last.max(fault.1);
            fault.1 = last;
        }
        Self { faults }
    }

    /// Whether nothing can have been lost from what stood there until it was looked for.
    fn none(&self, stood: &Stood, sight: &MirrorSight) -> bool {
        let begun = self.faults.partition_point(|fault| fault.0 <= sight.ended_us);
        begun.checked_sub(1).is_none_or(|last| self.faults[last].1 < stood.sent_us)
    }
}

/// All sights, and those in the end, by time.
fn sights(history: &History) -> Vec<MirrorSight> {
    let end = &history.end;
    let last_us = history.mirror.iter().map(|sight| sight.ended_us).fold(end.read_us, u64::max);
    let at_end = end.mirror.iter().map(|(key, entry)| MirrorSight {
        sent_us: last_us + 1,
        ended_us: u64::MAX,
        key: key.clone(),
        entry: entry.clone(),
    });
    let mut sights: Vec<_> = history.mirror.iter().cloned().chain(at_end).collect();
    sights.sort_by_key(|sight| sight.sent_us);
    sights
}

fn by_key(history: &History) -> BTreeMap<Key, Vec<MirrorSight>> {
    let mut by_key: BTreeMap<Key, Vec<MirrorSight>> = BTreeMap::new();
    for sight in sights(history) {
        by_key.entry(sight.key.clone()).or_default().push(sight);
    }
    by_key
}

fn needs(found: &mut Found, seen: &str, otherwise: &str) {
    if !found.counts.contains_key(seen) {
        found.undecided = Some(otherwise.to_owned());
    }
}

fn words(entry: &MirrorEntry) -> String {
    let state = if entry.held { "held" } else { "free" };
    format!("revision {} with fence {}, token {}, {state}", entry.rev, entry.fence, entry.token)
}

fn at(us: u64) -> String {
    match us {
        u64::MAX => "the end".to_owned(),
        us => format!("{:.3} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests;
