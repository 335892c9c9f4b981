//! What is measured in each row, what is promised of it, and what comes of the two.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Something that is measured. Of each, less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// The longest time in which a node that nothing is wrong with granted nothing.
    NoGrant,
    /// How long a grant took, in the middle of all through such nodes.
    GrantTook,
    /// The longest time in which no renewal was confirmed, by whichever node.
    NoRenewal,
    /// From the end of the time-to-live of a holder that died until the next holder.
    NextHolder,
    /// How much the memory of a node grew while something was wrong.
    Memory,
    /// The leases that ended though their holders renewed them.
    LostLeases,
    /// The waiters that one who came later overtook.
    Overtaken,
    /// For how long two holders, by what their clients count, held one key.
    Overlap,
    /// The tokens that were granted again.
    TokensTwice,
    /// The wrong data directories that neither log nor exit status names.
    Unnamed,
    /// The most connections that were made in a second to the node that something is wrong with.
    Connections,
    /// From the start of the nodes until all are ready.
    Founded,
    /// From when a node could be started again, or all were, until it was ready.
    Rejoined,
    /// From the end of what was wrong until all nodes were ready.
    Healed,
    /// The nodes that panicked.
    Panics,
}

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    Mebibytes,
    Count,
}

/// What was measured.
pub(super) type Figures = BTreeMap<Figure, f64>;

/// The most that each figure may be.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Promise(BTreeMap<Figure, f64>);

/// What a row comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All that was promised was measured, and holds.
    Holds,
    /// Some of it does not.
    Broken,
    /// The fault was not observed, or something was not measured.
    Unknown,
}

impl Figure {
    /// As in the head of a table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::NoGrant => "no grant",
            Self::GrantTook => "a grant took",
            Self::NoRenewal => "no renewal",
            Self::NextHolder => "next holder",
            Self::Memory => "memory",
            Self::LostLeases => "lost leases",
            Self::Overtaken => "overtaken",
            Self::Overlap => "two holders",
            Self::TokensTwice => "tokens granted twice",
            Self::Unnamed => "not named",
            Self::Connections => "connections a second",
            Self::Founded => "founded",
            Self::Rejoined => "rejoined",
            Self::Healed => "healed",
            Self::Panics => "panics",
        }
    }

    /// A value of it, with its unit.
    pub(super) fn show(self, value: f64) -> String {
        match self.unit() {
            Unit::Seconds => format!("{value:.1} s"),
            Unit::Mebibytes => format!("{value:.0} MiB"),
            Unit::Count => format!("{value:.0}"),
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::NoGrant | Self::GrantTook | Self::NoRenewal | Self::NextHolder | Self::Overlap => {
                Unit::Seconds
            }
            Self::Founded | Self::Rejoined | Self::Healed => Unit::Seconds,
            Self::Memory => Unit::Mebibytes,
            Self::LostLeases | Self::Overtaken | Self::TokensTwice | Self::Unnamed => Unit::Count,
            Self::Connections | Self::Panics => Unit::Count,
        }
    }
}

impl Promise {
    /// At most this much.
    pub(super) fn and(mut self, figure: Figure, most: f64) -> Self {
        self.0.insert(figure, most);
        self
    }

    /// Nothing of this figure.
    pub(super) fn without(mut self, figure: Figure) -> Self {
        self.0.remove(&figure);
        self
    }

    pub(super) fn most(&self, figure: Figure) -> Option<f64> {
        self.0.get(&figure).copied()
    }

    /// The figures that something is promised of.
    pub(super) fn figures(&self) -> impl Iterator<Item = Figure> {
        self.0.keys().copied()
    }

    /// The figures that are more than promised.
    pub(super) fn broken(&self, measured: &Figures) -> Vec<Figure> {
        let more = |figure: &Figure| {
            self.most(*figure).zip(measured.get(figure)).is_some_and(|(most, it)| *it > most)
        };
        self.figures().filter(more).collect()
    }

    /// What comes of it, if what was wrong was `observed`.
    pub(super) fn judge(&self, measured: &Figures, observed: bool) -> Verdict {
        if !observed {
            Verdict::Unknown
        } else if !self.broken(measured).is_empty() {
            Verdict::Broken
        } else if self.figures().any(|figure| !measured.contains_key(&figure)) {
            Verdict::Unknown
        } else {
            Verdict::Holds
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::Broken => "BROKEN",
            Self::Unknown => "unknown",
        })
    }
}

/// The exit code of a run: 1 if something is broken, 2 if nothing is, but something is not known.
pub(super) fn exit_code(verdicts: &[Verdict]) -> u8 {
    if verdicts.contains(&Verdict::Broken) {
        1
    } else if verdicts.is_empty() || verdicts.contains(&Verdict::Unknown) {
        2
    } else {
        0
    }
}

/// The longest time between two of `times`, which are sorted, from the first `from` until `until`.
pub(super) fn longest_gap<T: Copy + Ord + std::ops::Sub<Output = Duration>>(
    times: &[T],
    from: T,
    until: T,
) -> Duration {
    let inside = times.iter().copied().filter(|time| from < *time && *time < until);
    let ends: Vec<T> = std::iter::once(from).chain(inside).chain([until]).collect();
    ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn promise() -> Promise {
        Promise::default().and(Figure::NoGrant, 3.0).and(Figure::Overlap, 0.0)
    }

    fn measured(figures: &[(Figure, f64)]) -> Figures {
        figures.iter().copied().collect()
    }

    #[test]
    fn a_promise_holds_only_if_all_of_it_was_measured_and_the_fault_observed() {
        let good = measured(&[(Figure::NoGrant, 3.0), (Figure::Overlap, 0.0), (Figure::Memory, 900.0)]);
        assert_eq!(promise().judge(&good, true), Verdict::Holds);
        assert_eq!(promise().judge(&good, false), Verdict::Unknown);
        let part = measured(&[(Figure::NoGrant, 3.0)]);
        assert_eq!(promise().judge(&part, true), Verdict::Unknown);
        let bad = measured(&[(Figure::NoGrant, 3.1)]);
        assert_eq!(promise().judge(&bad, true), Verdict::Broken);
        assert_eq!(promise().judge(&bad, false), Verdict::Unknown);
        assert_eq!(promise().without(Figure::NoGrant).judge(&good, true), Verdict::Holds);
    }

    #[test]
    fn what_is_broken_counts_more_than_what_is_unknown() {
        use Verdict::{Broken, Holds, Unknown};
        assert_eq!(exit_code(&[Holds, Holds]), 0);
        assert_eq!(exit_code(&[Holds, Unknown]), 2);
        assert_eq!(exit_code(&[Unknown, Broken]), 1);
        assert_eq!(exit_code(&[]), 2);
    }

    #[test]
    fn a_gap_reaches_to_the_ends() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let gap = |times: &[u64], from, until| {
            let times: Vec<Instant> = times.iter().map(|ms| at(*ms)).collect();
            longest_gap(&times, at(from), at(until)).as_millis()
        };
        assert_eq!(gap(&[], 100, 900), 800);
        assert_eq!(gap(&[50, 200, 500, 600], 100, 900), 300);
        assert_eq!(gap(&[50, 200, 500, 600], 100, 700), 300);
        assert_eq!(gap(&[200, 400], 100, 1_000), 600);
    }
}
