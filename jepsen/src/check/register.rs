//! A register behind a guard accepts no stale write and loses no update.
//!
//! The guard's order of events is not visible. But every write names the write that it read, so those that were accepted
//! tell their order themselves: each was made over the one before.
//!
//! - **No update is lost**: no two accepted writes were made over the same one, nothing that was read and built upon was
//!   rejected or never written, and nobody who came later saw an earlier write.
//! - **Nothing stale is accepted**: once a read or write was accepted with a fence, no call that was sent afterwards is
//!   accepted with a token below it. And a guard that rejects does so for a number above the token.
//! - **Something stale was rejected**: else the run shows nothing.
//!
//! A write without an answer counts as done if somebody has read it; else it may have been done and overwritten by its own
//! holder, or not, and nothing is made of it. In a run without guards, the same laws must be found broken.

use std::collections::{BTreeMap, HashMap};

use ringfence_wire::Key;

use super::{Checker, Found};
use crate::history::{Asked, Call, Came, History};

/// A guarded register accepts no stale write, loses no update, and has rejected some.
pub const FENCED_REGISTER: Checker = Checker {
    name: "fenced-register",
    law: "A guarded register accepts no stale write and loses no update, and stale writers were rejected.",
    check: fenced_register,
};

/// A write of a register.
#[derive(Clone, Copy)]
pub(super) struct Write<'h> {
    pub(super) call: &'h Call,
    /// What it was made over: the id of a write, or 0.
    pub(super) over: u64,
}

/// The writes of one register, by their ids, and its calls in the order they were sent.
#[derive(Default)]
pub(super) struct Register<'h> {
    pub(super) calls: Vec<&'h Call>,
    pub(super) writes: HashMap<u64, Write<'h>>,
}

/// All registers of a run.
pub(super) fn registers(history: &History) -> BTreeMap<&Key, Register<'_>> {
    let mut registers: BTreeMap<&Key, Register<'_>> = BTreeMap::new();
    for call in &history.calls {
        match &call.asked {
            Asked::Read { key, .. } => registers.entry(key).or_default().calls.push(call),
            Asked::Write { key, over, value, .. } => {
                let register = registers.entry(key).or_default();
                register.calls.push(call);
                register.writes.insert(*value, Write { call, over: *over });
            }
            _ => {}
        }
    }
    registers
}

/// What an accepted call left in its register, or found there.
pub(super) fn accepted(call: &Call) -> Option<u64> {
    match (&call.asked, &call.came) {
        (Asked::Write { value, .. }, Came::Register { .. }) => Some(*value),
        (Asked::Read { .. }, &Came::Register { value }) => Some(value),
        _ => None,
    }
}

pub(super) fn is_write(call: &Call) -> bool {
    matches!(call.asked, Asked::Write { .. })
}

fn fenced_register(history: &History) -> Found {
    let mut found = Found::default();
    for (key, register) in &registers(history) {
        nothing_stale(key, register, &mut found);
        let places = one_chain(key, register, &mut found);
        never_back(key, register, &places, &mut found);
    }
    if !found.counts.contains_key("writes accepted") {
        found.undecided = Some("no write was accepted".to_owned());
    } else if !found.counts.contains_key("stale calls rejected") {
        found.undecided = Some("no stale call was rejected: nobody came too late".to_owned());
    }
    found
}

/// Compares each accepted call with the largest fence of those that had ended before it was sent.
fn nothing_stale(key: &Key, register: &Register<'_>, found: &mut Found) {
    let mut ended: Vec<&Call> =
        register.calls.iter().copied().filter(|call| accepted(call).is_some()).collect();
    ended.sort_by_key(|call| call.ended_us);
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<(u64, &Call)> = None;
    for &call in &register.calls {
        while let Some(before) = ended.next_if(|before| before.ended_us < call.sent_us) {
            let fence = numbers(before).1;
            if highest.is_none_or(|(high, _)| fence > high) {
                highest = Some((fence, before));
            }
        }
        let (token, _) = numbers(call);
        if let Came::Stale { high } = call.came {
            found.saw("stale calls rejected");
            if high.0 <= token {
                let what = format!("{key}: the guard rejected token {token}, though its number is {high}.");
                found.breach(what, [call.id]);
            }
        }
        if accepted(call).is_some() {
            found.saw(if is_write(call) { "writes accepted" } else { "reads accepted" });
            if let Some((high, before)) = highest.filter(|(high, _)| *high > token) {
                let verb = if is_write(call) { "write" } else { "read" };
                let what = format!(
                    "{key}: a stale {verb} with token {token} was accepted, though one with fence {high} had been before it was \
                     sent."
                );
                found.breach(what, [before.id, call.id]);
            }
        }
    }
}

/// The writes that were done, each by its place in the chain of them, 1 for the first; and 0 for what was before all.
fn one_chain(key: &Key, register: &Register<'_>, found: &mut Found) -> HashMap<u64, usize> {
    let mut values: Vec<u64> = register.calls.iter().filter_map(|call| accepted(call)).collect();
    let mut next: HashMap<u64, Write<'_>> = HashMap::new();
    let mut done = HashMap::from([(0, ())]);
    // What was built upon was done as well.
    while let Some(value) = values.pop() {
        if done.insert(value, ()).is_some() {
            continue;
        }
        let Some(&write) = register.writes.get(&value) else {
            found.breach(format!("{key}: {value} was read, and nobody has written it."), []);
            continue;
        };
        if !write.call.may_be_done() {
            let what = format!("{key}: write {value} was rejected, and found in the register all the same.");
            found.breach(what, [write.call.id]);
        }
        if let Some(first) = next.insert(write.over, write) {
            let what = format!(
                "{key}: an update is lost: write {} and write {value} were both made over {}.",
                value_of(first.call),
                write.over
            );
            found.breach(what, [first.call.id, write.call.id]);
        }
        values.push(write.over);
    }
    let mut places = HashMap::from([(0, 0)]);
    let mut last = 0;
    while let Some(write) = next.get(&last) {
        last = value_of(write.call);
        if places.insert(last, places.len()).is_some() {
            break;
        }
    }
    places
}

/// Nobody who comes later sees an earlier place of the chain. What is not in it has been told of.
fn never_back(key: &Key, register: &Register<'_>, places: &HashMap<u64, usize>, found: &mut Found) {
    let place = |call: &Call| places.get(&accepted(call)?).copied();
    let mut ended: Vec<&Call> = register.calls.iter().copied().filter(|call| place(call).is_some()).collect();
    ended.sort_by_key(|call| call.ended_us);
    let mut ended = ended.into_iter().peekable();
    let mut furthest: Option<(usize, &Call)> = None;
    for &call in &register.calls {
        while let Some(before) = ended.next_if(|before| before.ended_us < call.sent_us) {
            let place = place(before).unwrap_or(0);
            if furthest.is_none_or(|(far, _)| place > far) {
                furthest = Some((place, before));
            }
        }
        if let (Some(at), Some((far, before))) = (place(call), furthest)
            && at < far
        {
            let what = format!(
                "{key}: write {} was there, and later write {} was found in its place, which is older.",
                accepted(before).unwrap_or(0),
                accepted(call).unwrap_or(0)
            );
            found.breach(what, [before.id, call.id]);
        }
    }
}

/// The token and the fence that a call shows to the guard.
fn numbers(call: &Call) -> (u64, u64) {
    match &call.asked {
        Asked::Read { token, fence, .. } | Asked::Write { token, fence, .. } => (token.0, fence.0),
        _ => (0, 0),
    }
}

fn value_of(call: &Call) -> u64 {
    match &call.asked {
        Asked::Write { value, .. } => *value,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use crate::check::scene::{numbered, read, rejected, unknown, write};

    #[test]
    fn a_chain_of_updates_with_a_stale_writer_rejected_is_valid() {
        let run = numbered([
            read(0, 1, 5, 0),
            write(2, 3, 5, 0, 1),
            read(4, 5, 9, 1),
            rejected(write(6, 7, 5, 1, 2), 9),
            // Its answer was lost, but somebody read it.
            unknown(write(8, 9, 9, 1, 3)),
            // It may have been done and overwritten by its holder.
            unknown(write(8, 9, 9, 1, 7)),
            read(10, 11, 9, 3),
            write(12, 13, 9, 3, 4),
        ]);
        let found = fenced_register(&run);
        assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
        assert_eq!(found.counts["stale calls rejected"], 1);
    }

    #[test]
    fn a_run_in_which_nobody_came_too_late_shows_nothing() {
        let found = fenced_register(&numbered([read(0, 1, 5, 0), write(2, 3, 5, 0, 1)]));
        assert_eq!(found.verdict(), Verdict::Unknown);
        assert_eq!(fenced_register(&History::default()).verdict(), Verdict::Unknown);
    }

    fn breaches(calls: impl IntoIterator<Item = Call>) -> Vec<String> {
        fenced_register(&numbered(calls)).breaches.into_iter().map(|breach| breach.what).collect()
    }

    #[test]
    fn a_lost_update_is_found() {
        // No fence tells: both writers show the same.
        let found =
            breaches([read(0, 1, 5, 0), read(0, 1, 5, 0), write(2, 3, 5, 0, 1), write(2, 3, 5, 0, 2)]);
        assert!(found[0].contains("an update is lost"), "{found:?}");
        // One of them is known by its reader only.
        let lost = [unknown(write(2, 3, 5, 0, 1)), read(4, 5, 5, 1), write(6, 7, 5, 0, 2)];
        assert!(breaches(lost)[0].contains("an update is lost"));
    }

    #[test]
    fn a_stale_write_that_is_accepted_is_found() {
        let found = breaches([read(0, 1, 9, 0), write(2, 3, 5, 0, 1)]);
        assert!(found[0].contains("a stale write with token 5"), "{found:?}");
        assert!(breaches([read(0, 1, 9, 0), read(2, 3, 5, 0)])[0].contains("a stale read"));
        // While the other is under way, either may come first.
        assert!(breaches([read(0, 2, 9, 0), write(2, 3, 5, 0, 1)]).is_empty());
    }

    #[test]
    fn a_guard_that_rejects_the_newest_is_found() {
        let found = breaches([write(0, 1, 5, 0, 1), rejected(write(2, 3, 9, 1, 2), 9)]);
        assert!(found[0].contains("rejected token 9, though its number is 9"), "{found:?}");
    }

    #[test]
    fn what_was_rejected_or_never_written_must_not_be_read() {
        let found = breaches([rejected(write(0, 1, 5, 0, 1), 9), read(2, 3, 9, 1)]);
        assert!(found[0].contains("was rejected, and found"), "{found:?}");
        assert!(breaches([read(2, 3, 9, 4)])[0].contains("nobody has written"));
    }

    #[test]
    fn a_register_that_falls_back_to_an_older_write_is_found() {
        let found = breaches([write(0, 1, 5, 0, 1), write(2, 3, 5, 1, 2), read(4, 5, 9, 1)]);
        assert!(found[0].contains("write 2 was there, and later write 1"), "{found:?}");
        assert!(breaches([write(0, 1, 5, 0, 1), read(4, 5, 9, 0)])[0].contains("write 1 was there"));
    }
}
