//! What must hold of acquires that came in a batch, beyond what holds of every acquire.
//!
//! A batch waits for nothing: what is not granted at once, and keeps its place, stands in the queue, and a PUT waits for it.
//! All of a batch stand in one log entry, in their order; so their places are in that order, too.

use std::collections::BTreeMap;

use super::lives::{Life, Lives, did_nothing};
use super::{Checker, Found};
use crate::history::{Call, Came, Change, ChangeName, History};

/// Places taken in a batch.
pub const BATCH_PLACES: Checker = Checker {
    name: "batch-places",
    law: "The acquires of a batch take effect at once and in their order, and a place that is kept is kept for 5 s.",
    check,
};

/// How long a place is kept, in milliseconds of cluster time.
const KEPT_MS: u64 = 5_000;
const IN_ORDER: &str = "acquires of batches after another of the same batch";
const GRANTED: &str = "places taken in a batch and granted later";

fn check(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    let mut batches: BTreeMap<u64, Vec<(&Call, &Life)>> = BTreeMap::new();
    for life in lives.by_id.values() {
        for call in &life.calls {
            let batch =
                call.batch.filter(|_| matches!(call.came, Came::Waiting { .. } | Came::Granted { .. }));
            if let Some(batch) = batch {
                batches.entry(batch).or_default().push((call, life));
            }
        }
    }
    for mut batch in batches.into_values() {
        batch.sort_by_key(|(call, _)| call.id);
        in_one_entry(&batch, history, &mut found);
        batch.iter().for_each(|(call, life)| kept(call, life, &mut found));
    }
    if !found.counts.contains_key(IN_ORDER) || !found.counts.contains_key(GRANTED) {
        found.undecided = Some("no batch took places that were granted later".to_owned());
    }
    found
}

fn in_one_entry(batch: &[(&Call, &Life)], history: &History, found: &mut Found) {
    let mut before: Option<(&Call, &Change)> = None;
    for (call, life) in batch {
        let expected = match call.came {
            Came::Waiting { .. } => ChangeName::Queued,
            _ => ChangeName::Granted,
        };
        let Some(first) = life.changes.first().filter(|change| change.change == expected) else {
            // Else it may stand in what was cut off.
            if history.end.changes_after.0 == 0 {
                found.breach(
                    format!("call {} was answered, and the log does not begin so with its lease", call.id),
                    [call.id],
                );
            }
            continue;
        };
        if let Some((earlier, place)) = before {
            found.saw(IN_ORDER);
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

/// Only what has run out is looked at: a place may be given up, and be taken from who hung up.
fn kept(call: &Call, life: &Life, found: &mut Found) {
    let always =
        life.acquires().filter(|acquire| !did_nothing(acquire.call)).all(|acquire| acquire.keep_place);
    for pair in life.changes.windows(2).filter(|pair| pair[0].change == ChangeName::Queued) {
        let (queued, next) = (pair[0], pair[1]);
        match next.change {
            ChangeName::Granted => found.saw(GRANTED),
            ChangeName::Left if next.reason.is_none() && always => {
                found.saw("places taken in a batch that ran out");
                if next.at_ms < queued.at_ms + KEPT_MS {
                    let what = format!(
                        "the place that call {} took at {} ms of cluster time was to be kept for {KEPT_MS} ms, and was \
                         gone at {} ms",
                        call.id, queued.at_ms, next.at_ms
                    );
                    found.breach(what, [call.id]);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
