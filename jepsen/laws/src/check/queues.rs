//! First come, first served; nobody is served after its wait; and places that are taken in a batch.
//!
//! **Order.** By the contract a key is free for a lease when it is compatible with every live lease and every earlier waiter
//! on that key, *counted together*, limits included. And nobody is passed over: a release or expiry grants the next waiter
//! in the same entry. The replay of the log judges both; that clients were told what the log says is another law.
//!
//! **Late waiters.** A lease that was told `wait-timeout` is never granted while it is remembered. In the log, a grant from
//! the queue comes no later than all waits of its acquires together, in cluster time (each may begin when the one before is
//! about to end; `keep_place` adds 5 s each). And where no fault is near, no acquire is answered with a grant much later than
//! its wait: a node without answers gives up after 10 s, and the mirror may take some more, so the bound is [`LATE_US`].
//!
//! **Batches.** A batch waits for nothing: an acquire that is not granted at once, and keeps its place, joins the queue, and a
//! PUT waits for it. All acquires of a batch are in one log entry, in their order; so their places are in that order, too.

use std::collections::BTreeMap;

use ringfence_wire::ProblemKind;

use super::facts::{Facts, Life, at, problem};
use super::{Checker, Found};
use crate::history::{Call, Change, ChangeName, Conclusion};

/// First come, first served.
pub const QUEUE_ORDER: Checker = Checker {
    name: "queue-order",
    law: "First come, first served: no lease is granted against an earlier waiter, counted together with the holders, \
          and nobody who fits is passed over.",
    check: queue_order,
};

/// No waiter is granted after the end of its wait.
pub const NO_LATE_WAITER: Checker = Checker {
    name: "no-late-waiter",
    law: "A waiter is granted within its wait, or never.",
    check: no_late_waiter,
};

/// Places taken in a batch.
pub const BATCH_PLACES: Checker = Checker {
    name: "batch-places",
    law: "The acquires of a batch take effect at once and in their order, and a place that is kept is kept for 5 s.",
    check: batch_places,
};

/// How much later than its wait a grant may be answered where no fault is near.
const LATE_US: u64 = 20_000_000;
/// How long a place is kept, in milliseconds of cluster time.
const KEPT_MS: u64 = 5_000;

fn queue_order(facts: &Facts) -> Found {
    let mut found = facts.log.order.clone();
    found.needs(&["grants from the queue"], "nobody was granted from a queue");
    found
}

fn no_late_waiter(facts: &Facts) -> Found {
    let mut found = Found::default();
    for (lease, life) in &facts.lives {
        let name = lease.to_string();
        never_after_a_timeout(&name, life, &mut found);
        within_its_waits(&name, life, &mut found);
        answered_in_time(&name, life, facts, &mut found);
    }
    found.needs(&["waits that ran out"], "no wait ran out");
    found
}

/// Which came first does not matter: a lease that was granted is never said to have waited in vain either.
fn never_after_a_timeout(name: &str, life: &Life, found: &mut Found) {
    let mut timeouts = life.acquires().map(|acquire| acquire.call);
    let Some(told) = timeouts.find(|call| problem(call) == Some(ProblemKind::WaitTimeout)) else { return };
    let last_us = life.calls.iter().map(|call| call.ended_us).max().unwrap_or(0);
    if life.is_remembered(last_us) && !life.tokens.is_empty() {
        let what = format!(
            "lease {name} was told wait-timeout at {}, and granted: {:?}",
            at(told.ended_us),
            life.tokens
        );
        found.breach(what, [told.id].into_iter().chain(life.grants.iter().map(|(call, _)| call.id)));
    }
}

/// The places that a lease had in the queue, and how it left them.
fn places<'h>(life: &Life<'h>) -> impl Iterator<Item = (&'h Change, &'h Change)> {
    let waits = life.stages.iter().filter(|stage| stage.token.is_none());
    waits.filter_map(|stage| stage.begun.zip(stage.ended)).collect::<Vec<_>>().into_iter()
}

fn ran_out(change: &Change) -> bool {
    change.change == ChangeName::Left && change.reason.is_none()
}

fn within_its_waits(name: &str, life: &Life, found: &mut Found) {
    let acquires: Vec<_> = life.possible_acquires().collect();
    // A repeat that comes while another PUT keeps the place for longer keeps it for 5 s after its own wait.
    let repeats =
        acquires.iter().filter(|acquire| !acquire.keep_place).count().min(acquires.len().saturating_sub(1));
    let waits_ms = acquires.iter().map(|acquire| acquire.place_ms()).sum::<u64>() + KEPT_MS * repeats as u64;
    for (queued, left) in places(life) {
        if ran_out(left) {
            found.saw("waits that ran out");
        }
        let granted = left.change == ChangeName::Granted;
        // A lease that nobody of this history asked for has no bound.
        if granted && life.acquires().next().is_some() && left.at_ms > queued.at_ms.saturating_add(waits_ms) {
            let what = format!(
                "lease {name} took its place at {} ms of cluster time, could wait {waits_ms} ms in all, and was \
                 granted at {} ms with revision {}",
                queued.at_ms, left.at_ms, left.revision
            );
            found.breach(what, life.ids());
        }
    }
}

fn answered_in_time(name: &str, life: &Life, facts: &Facts, found: &mut Found) {
    let granted = life
        .acquires()
        .filter(|it| it.wait_ms > 0 && matches!(it.call.conclusion, Conclusion::Granted { .. }));
    for acquire in granted {
        found.saw("waits answered with a grant");
        let (call, wait_ms) = (acquire.call, acquire.wait_ms);
        let faults = &facts.history.faults;
        let near = || faults.iter().any(|it| it.from_us < call.ended_us && it.to_us + LATE_US > call.sent_us);
        if call.ended_us > call.sent_us + wait_ms * 1_000 + LATE_US && !near() {
            let (sent, ended) = (at(call.sent_us), at(call.ended_us));
            found.breach(
                format!("lease {name}: asked at {sent} to wait {wait_ms} ms, granted at {ended}"),
                [call.id],
            );
        }
    }
}

fn batch_places(facts: &Facts) -> Found {
    let mut found = Found::default();
    let mut batches: BTreeMap<u64, Vec<(&Call, &Life)>> = BTreeMap::new();
    for life in facts.lives.values() {
        for call in &life.calls {
            if let (Some(batch), Conclusion::Waiting { .. } | Conclusion::Granted { .. }) =
                (call.batch, &call.conclusion)
            {
                batches.entry(batch).or_default().push((call, life));
            }
        }
    }
    for mut batch in batches.into_values() {
        batch.sort_by_key(|(call, _)| call.id);
        in_one_entry(&batch, facts, &mut found);
        batch.iter().for_each(|(call, life)| kept(call, life, &mut found));
    }
    let why = "no batch took places that were granted later";
    found.needs(&["acquires of batches after another of the same batch"], why);
    found.needs(&["places taken in a batch and granted later"], why);
    found
}

fn in_one_entry(batch: &[(&Call, &Life)], facts: &Facts, found: &mut Found) {
    let mut before: Option<(&Call, &Change)> = None;
    for (call, life) in batch {
        let waits = matches!(call.conclusion, Conclusion::Waiting { .. });
        let expected = if waits { ChangeName::Queued } else { ChangeName::Granted };
        let first =
            life.stages.first().and_then(|stage| stage.begun).filter(|change| change.change == expected);
        let Some(first) = first else {
            if facts.log.is_whole {
                let what =
                    format!("call {} was answered, and the log does not begin so with its lease", call.id);
                found.breach(what, [call.id]);
            }
            continue;
        };
        if let Some((earlier, place)) = before {
            found.saw("acquires of batches after another of the same batch");
            if place.index != first.index || place.revision >= first.revision {
                let what = format!(
                    "calls {} and {} of one batch took effect in entry {} as revision {}, and in entry {} as revision {}",
                    earlier.id, call.id, place.index, place.revision, first.index, first.revision
                );
                found.breach(what, [earlier.id, call.id]);
            }
        }
        before = Some((call, first));
    }
}

/// Judges only places that ran out: a place may be given up, and is taken from a client that hung up.
fn kept(call: &Call, life: &Life, found: &mut Found) {
    let always = life.possible_acquires().all(|acquire| acquire.keep_place);
    for (queued, left) in places(life) {
        if left.change == ChangeName::Granted {
            found.saw("places taken in a batch and granted later");
        } else if ran_out(left) && always {
            found.saw("places taken in a batch that ran out");
            if left.at_ms < queued.at_ms + KEPT_MS {
                let what = format!(
                    "the place that call {} took at {} ms of cluster time was to be kept for {KEPT_MS} ms, and was \
                     gone at {} ms",
                    call.id, queued.at_ms, left.at_ms
                );
                found.breach(what, [call.id]);
            }
        }
    }
}
