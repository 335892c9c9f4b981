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
mod tests {
    use ringfence_wire::{Revision, Token, Verdict as Said};

    use super::*;
    use crate::check::Verdict;
    use crate::check::scene::{acquire, call, change, granted, key, look, numbered, view};
    use crate::history::ChangeName::{Ended, Granted};

    fn entry(rev: u64, fence: u64, token: u64) -> Option<MirrorEntry> {
        Some(MirrorEntry { rev: Revision(rev), fence: Token(fence), token: Token(token), held: token > 0 })
    }

    fn sight(sent_us: u64, entry: Option<MirrorEntry>) -> MirrorSight {
        MirrorSight { sent_us, ended_us: sent_us + 1, key: key(), entry }
    }

    fn fault(nemesis: &str, from_us: u64, to_us: u64) -> Fault {
        Fault { nemesis: nemesis.to_owned(), what: String::new(), nodes: Vec::new(), from_us, to_us }
    }

    /// Lease 1 holds the key from revision 3 to 5, and lease 2 from 8 on.
    fn run(sights: impl IntoIterator<Item = MirrorSight>) -> History {
        let mut history = History { mirror: sights.into_iter().collect(), ..History::default() };
        history.end.changes = vec![
            change(3, 1, Granted, Some(3), 3),
            change(5, 1, Ended, Some(3), 6),
            change(8, 2, Granted, Some(8), 8),
            change(9, 3, Granted, Some(9), 8),
        ];
        history.end.changes[3].keys.clear();
        history
    }

    fn only(found: Found) -> String {
        assert_eq!(found.breaches.len(), 1, "{found:?}");
        found.breaches[0].what.clone()
    }

    #[test]
    fn old_states_are_never_ahead() {
        let found = never_ahead(&run([
            sight(1, None),
            sight(20, entry(4, 3, 3)),
            sight(30, entry(6, 7, 0)),
            sight(40, entry(9, 8, 8)),
        ]));
        assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
        assert_eq!(found.counts["hashes compared with the state at their revision"], 3);
        assert_eq!(never_ahead(&run([sight(1, None)])).verdict(), Verdict::Unknown);
    }

    #[test]
    fn a_hash_that_is_no_state_of_its_revision_is_found() {
        // A fence of a later view; the token of another; a word that is not true.
        assert!(only(never_ahead(&run([sight(20, entry(4, 6, 3))]))).contains("it had fence 3 and token 3"));
        only(never_ahead(&run([sight(20, entry(4, 3, 4))])));
        let mut lies = sight(20, entry(4, 3, 3));
        lies.entry.as_mut().unwrap().held = false;
        only(never_ahead(&run([lies])));
    }

    #[test]
    fn a_revision_that_the_table_had_not_reached_is_found() {
        let asked = Asked::Key { key: key(), local: false };
        let mut history = numbered([call(30, 31, asked, Came::Key { view: view(4, 5, &[], 0) })]);
        history.mirror = vec![sight(20, entry(8, 8, 8))];
        assert!(only(never_ahead(&history)).contains("the table had 4 or less"));
        history.mirror = vec![sight(30, entry(8, 8, 8))];
        assert_eq!(never_ahead(&history).verdict(), Verdict::Valid);
    }

    #[test]
    fn a_fence_above_a_token_that_lives_on_is_found() {
        for (asked, came) in [
            (look(1), granted(1, 3, 3)),
            (Asked::Key { key: key(), local: false }, Came::Key { view: view(9, 3, &[3], 0) }),
            (
                Asked::Validate { key: key(), token: Token(3), local: false },
                Came::Verdict { verdict: Said { verdict: VerdictName::Live, fence: Token(3) } },
            ),
        ] {
            let mut history = numbered([call(30, 31, asked, came)]);
            history.mirror = vec![sight(20, entry(5, 6, 0))];
            assert!(only(never_ahead(&history)).contains("token 3 was alive afterwards"));
            history.mirror = vec![sight(29, entry(5, 6, 0))];
            assert_eq!(never_ahead(&history).verdict(), Verdict::Valid, "it ended in between");
        }
    }

    #[test]
    fn what_rises_never_falls() {
        let sights =
            [sight(1, None), sight(10, entry(3, 3, 3)), sight(20, entry(3, 3, 3)), sight(30, entry(5, 6, 0))];
        let found = never_falls(&run(sights));
        assert_eq!((found.verdict(), found.counts["sights after others"]), (Verdict::Valid, 2), "{found:?}");
        assert_eq!(never_falls(&run([sight(1, None)])).verdict(), Verdict::Unknown);
    }

    #[test]
    fn a_fall_is_found_unless_redis_lost_its_data_in_between() {
        let falls = [
            (entry(8, 8, 8), entry(5, 6, 0)),
            (entry(8, 8, 8), None),
            (entry(8, 8, 8), entry(7, 8, 0)),
            // Of a later state, and yet with a lower fence.
            (entry(8, 8, 8), entry(9, 7, 7)),
        ];
        for (before, after) in falls {
            let mut history = run([sight(10, before), sight(20, after)]);
            assert!(only(never_falls(&history)).contains("revision 8 with fence 8 stood in Redis"));
            history.faults =
                vec![fault("redis-pause", 12, 15), fault("kill", 12, 15), fault("redis-kill", 1, 5)];
            only(never_falls(&history));
            history.faults.push(fault("redis-empty", 12, 15));
            assert_eq!(never_falls(&history).verdict(), Verdict::Unknown);
        }
        let mut at_end = run([sight(10, entry(8, 8, 8))]);
        at_end.end.mirror.insert(key(), None);
        assert!(only(never_falls(&at_end)).contains("and at the end nothing"));
    }

    #[test]
    fn what_falls_after_a_loss_is_found_as_well() {
        let sights = [
            sight(10, entry(8, 8, 8)),
            sight(30, entry(4, 3, 3)),
            sight(40, entry(5, 6, 0)),
            sight(50, entry(4, 3, 3)),
        ];
        let mut history = run(sights);
        history.faults = vec![fault("redis-rollback", 20, 25)];
        assert!(only(never_falls(&history)).contains("revision 5 with fence 6"));
    }

    #[test]
    fn redis_is_equal_in_the_end() {
        let mut history = run([]);
        history.end.mirror.insert(key(), entry(8, 8, 8));
        history.end.keys = vec![view(9, 8, &[8], 0)];
        assert_eq!(equal_at_end(&history).verdict(), Verdict::Valid);
        for wrong in [None, entry(8, 8, 0), entry(8, 7, 8), entry(8, 8, 9), entry(5, 6, 0)] {
            history.end.mirror.insert(key(), wrong);
            only(equal_at_end(&history));
        }
        let free = entry(8, 8, 8).map(|entry| MirrorEntry { held: false, ..entry });
        history.end.mirror.insert(key(), free);
        only(equal_at_end(&history));
        history.end.mirror.clear();
        assert_eq!(equal_at_end(&history).verdict(), Verdict::Unknown);
    }

    #[test]
    fn a_free_key_keeps_the_fence_it_was_freed_at() {
        let mut history = run([]);
        history.end.changes.push(change(12, 2, Ended, Some(8), 13));
        history.end.keys = vec![view(20, 21, &[], 0)];
        history.end.mirror.insert(key(), entry(12, 13, 0));
        assert_eq!(equal_at_end(&history).verdict(), Verdict::Valid);
        // As it was freed before; as it was held; ahead; neither.
        for wrong in [entry(5, 6, 0), entry(8, 8, 8), entry(21, 22, 0), entry(13, 13, 0), None] {
            history.end.mirror.insert(key(), wrong);
            only(equal_at_end(&history));
        }
        history.faults = vec![fault("kill", 1, 2)];
        assert_eq!(equal_at_end(&history).breaches, [], "it may never have been written");
    }

    #[test]
    fn a_mirrored_grant_is_seen_by_whoever_reads_afterwards() {
        let answered = |mirrored| {
            let Came::Granted { grant, standing, .. } = granted(2, 8, 8) else { unreachable!() };
            call(5, 9, acquire(2), Came::Granted { grant, standing, mirrored: Some(mirrored) })
        };
        let with = |mirrored, sight| History { mirror: vec![sight], ..numbered([answered(mirrored)]) };
        assert_eq!(before_answer(&with(true, sight(10, entry(8, 8, 8)))).verdict(), Verdict::Valid);
        for shown in [None, entry(5, 6, 0)] {
            let mut history = with(true, sight(10, shown.clone()));
            assert_eq!(before_answer(&history).breaches[0].calls, [0]);
            history.faults = vec![fault("redis-empty", 7, 8)];
            assert_eq!(before_answer(&history).verdict(), Verdict::Unknown);
            assert_eq!(before_answer(&with(true, sight(9, shown.clone()))).verdict(), Verdict::Unknown);
            assert_eq!(before_answer(&with(false, sight(10, shown))).verdict(), Verdict::Unknown);
        }
    }

    #[test]
    fn a_repeat_may_be_told_of_what_redis_has_lost_since_its_lease_was_first_asked_for() {
        let answered = |when: (u64, u64), now: bool| {
            let Came::Granted { grant, .. } = granted(2, 8, 8) else { unreachable!() };
            call(when.0, when.1, acquire(2), Came::Granted { grant, standing: !now, mirrored: Some(true) })
        };
        let told = |first, again| numbered([answered((5, 9), first), answered((30, 35), again)]);
        let lost = |history: History, from, to| History {
            mirror: vec![sight(40, entry(5, 6, 0))],
            faults: vec![fault("redis-rollback", from, to)],
            ..history
        };
        // It stood there while the first call was under way, was lost, and is remembered.
        assert_eq!(before_answer(&lost(told(true, false), 20, 25)).breaches, []);
        // Had it been granted only by the second, it could not be remembered from before.
        assert_eq!(before_answer(&lost(told(false, true), 20, 25)).breaches[0].calls, [1]);
        // Nor had it been lost before anybody asked.
        assert_eq!(before_answer(&lost(told(true, false), 2, 4)).breaches.len(), 1);
    }

    #[test]
    fn a_fence_that_rose_after_the_grant_may_be_on_its_way() {
        let shown = |standing, wait_ms| {
            let Came::Granted { grant, .. } = granted(2, 8, 8) else { unreachable!() };
            let came = Came::Granted { grant, standing, mirrored: Some(true) };
            let mut history = numbered([call(5, 9, acquire(2), came)]);
            let Asked::Acquire { wait_ms: waits, .. } = &mut history.calls[0].asked else { unreachable!() };
            *waits = wait_ms;
            history.mirror = vec![sight(10, entry(8, 6, 8))];
            before_answer(&history)
        };
        only(shown(false, 0));
        assert_eq!(shown(true, 0).verdict(), Verdict::Valid);
        assert_eq!(shown(false, 100).verdict(), Verdict::Valid);
    }
}
