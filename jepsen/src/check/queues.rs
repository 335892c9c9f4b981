//! First come, first served; and nobody is served after his wait.
//!
//! **Order, from the log.** The queues are built again from its changes. By the contract a key is free for a lease when it
//! is compatible with every live lease and every earlier waiter on that key, *counted together*, limits included; so each
//! grant is held against those who stood there. Leases and waiters from before the log began are not known: the more there
//! are, the less is free, so nothing is found wrong for their sake.
//!
//! **Nobody is passed over.** A release or expiry grants the next waiter in the same entry. So after each entry, the first
//! waiter of a key that somebody left must stand against something on one of his keys. That is only told where the whole
//! line of each of his keys is known: from the beginning of the log if nothing was cut off, or since the key was granted to
//! one lease alone, before which nobody can have stood.
//!
//! **Order, from calls.** Who was told that it waits, before another lease was first asked for, and gets the larger token
//! of the two, though they cannot hold one of their keys together: it was overtaken.
//!
//! **Late waiters.** A lease that was told `wait-timeout` is never granted while it is remembered. In the log, a grant from
//! the queue comes no later than all waits of its acquires together, in cluster time (each may begin when the one before is
//! about to end; `keep_place` adds 5 s each). And where no fault is near, no acquire is answered with a grant much later than
//! its wait: a node that hears nothing is given 10 s by itself, the mirror some more, so that the bound is [`LATE_US`].

use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{Key, LeaseId, Mode, ProblemKind, Revision};

use super::lives::{Life, Lives, REMEMBERED_MS, at, did_nothing, problem, revisions};
use super::tally::Tally;
use super::{Checker, Found};
use crate::history::{Asked, Call, Came, Change, ChangeName, History};

/// First come, first served.
pub const QUEUE_ORDER: Checker = Checker {
    name: "queue-order",
    law: "First come, first served: no lease is granted against an earlier waiter, counted together with the holders, \
          and nobody who fits is passed over.",
    check: check_order,
};

/// No waiter is granted after the end of its wait.
pub const NO_LATE_WAITER: Checker = Checker {
    name: "no-late-waiter",
    law: "A waiter is granted within its wait, or never.",
    check: check_late,
};

/// How much later than its wait a grant may be answered where no fault is near.
const LATE_US: u64 = 20_000_000;

fn check_order(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    served_in_order(history, &lives, &mut found);
    nobody_was_told_otherwise(&lives, &mut found);
    if !found.counts.contains_key("grants from the queue") && !found.counts.contains_key("who waited first") {
        found.undecided = Some("nobody was granted from a queue".to_owned());
    }
    found
}

/// The line of one key.
#[derive(Default)]
struct Line {
    /// All holders and waiters.
    all: Tally,
    /// The holders alone.
    held: Tally,
    /// The waiters by their places.
    queue: BTreeMap<Revision, (LeaseId, Mode)>,
    /// Whether nobody can be in it that the log does not tell of.
    known: bool,
}

/// A lease in the lines.
struct Member<'a> {
    keys: Vec<(&'a Key, Mode)>,
    /// The place of a waiter; `None` for a holder.
    place: Option<Revision>,
}

#[derive(Default)]
struct Lines<'a> {
    lines: BTreeMap<&'a Key, Line>,
    members: BTreeMap<LeaseId, Member<'a>>,
    /// Whether the log was read from its beginning.
    whole: bool,
}

impl<'a> Lines<'a> {
    fn line(&mut self, key: &'a Key) -> &mut Line {
        let known = self.whole;
        self.lines.entry(key).or_insert_with(|| Line { known, ..Line::default() })
    }

    fn enter(&mut self, change: &'a Change, place: Option<Revision>) {
        self.leave(change.lease_id);
        let keys: Vec<(&Key, Mode)> =
            change.keys.iter().map(|changed| (&changed.key, changed.mode)).collect();
        for &(key, mode) in &keys {
            let line = self.line(key);
            line.all.add(mode);
            match place {
                Some(place) => drop(line.queue.insert(place, (change.lease_id, mode))),
                None => line.held.add(mode),
            }
        }
        self.members.insert(change.lease_id, Member { keys, place });
    }

    /// Takes a lease out, and tells its place if it waited.
    fn leave(&mut self, lease: LeaseId) -> Option<Revision> {
        let member = self.members.remove(&lease)?;
        for &(key, mode) in &member.keys {
            let line = self.line(key);
            line.all.remove(mode);
            match member.place {
                Some(place) => drop(line.queue.remove(&place)),
                None => line.held.remove(mode),
            }
        }
        member.place
    }

    /// Whether a key is free for a claim that stands at this place.
    fn is_free(&mut self, key: &'a Key, mode: Mode, place: Revision) -> bool {
        let line = self.line(key);
        // Most come when nobody stands behind them: no need to count who stands before.
        if line.queue.last_key_value().is_none_or(|(&last, _)| last < place) {
            line.all.bears(mode)
        } else {
            line.earlier(place).bears(mode)
        }
    }
}

impl Line {
    /// The holders and the waiters before this place.
    fn earlier(&self, place: Revision) -> Tally {
        let mut earlier = self.held.clone();
        self.queue.range(..place).for_each(|(_, &(_, mode))| earlier.add(mode));
        earlier
    }
}

fn served_in_order(history: &History, lives: &Lives, found: &mut Found) {
    let changes = &history.end.changes;
    let (known, after) = (revisions(history), history.end.changes_after);
    // Whether a lease cannot have waited before the log that was read began.
    let is_new = |lease: LeaseId| {
        let asked_us = lives.by_id.get(&lease).and_then(Life::first_sent_us);
        asked_us.and_then(|us| known.before(us)).is_some_and(|(revision, _)| revision >= after.0)
    };
    let mut lines = Lines { whole: history.end.changes_after == Revision(0), ..Lines::default() };
    let mut freed: BTreeSet<&Key> = BTreeSet::new();
    for (n, change) in changes.iter().enumerate() {
        match change.change {
            ChangeName::Queued => lines.enter(change, Some(change.revision)),
            ChangeName::Granted => {
                let stood = match lines.leave(change.lease_id) {
                    Some(place) => Stood::At(place),
                    None if lines.whole || is_new(change.lease_id) => Stood::Nowhere,
                    None => Stood::Unknown,
                };
                served(change, stood, &mut lines, found);
                lines.enter(change, None);
            }
            ChangeName::Ended | ChangeName::Left => {
                lines.leave(change.lease_id);
                freed.extend(change.keys.iter().map(|changed| &changed.key));
            }
        }
        if changes.get(n + 1).is_none_or(|next| next.index != change.index) {
            for key in std::mem::take(&mut freed) {
                passed_over(key, change, &mut lines, found);
            }
        }
    }
}

/// Where a lease stood before its grant.
#[derive(Clone, Copy)]
enum Stood {
    /// It had this place.
    At(Revision),
    /// It was granted at once.
    Nowhere,
    /// It was granted at once, or had a place from before the log that was read.
    Unknown,
}

/// Holds one grant against who stood there.
fn served<'a>(change: &'a Change, stood: Stood, lines: &mut Lines<'a>, found: &mut Found) {
    let (what, place) = match stood {
        Stood::At(place) => ("grants from the queue", place),
        Stood::Nowhere => ("grants at once", change.revision),
        Stood::Unknown => ("grants of leases that may have waited before the log", Revision(0)),
    };
    found.saw(what);
    for changed in &change.keys {
        if !lines.is_free(&changed.key, changed.mode, place) {
            let line = lines.line(&changed.key);
            let whom = if line.held.bears(changed.mode) {
                let earlier = line.queue.range(..place);
                let earlier: Vec<String> =
                    earlier.map(|(place, (lease, _))| format!("{lease} (place {place})")).collect();
                format!("waited before it: {}", earlier.join(", "))
            } else {
                "held it".to_owned()
            };
            let what = format!(
                "lease {} was granted {} at revision {} against who {whom}",
                change.lease_id, changed.key, change.revision
            );
            found.breach(what, []);
        }
        if changed.mode == Mode::Exclusive && !matches!(stood, Stood::Unknown) {
            lines.line(&changed.key).known = true;
        }
    }
}

/// Looks at the first waiter of a key that somebody left.
fn passed_over<'a>(key: &'a Key, last: &Change, lines: &mut Lines<'a>, found: &mut Found) {
    let Some((&place, &(lease, _))) = lines.line(key).queue.first_key_value() else { return };
    let Some(keys) = lines.members.get(&lease).map(|member| member.keys.clone()) else { return };
    if keys.iter().any(|(key, _)| !lines.line(key).known) {
        return;
    }
    found.saw("waiters that stayed first");
    if keys.iter().all(|&(key, mode)| lines.is_free(key, mode, place)) {
        let what = format!(
            "lease {lease} (place {place}) was passed over: after revision {} nothing stands against it on {key}",
            last.revision
        );
        found.breach(what, []);
    }
}

/// Who overtook whom, as their clients were told.
fn nobody_was_told_otherwise(lives: &Lives, found: &mut Found) {
    /// A lease on a key: when it was known to wait or, of who came later, when it was first asked for; whether it came
    /// later; its token; whether it wants the key alone.
    type Visit<'a> = (u64, bool, u64, bool, &'a Life<'a>, LeaseId);
    let mut visits: BTreeMap<&Key, Vec<Visit>> = BTreeMap::new();
    for (&lease, life) in &lives.by_id {
        let [token] = life.tokens()[..] else { continue };
        // Who lost its place may come again, when its id is forgotten.
        let stayed = life.changes.iter().all(|change| change.change != ChangeName::Left);
        let waits = life.calls.iter().filter(|call| matches!(call.came, Came::Waiting { .. }));
        let waits_us = waits.map(|call| call.ended_us).min().filter(|_| stayed);
        let asked_us = life.first_sent_us();
        for (key, mode) in life.holds(token) {
            let alone = mode == Mode::Exclusive;
            let on_key = visits.entry(key).or_default();
            on_key.extend(waits_us.map(|us| (us, false, token.0, alone, life, lease)));
            on_key.extend(asked_us.map(|us| (us, true, token.0, alone, life, lease)));
        }
    }
    for (key, mut visits) in visits {
        // At the same microsecond nothing precedes: who came later goes first.
        visits.sort_unstable_by_key(|&(us, later, ..)| (us, !later));
        // The largest token of those known to wait: of all, and of those who want the key alone.
        let mut last: [Option<(u64, LeaseId, &Life)>; 2] = [None, None];
        for (_, later, token, alone, life, lease) in visits {
            if !later {
                for of in if alone { &[0, 1][..] } else { &[0][..] } {
                    if last[*of].is_none_or(|(most, ..)| most < token) {
                        last[*of] = Some((token, lease, life));
                    }
                }
            } else if let Some((waited, first, other)) = last[usize::from(!alone)] {
                found.saw("who waited first");
                if waited > token {
                    let what = format!(
                        "lease {lease} overtook {first} on {key}: it was asked for when the other was known to \
                         wait, and has token {token}, the other {waited}"
                    );
                    let calls = other.calls.iter().chain(&life.calls);
                    found.breach(what, calls.map(|call| call.id).collect::<BTreeSet<_>>());
                }
            }
        }
    }
}

fn check_late(history: &History) -> Found {
    let mut found = Found::default();
    for (lease, life) in &Lives::of(history).by_id {
        let name = lease.to_string();
        never_after_a_timeout(&name, life, &mut found);
        within_its_waits(&name, life, &mut found);
        answered_in_time(&name, life, history, &mut found);
        let ran_out = |change: &&Change| change.change == ChangeName::Left && change.reason.is_none();
        life.changes.iter().copied().filter(ran_out).for_each(|_| found.saw("waits that ran out"));
    }
    if !found.counts.contains_key("waits that ran out") {
        found.undecided = Some("no wait ran out".to_owned());
    }
    found
}

/// Which came first does not matter: a lease that was granted is never said to have waited in vain either.
fn never_after_a_timeout(name: &str, life: &Life, found: &mut Found) {
    let in_vain = |call: &&Call| {
        matches!(call.asked, Asked::Acquire { .. }) && problem(call) == Some(ProblemKind::WaitTimeout)
    };
    let Some(told) = life.calls.iter().copied().find(in_vain) else { return };
    found.saw("waits that ran out");
    let last_us = life.calls.iter().map(|call| call.ended_us).max().unwrap_or(0);
    let remembered = life.first_sent_us().is_some_and(|us| last_us < us + REMEMBERED_MS * 1_000);
    let tokens = life.tokens();
    if remembered && !tokens.is_empty() {
        let what =
            format!("lease {name} was told wait-timeout at {}, and granted: {tokens:?}", at(told.ended_us));
        found.breach(what, [told.id].into_iter().chain(life.grants.iter().map(|(call, _)| call.id)));
    }
}

fn within_its_waits(name: &str, life: &Life, found: &mut Found) {
    for pair in life.changes.windows(2) {
        let (queued, granted) = (pair[0], pair[1]);
        if (queued.change, granted.change) != (ChangeName::Queued, ChangeName::Granted) {
            continue;
        }
        found.saw("grants from the queue");
        // A lease that nobody of this history asked for has no bound.
        if life.acquires().next().is_none() {
            continue;
        }
        let asked = life.acquires().filter(|acquire| !did_nothing(acquire.call));
        let waits_ms: u64 = asked.map(|acquire| acquire.place_ms()).sum();
        if granted.at_ms > queued.at_ms.saturating_add(waits_ms) {
            let what = format!(
                "lease {name} took its place at {} ms of cluster time, could wait {waits_ms} ms in all, and was \
                 granted at {} ms with revision {}",
                queued.at_ms, granted.at_ms, granted.revision
            );
            found.breach(what, life.calls.iter().map(|call| call.id));
        }
    }
}

fn answered_in_time(name: &str, life: &Life, history: &History, found: &mut Found) {
    for acquire in life.acquires() {
        let call = acquire.call;
        let due_us = call.sent_us + acquire.wait_ms * 1_000 + LATE_US;
        if matches!(call.came, Came::Granted { .. }) && acquire.wait_ms > 0 {
            found.saw("waits answered with a grant");
            let near = |from_us: u64, to_us: u64| from_us < call.ended_us && to_us + LATE_US > call.sent_us;
            if call.ended_us > due_us && !history.faults.iter().any(|fault| near(fault.from_us, fault.to_us))
            {
                let what = format!(
                    "lease {name}: asked at {} to wait {} ms, granted at {}",
                    at(call.sent_us),
                    acquire.wait_ms,
                    at(call.ended_us)
                );
                found.breach(what, [call.id]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
