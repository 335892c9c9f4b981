//! Registers behind a guard, and sets kept under a lock, judged from their own calls alone.
//!
//! The guard's order of events is not visible. But every write names the write that it read, so those that were accepted
//! tell their order themselves: each was made over the one before, and all together are one chain. A locked set is such a
//! register, whose every write adds one element to those that it read.
//!
//! - **No update is lost**: no two accepted writes were made over the same one, nothing that was read and built upon was
//!   rejected or never written, and nobody who came later saw an earlier write.
//! - **Nothing stale is accepted**: once a read or write was accepted with a fence, no call that was sent afterwards is
//!   accepted with a token below it. And a guard that rejects does so for a number above the token.
//! - **Something stale was rejected**, or the run shows nothing. A set needs a read after its last addition instead.
//!
//! A write without an answer counts as done if somebody has read it; otherwise it may have been done and overwritten by its
//! own holder, or not, and no conclusion is drawn. In a run without guards, the same laws must be found broken.

use std::collections::{BTreeMap, HashMap, HashSet};

use ringfence_wire::Key;

use super::bounds::{Bound, Bounds};
use super::facts::Facts;
use super::{Checker, Found};
use crate::history::{Call, Conclusion, Invocation};

/// A guarded register accepts no stale write, loses no update, and has rejected some.
pub const FENCED_REGISTER: Checker = Checker {
    name: "fenced-register",
    law: "A guarded register accepts no stale write and loses no update, and stale writers were rejected.",
    check: fenced_register,
};

/// A set that is read, added to and written back under a lock loses no element.
pub const LOCKED_SET: Checker = Checker {
    name: "locked-set",
    law: "Every acknowledged addition to a set kept under a lock is in it, in every later read and in the end.",
    check: locked_set,
};

/// The calls of one register, in the order they were sent, and its writes by their ids: the call, and what it was made over.
#[derive(Default)]
struct Register<'h> {
    calls: Vec<&'h Call>,
    writes: HashMap<u64, (&'h Call, u64)>,
}

/// An accepted call of a register.
struct Accepted<'h> {
    call: &'h Call,
    /// The write that it left there or found there, or 0.
    value: u64,
    token: u64,
    fence: u64,
}

fn fenced_register(facts: &Facts) -> Found {
    let mut found = Found::default();
    for (key, register) in &registers(facts) {
        nothing_stale(key, register, &mut found);
        never_back(key, register, &mut found);
    }
    found.needs(&["stale calls rejected"], "no stale call was rejected: nobody came too late");
    found.needs(&["writes accepted"], "no write was accepted");
    found
}

fn locked_set(facts: &Facts) -> Found {
    let mut found = Found::default();
    for (key, register) in &registers(facts) {
        never_back(key, register, &mut found);
        let is_addition = |it: &Accepted| matches!(it.call.invocation, Invocation::Write { .. });
        let (additions, reads): (Vec<_>, Vec<_>) = register.accepted().partition(is_addition);
        additions.iter().for_each(|_| found.saw("elements added"));
        if let Some(last_us) = additions.iter().map(|it| it.call.ended_us).max() {
            let is_read = reads.last().is_some_and(|read| read.call.sent_us > last_us);
            found.saw(if is_read { "sets read in the end" } else { "sets not read in the end" });
        }
    }
    if found.counts.contains_key("sets not read in the end") {
        found.undecided = Some("a set was not read after all was added".to_owned());
    }
    found.needs(&["sets read in the end"], "no set was added to, and read after all was added");
    found
}

fn registers<'h>(facts: &Facts<'h>) -> BTreeMap<&'h Key, Register<'h>> {
    let mut registers: BTreeMap<&Key, Register<'_>> = BTreeMap::new();
    for call in &facts.history.calls {
        if let Invocation::Read { key, .. } | Invocation::Write { key, .. } = &call.invocation {
            registers.entry(key).or_default().calls.push(call);
        }
        if let Invocation::Write { key, over, value, .. } = &call.invocation {
            registers.entry(key).or_default().writes.insert(*value, (call, *over));
        }
    }
    registers
}

impl<'h> Register<'h> {
    fn accepted(&self) -> impl Iterator<Item = Accepted<'h>> {
        self.calls.iter().filter_map(|&call| match (&call.invocation, &call.conclusion) {
            (Invocation::Write { token, fence, value, .. }, Conclusion::Register { .. })
            | (Invocation::Read { token, fence, .. }, Conclusion::Register { value }) => {
                Some(Accepted { call, value: *value, token: token.0, fence: fence.0 })
            }
            _ => None,
        })
    }

    /// The most that `of` says of an accepted call, over time.
    fn most(&self, of: impl Fn(&Accepted) -> Option<u64>) -> Bounds {
        let bound =
            |it: Accepted| Some(Bound { at_us: it.call.ended_us, number: of(&it)?, call: Some(it.call.id) });
        Bounds::new(self.accepted().filter_map(bound).collect(), Vec::new())
    }

    /// The writes that were done, each by its place in their chain, 1 for the first; 0 is what was before all.
    fn chain(&self, key: &Key, found: &mut Found) -> HashMap<u64, u64> {
        let mut values: Vec<u64> = self.accepted().map(|it| it.value).collect();
        let (mut next, mut done): (HashMap<u64, u64>, _) = (HashMap::new(), HashSet::from([0]));
        // What was built upon was done as well.
        while let Some(value) = values.pop() {
            if !done.insert(value) {
                continue;
            }
            let Some((call, over)) = self.writes.get(&value) else {
                found.breach(format!("{key}: {value} was read, and nobody has written it"), []);
                continue;
            };
            if !call.may_be_done() {
                found.breach(
                    format!("{key}: write {value} was rejected, and found there all the same"),
                    [call.id],
                );
            }
            if let Some(first) = next.insert(*over, value) {
                let what = format!(
                    "{key}: an update is lost: write {first} and write {value} were both made over {over}"
                );
                found.breach(what, [self.writes[&first].0.id, call.id]);
            }
            values.push(*over);
        }
        let mut places = HashMap::from([(0, 0)]);
        let mut last = 0;
        while let Some(&value) = next.get(&last) {
            if places.insert(value, places.len() as u64).is_some() {
                break;
            }
            last = value;
        }
        places
    }
}

/// Compares each accepted call with the largest fence of those that had ended before it was sent.
fn nothing_stale(key: &Key, register: &Register<'_>, found: &mut Found) {
    let fences = register.most(|it| Some(it.fence));
    for Accepted { call, token, .. } in register.accepted() {
        let verb = if matches!(call.invocation, Invocation::Write { .. }) { "write" } else { "read" };
        found.saw(&format!("{verb}s accepted"));
        if let Some(known) = fences.floor(call.sent_us).filter(|known| known.number > token) {
            let what = format!(
                "{key}: a stale {verb} with token {token} was accepted, though one with fence {} had been before it was sent",
                known.number
            );
            found.breach(what, known.call.into_iter().chain([call.id]));
        }
    }
    for call in &register.calls {
        let (Invocation::Read { token, .. } | Invocation::Write { token, .. }, Conclusion::Stale { high }) =
            (&call.invocation, &call.conclusion)
        else {
            continue;
        };
        found.saw("stale calls rejected");
        if high <= token {
            found.breach(
                format!("{key}: the guard rejected token {token}, though its number is {high}"),
                [call.id],
            );
        }
    }
}

/// Nobody who comes later sees an earlier place of the chain.
fn never_back(key: &Key, register: &Register<'_>, found: &mut Found) {
    let places = register.chain(key, found);
    let furthest = register.most(|it| places.get(&it.value).copied());
    for it in register.accepted() {
        let Some(place) = places.get(&it.value) else { continue };
        if let Some(known) = furthest.floor(it.call.sent_us).filter(|known| known.number > *place) {
            let there =
                places.iter().find(|(_, place)| **place == known.number).map_or(0, |(value, _)| *value);
            let what = format!(
                "{key}: write {there} was there, and later write {} was found in its place, which is older",
                it.value
            );
            found.breach(what, known.call.into_iter().chain([it.call.id]));
        }
    }
}
