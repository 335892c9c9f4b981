//! Laws and what broke them, as the page shows them: not more than a person reads.

use std::collections::BTreeMap;

use serde::Serialize;

use super::calls::Order;
use crate::check::{Results, Verdict};
use crate::history::Call;

/// The most breaches of one law on the page, and the most calls of one breach; `results.json` has them all.
const BREACHES: usize = 100;
const CALLS: usize = 50;
/// The most calls that stand on the page in full.
const DETAILS: usize = 500;

/// A law, and what was found.
#[derive(Serialize)]
pub(super) struct Law<'a> {
    name: &'a str,
    law: &'a str,
    verdict: Verdict,
    counts: &'a BTreeMap<String, u64>,
    undecided: Option<&'a str>,
    breaches: Vec<Shown<'a>>,
    /// How many breaches there are in all.
    found: usize,
}

/// A breach; its calls by their places.
#[derive(Serialize)]
struct Shown<'a> {
    what: &'a str,
    calls: Vec<usize>,
    /// How many calls it has in all.
    found: usize,
}

/// Calls in full, by their places.
pub(super) type Details<'a> = BTreeMap<usize, &'a Call>;

/// All laws, the worst first, as they come.
pub(super) fn laws<'a>(results: &'a Results, order: &Order<'_>) -> Vec<Law<'a>> {
    let laws = results.laws.iter().map(|law| Law {
        name: &law.name,
        law: &law.law,
        verdict: law.verdict,
        counts: &law.found.counts,
        undecided: law.found.undecided.as_deref(),
        found: law.found.breaches.len(),
        breaches: (law.found.breaches.iter().take(BREACHES))
            .map(|breach| Shown {
                what: &breach.what,
                calls: breach.calls.iter().filter_map(|id| order.place(*id)).take(CALLS).collect(),
                found: breach.calls.len(),
            })
            .collect(),
    });
    laws.collect()
}

/// The calls that breaches name.
pub(super) fn details<'a>(results: &Results, order: &Order<'a>) -> Details<'a> {
    let breaches = results.laws.iter().flat_map(|law| law.found.breaches.iter().take(BREACHES));
    let places =
        breaches.flat_map(|breach| breach.calls.iter().take(CALLS)).filter_map(|id| order.place(*id));
    places.take(DETAILS).map(|place| (place, order.calls[place])).collect()
}
