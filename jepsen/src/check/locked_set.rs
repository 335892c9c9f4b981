//! A set that is kept under a lock, by reading all of it and writing it back with one element more, loses none.
//!
//! The set is a register, and each write an element: what a write left behind is all that the write it was made over had
//! left, and itself. So a set holds another one if its last write comes, by however many steps, from that of the other.
//!
//! - **None vanishes**: whoever reads the set after an element was added, or read, finds it there.
//! - **None is lost in the end**: every addition that was acknowledged is in the last set that was read, by somebody who
//!   asked after all of them. Without such a reader nothing can be said.
//! - **None is there that was refused.** One without an answer may be there or not.
//!
//! That a stale writer was rejected is not asked for here: a lock that nobody outlives is enough.

use std::collections::{BTreeMap, HashMap};

use super::register::{Register, Write, accepted, is_write, registers};
use super::{Checker, Found};
use crate::history::{Call, History};

/// A set that is read, added to and written back under a lock loses no element.
pub const LOCKED_SET: Checker = Checker {
    name: "locked-set",
    law: "Every acknowledged addition to a set kept under a lock is in it, in every later read and in the end.",
    check: locked_set,
};

fn locked_set(history: &History) -> Found {
    let mut found = Found::default();
    for (key, register) in &registers(history) {
        let family = Family::of(&register.writes);
        let mut breach = |what: String, calls: &[&Call]| {
            found.breach(format!("{key}: {what}"), calls.iter().map(|call| call.id));
        };
        none_refused(register, &mut breach);
        none_vanishes(register, &family, &mut breach);
        let additions = register.calls.iter().filter(|call| is_write(call) && accepted(call).is_some());
        let last_sent = additions.clone().map(|call| call.ended_us).max();
        let read_last = register.calls.iter().rev().find(|call| !is_write(call) && accepted(call).is_some());
        match (last_sent, read_last) {
            (Some(ended_us), Some(read)) if read.sent_us > ended_us => found.saw("sets read in the end"),
            (Some(_), _) => found.saw("sets not read in the end"),
            (None, _) => {}
        }
        for _ in additions {
            found.saw("elements added");
        }
    }
    if !found.counts.contains_key("sets read in the end") {
        found.undecided = Some("no set was added to, and read after all was added".to_owned());
    } else if found.counts.contains_key("sets not read in the end") {
        found.undecided = Some("a set was not read after all was added".to_owned());
    }
    found
}

fn none_refused(register: &Register<'_>, breach: &mut impl FnMut(String, &[&Call])) {
    let mut built_upon: BTreeMap<u64, &Call> = BTreeMap::new();
    for &call in &register.calls {
        if let Some(value) = accepted(call) {
            let from = if is_write(call) { register.writes[&value].over } else { value };
            built_upon.entry(from).or_insert(call);
        }
    }
    for (value, by) in built_upon {
        match register.writes.get(&value) {
            Some(write) if !write.call.may_be_done() => {
                breach(format!("element {value} was refused, and is in the set."), &[write.call, by]);
            }
            None if value != 0 => {
                breach(format!("element {value} is in the set, and nobody has added it."), &[by])
            }
            _ => {}
        }
    }
}

/// Each accepted call, in the order in which they were sent, against the largest set that was known before.
fn none_vanishes(register: &Register<'_>, family: &Family, breach: &mut impl FnMut(String, &[&Call])) {
    let mut ended: Vec<(u64, &Call)> =
        register.calls.iter().filter_map(|&call| Some((accepted(call)?, call))).collect();
    ended.sort_by_key(|(_, call)| call.ended_us);
    let mut ended = ended.into_iter().peekable();
    let mut largest: Option<(u64, &Call)> = None;
    for &call in &register.calls {
        while let Some((value, before)) = ended.next_if(|(_, before)| before.ended_us < call.sent_us) {
            match largest {
                Some((known, _)) if family.descends(known, value) => {}
                // Two sets of which neither holds the other: each of them lacks what the other one added.
                Some((known, by)) if !family.descends(value, known) => {
                    breach(
                        format!("the set after {known} and that after {value} lack elements of each other."),
                        &[by, before],
                    );
                    largest = Some((value, before));
                }
                _ => largest = Some((value, before)),
            }
        }
        let (Some(value), Some((known, by))) = (accepted(call), largest) else { continue };
        if !family.descends(value, known) {
            breach(
                format!("element {known} was in the set, and later not: the set ended with {value}."),
                &[by, call],
            );
        }
    }
}

/// Which write comes from which. A write has one that it was made over, so they form trees: a write's descendants are those
/// that a walk through the tree enters and leaves between entering and leaving it.
struct Family {
    /// When a walk entered and left each write.
    spans: HashMap<u64, (usize, usize)>,
}

impl Family {
    fn of(writes: &HashMap<u64, Write<'_>>) -> Self {
        let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (&value, write) in writes {
            children.entry(write.over).or_default().push(value);
        }
        let mut spans = HashMap::new();
        let roots = children.keys().copied().filter(|root| !writes.contains_key(root));
        let mut steps: Vec<(u64, bool)> = roots.map(|root| (root, true)).collect();
        let mut time = 0;
        while let Some((value, enters)) = steps.pop() {
            time += 1;
            if enters {
                spans.insert(value, (time, usize::MAX));
                steps.push((value, false));
                steps.extend(children.get(&value).into_iter().flatten().map(|&child| (child, true)));
            } else if let Some(span) = spans.get_mut(&value) {
                span.1 = time;
            }
        }
        Self { spans }
    }

    /// Whether the set after `value` holds that after `older`.
    fn descends(&self, value: u64, older: u64) -> bool {
        if value == older || older == 0 {
            return true;
        }
        let (Some(new), Some(old)) = (self.spans.get(&value), self.spans.get(&older)) else { return false };
        old.0 <= new.0 && new.1 <= old.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use crate::check::scene::{numbered, read, rejected, unknown, write};

    fn breaches(calls: impl IntoIterator<Item = Call>) -> Vec<String> {
        locked_set(&numbered(calls)).breaches.into_iter().map(|breach| breach.what).collect()
    }

    #[test]
    fn a_set_that_only_grows_is_valid() {
        let run = numbered([
            read(0, 1, 5, 0),
            write(2, 3, 5, 0, 1),
            rejected(write(4, 5, 4, 0, 2), 5),
            unknown(write(6, 7, 6, 1, 3)),
            unknown(write(6, 7, 6, 1, 8)),
            write(10, 11, 7, 3, 4),
            read(12, 13, 8, 4),
        ]);
        let found = locked_set(&run);
        assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
        assert_eq!(found.counts["elements added"], 2);
    }

    #[test]
    fn without_a_read_after_all_additions_nothing_is_said() {
        assert_eq!(locked_set(&History::default()).verdict(), Verdict::Unknown);
        let found = locked_set(&numbered([read(0, 3, 5, 0), write(2, 3, 5, 0, 1)]));
        assert_eq!(found.verdict(), Verdict::Unknown, "{found:?}");
    }

    #[test]
    fn an_addition_that_is_not_there_in_the_end_is_found() {
        // Both wrote back what they had read.
        let found = breaches([write(0, 1, 5, 0, 1), write(0, 1, 6, 0, 2), read(2, 3, 7, 2)]);
        assert!(found[0].contains("lack elements of each other"), "{found:?}");
        let found = breaches([write(0, 1, 5, 0, 1), write(2, 3, 5, 1, 2), read(4, 5, 6, 1)]);
        assert!(found[0].contains("element 2 was in the set, and later not"), "{found:?}");
    }

    #[test]
    fn an_element_that_vanishes_between_reads_is_found() {
        let found = breaches([unknown(write(0, 9, 5, 0, 1)), read(2, 3, 5, 1), read(4, 5, 6, 0)]);
        assert!(found[0].contains("element 1 was in the set, and later not"), "{found:?}");
    }

    #[test]
    fn an_element_that_was_refused_or_never_added_is_found() {
        assert!(breaches([rejected(write(0, 1, 5, 0, 1), 9), read(2, 3, 6, 1)])[0].contains("was refused"));
        assert!(breaches([read(2, 3, 6, 4)])[0].contains("nobody has added it"));
    }
}
