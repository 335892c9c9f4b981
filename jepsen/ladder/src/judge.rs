//! What a round comes to: counts, and the mark for the table.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::moves::{Flag, Move, What};
use crate::step::{Answer, Step};

/// What is counted in a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Accepted writes of which nothing is left in the stock count, as another write did not build on them.
    pub lost_updates: i64,
    /// Accepted writes of a holder after the storage had accepted an access of one that was granted the lock later.
    pub stale_writes: u64,
    /// Rejected accesses of a holder after another one was granted the lock.
    pub fenced: u64,
    /// For how long two holders counted themselves the only one, in ms.
    pub overlap_ms: u64,
    /// For how long nobody could have the lock though nobody was to have it, in ms.
    pub stuck_ms: u64,
    /// What the servers said of a lock that stays so for an hour at least.
    pub stuck_for_ever: Option<String>,
    /// Locks that had ended although their holders renewed them.
    pub lost_while_renewed: u64,
    /// Accesses rejected of the holder that was granted the lock last.
    pub live_rejected: u64,
    /// Acquires that a client undid as too doubtful.
    pub refused: u64,
}

/// A mark of the table, from the worst down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The fault was not observed.
    Unknown,
    /// An update was lost or a stale write accepted.
    Lost,
    /// That, and the live holder was rejected.
    LostAndRejected,
    /// The live holder was rejected.
    Rejected,
    /// Stuck for an hour or for ever.
    StuckForEver,
    /// The stale write was rejected.
    Fenced,
    /// Stuck for a time to live or a pause, at most.
    Stuck,
    /// The lock was refused: safe.
    Refused,
    /// Well.
    Well,
    /// The fault does not apply.
    NotApplicable,
}

impl Mark {
    /// All of them, with how the table shows them.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Unknown, "?"),
        (Self::Lost, "L"),
        (Self::LostAndRejected, "Lx"),
        (Self::Rejected, "x"),
        (Self::StuckForEver, "∞"),
        (Self::Fenced, "f"),
        (Self::Stuck, "T"),
        (Self::Refused, "ref"),
        (Self::Well, "·"),
        (Self::NotApplicable, "–"),
    ];

    /// The mark that the table shows so.
    pub(crate) fn of(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, shown)| *shown == text).map(|(mark, _)| *mark)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Self::ALL.iter().find(|(mark, _)| mark == self);
        f.pad(shown.map_or("?", |(_, shown)| shown))
    }
}

impl Counts {
    /// Counts the moves of a round, in which the stock count rose by `rise`, and flags them.
    pub(crate) fn of(moves: &mut [Move], rise: i64) -> Self {
        let mut counter = Counter::default();
        for it in moves.iter_mut() {
            it.flag = counter.take(it);
        }
        let end_us = moves.iter().map(|it| it.to_us).max().unwrap_or(0);
        for who in counter.since_us.keys().copied().collect::<Vec<_>>() {
            counter.ends(who, end_us);
        }
        let overlap_ms = overlap_us(&counter.spans) / 1_000;
        Self { overlap_ms, lost_updates: counter.accepted - rise, ..counter.counts }
    }

    /// The sums of both.
    pub(crate) fn and(self, other: &Self) -> Self {
        Self {
            lost_updates: self.lost_updates + other.lost_updates,
            stale_writes: self.stale_writes + other.stale_writes,
            fenced: self.fenced + other.fenced,
            overlap_ms: self.overlap_ms + other.overlap_ms,
            stuck_ms: self.stuck_ms + other.stuck_ms,
            stuck_for_ever: self.stuck_for_ever.or_else(|| other.stuck_for_ever.clone()),
            lost_while_renewed: self.lost_while_renewed + other.lost_while_renewed,
            live_rejected: self.live_rejected + other.live_rejected,
            refused: self.refused + other.refused,
        }
    }

    /// The mark, where being stuck for less than `stuck_ms` counts as well.
    pub(crate) fn mark(&self, stuck_ms: u64) -> Mark {
        match self {
            _ if self.lost_updates == 0 && self.stale_writes == 0 => {}
            _ if self.live_rejected > 0 => return Mark::LostAndRejected,
            _ => return Mark::Lost,
        }
        if self.live_rejected > 0 {
            Mark::Rejected
        } else if self.stuck_for_ever.is_some() {
            Mark::StuckForEver
        } else if self.fenced > 0 {
            Mark::Fenced
        } else if self.stuck_ms >= stuck_ms {
            Mark::Stuck
        } else if self.refused > 0 {
            Mark::Refused
        } else {
            Mark::Well
        }
    }
}

/// What has to be remembered while moves are counted.
#[derive(Default)]
struct Counter {
    counts: Counts,
    /// Accepted writes.
    accepted: i64,
    /// How many grants there were.
    grants: u64,
    /// The number of each holder's last grant.
    granted: BTreeMap<char, u64>,
    /// The largest number of a holder whose access the storage has accepted.
    seen: u64,
    /// Since when each holder counts itself the only one.
    since_us: BTreeMap<char, u64>,
    /// From when to when holders did.
    spans: Vec<(u64, u64)>,
}

impl Counter {
    fn take(&mut self, it: &Move) -> Option<Flag> {
        match &it.what {
            What::Step { step, answer } => return self.take_step(it, step, answer),
            What::Wait { free_us, answer, stuck, .. } => {
                self.take_step(it, &Step::Acquire { within_ms: 0 }, answer);
                let stuck_ms = it.to_us.saturating_sub(*free_us) / 1_000;
                self.counts.stuck_ms = self.counts.stuck_ms.max(stuck_ms);
                if stuck.is_some() {
                    self.counts.stuck_for_ever = stuck.clone();
                }
            }
            What::Killed => self.ends(it.who, it.to_us),
            What::Stopped | What::Resumed | What::Fault { .. } => {}
        }
        None
    }

    fn take_step(&mut self, it: &Move, step: &Step, answer: &Answer) -> Option<Flag> {
        let number = self.granted.get(&it.who).copied().unwrap_or(0);
        match (step, answer) {
            (_, Answer::Granted { .. }) => {
                self.grants += 1;
                self.granted.insert(it.who, self.grants);
                self.since_us.insert(it.who, it.to_us);
            }
            (_, Answer::Refused { .. }) => self.counts.refused += 1,
            (_, Answer::Read { .. }) => self.seen = self.seen.max(number),
            (_, Answer::Written { .. }) => {
                self.accepted += 1;
                if number < self.seen {
                    self.counts.stale_writes += 1;
                    return Some(Flag::Stale);
                }
                self.seen = number;
            }
            (_, Answer::Rejected { .. }) => {
                self.ends(it.who, it.to_us);
                if number == self.grants {
                    self.counts.live_rejected += 1;
                    return Some(Flag::LiveRejected);
                }
                self.counts.fenced += 1;
                return Some(Flag::Fenced);
            }
            (Step::Touch, Answer::Lost) => self.counts.lost_while_renewed += 1,
            (Step::Release { .. }, _) | (Step::Check, Answer::Lost) => self.ends(it.who, it.to_us),
            _ => {}
        }
        None
    }

    /// The holder does not count itself one any more.
    fn ends(&mut self, who: char, at_us: u64) {
        self.spans.extend(self.since_us.remove(&who).map(|from_us| (from_us, at_us)));
    }
}

/// For how long at least two of the spans last at once.
fn overlap_us(spans: &[(u64, u64)]) -> u64 {
    let mut edges: Vec<(u64, i32)> = spans.iter().flat_map(|&(from, to)| [(from, 1), (to, -1)]).collect();
    edges.sort_unstable();
    let (mut open, mut before, mut overlap) = (0, 0, 0);
    for (at, change) in edges {
        if open >= 2 {
            overlap += at - before;
        }
        (open, before) = (open + change, at);
    }
    overlap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Pass;

    fn moves(of: &[(char, Step, Answer)]) -> Vec<Move> {
        let at = |(number, (who, step, answer)): (usize, &(char, Step, Answer))| {
            let from_us = 10_000 * number as u64;
            let what = What::Step { step: step.clone(), answer: answer.clone() };
            Move { who: *who, from_us, to_us: from_us + 5_000, what, flag: None }
        };
        of.iter().enumerate().map(at).collect()
    }

    fn granted(who: char) -> (char, Step, Answer) {
        (who, Step::Acquire { within_ms: 1 }, Answer::Granted { pass: Pass::Nothing })
    }

    fn read(who: char) -> (char, Step, Answer) {
        (who, Step::Read, Answer::Read { count: 7 })
    }

    fn written(who: char) -> (char, Step, Answer) {
        (who, Step::Write, Answer::Written { count: 8 })
    }

    fn rejected(who: char, step: Step) -> (char, Step, Answer) {
        (who, step, Answer::Rejected { why: String::new() })
    }

    #[test]
    fn a_write_of_an_older_holder_is_stale_once_a_newer_one_was_let_in() {
        let race = [granted('A'), read('A'), granted('B'), read('B'), written('B'), written('A')];
        let counts = Counts::of(&mut moves(&race), 1);
        assert_eq!((counts.stale_writes, counts.lost_updates, counts.overlap_ms), (1, 1, 30));
        assert_eq!(counts.mark(500), Mark::Lost);
        let in_turn = [granted('A'), read('A'), written('A'), granted('B'), read('B'), written('B')];
        assert_eq!(Counts::of(&mut moves(&in_turn), 2).mark(500), Mark::Well);
    }

    #[test]
    fn whom_the_storage_rejects_tells_fenced_from_harm_to_the_live_holder() {
        let start = [granted('A'), read('A'), granted('B')];
        let fenced = [&start[..], &[read('B'), written('B'), rejected('A', Step::Write)]].concat();
        let counts = Counts::of(&mut moves(&fenced), 1);
        assert_eq!((counts.mark(500), counts.fenced, counts.overlap_ms), (Mark::Fenced, 1, 30));
        let shut_out = [&start[..], &[rejected('B', Step::Read), written('A')]].concat();
        assert_eq!(Counts::of(&mut moves(&shut_out), 1).mark(500), Mark::Rejected);
        let both = [&start[..], &[read('B'), read('A'), written('A'), rejected('B', Step::Write)]].concat();
        assert_eq!(Counts::of(&mut moves(&both), 1).mark(500), Mark::LostAndRejected);
    }

    #[test]
    fn a_lock_is_stuck_from_when_it_should_have_been_free() {
        let wait = |to_us, stuck: Option<&str>| {
            let answer = if stuck.is_some() { Answer::Held } else { Answer::Granted { pass: Pass::Nothing } };
            let what = What::Wait { attempts: 3, free_us: 100_000, answer, stuck: stuck.map(str::to_owned) };
            Counts::of(&mut [Move { who: 'B', from_us: 0, to_us, what, flag: None }], 0)
        };
        assert_eq!(wait(90_000, None).mark(500), Mark::Well);
        assert_eq!(wait(700_000, None).mark(500), Mark::Stuck);
        assert_eq!(wait(700_000, None).stuck_ms, 600);
        assert_eq!(wait(700_000, Some("PTTL -1")).mark(500), Mark::StuckForEver);
    }
}
