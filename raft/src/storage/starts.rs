//! Which start of a data directory a process is.
//!
//! Each start draws a number, and syncs it to `NODE` behind those of the starts before. So a directory knows its own past, and
//! a copy of it has the same past up to where it was copied, and another one from there on. A node that has met one start of a
//! directory can tell of any other whether it came after that one. If it did not, it may have forgotten votes and entries that
//! the one which was met has given away.
//!
//! An old copy cannot hide behind its count: it counts on, but its numbers are others.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many numbers are kept. A node that was restarted more often while another did not meet it is believed.
const KEPT: usize = 128;

/// One start: how many came up to it, and its random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) count: u64,
    number: u64,
}

/// The starts of a data directory, the newest of them the process that has this. None: builds that did not count them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Starts {
    count: u64,
    /// The last ones, the newest last.
    numbers: Vec<u64>,
}

impl Start {
    /// One that no process comes after.
    pub(crate) const NEVER: Self = Self { count: u64::MAX, number: 0 };
}

impl Starts {
    /// Adds the start of this process.
    pub(crate) fn add(&mut self, number: u64) {
        self.count = self.count.saturating_add(1);
        self.numbers.push(number);
        let surplus = self.numbers.len().saturating_sub(KEPT);
        self.numbers.drain(..surplus);
    }

    /// The newest; `None` if none was counted.
    pub(crate) fn newest(&self) -> Option<Start> {
        Some(Start { count: self.count, number: *self.numbers.last()? })
    }

    /// Whether `met` is one of these starts, so that the newest is the same or came after it.
    pub(crate) fn include(&self, met: Start) -> bool {
        let Some(since) = self.count.checked_sub(met.count) else { return false };
        let since = usize::try_from(since).unwrap_or(usize::MAX);
        let index = self.numbers.len().checked_sub(since).and_then(|index| index.checked_sub(1));
        // What is not kept any more cannot be compared.
        index.is_none_or(|index| self.numbers[index] == met.number)
    }
}

/// As a line of `NODE` has it.
impl fmt::Display for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        self.numbers.iter().try_for_each(|number| write!(f, " {number:x}"))
    }
}

impl std::str::FromStr for Starts {
    type Err = std::num::ParseIntError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let mut words = line.split(' ');
        let count = words.next().unwrap_or_default().parse()?;
        let numbers = words.map(|word| u64::from_str_radix(word, 16)).collect::<Result<_, _>>()?;
        Ok(Self { count, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(numbers: impl IntoIterator<Item = u64>) -> Starts {
        let mut starts = Starts::default();
        numbers.into_iter().for_each(|number| starts.add(number));
        starts
    }

    #[test]
    fn a_later_start_includes_an_earlier_one_and_a_copy_does_not_however_often_it_starts() {
        let original = started([11, 12, 13]);
        let met = original.newest().unwrap();
        assert!(original.include(met));
        assert!(started([11, 12, 13, 14, 15]).include(met));
        // As it was, started as often, and more often.
        for copy in [vec![11], vec![11, 12], vec![11, 12, 99], vec![11, 12, 99, 98], vec![11, 12, 99, 98, 97]]
        {
            assert!(!started(copy.clone()).include(met), "{copy:?}");
        }
        assert_eq!(Starts::default().newest(), None);
        assert!(!Starts::default().include(met));
    }

    #[test]
    fn so_many_are_kept_and_what_is_not_kept_is_believed() {
        let kept = KEPT as u64;
        let first = started([7]).newest().unwrap();
        assert!(!started(1000..1000 + kept).include(first));
        assert!(started(1000..1001 + kept).include(first));
        let many = started(0..9 * kept);
        assert_eq!((many.numbers.len(), many.newest().unwrap().count), (KEPT, 9 * kept));
        assert_eq!(many.to_string().parse(), Ok(many.clone()));
        let forged = Starts { count: u64::MAX, numbers: vec![1] };
        assert!(forged.include(Start { count: 0, number: 9 }) && !many.include(Start::NEVER));
        assert!("1 x".parse::<Starts>().is_err() && "".parse::<Starts>().is_err());
    }
}
