//! Cluster time is never faster than real time, and never runs backwards.
//!
//! Nobody sees the leader's clock itself, only what it stamped into the log. But a grant's stamp was made after its acquire
//! was sent, so the clock was not beyond that stamp when the acquire was sent: a bound from above. And a stamp that somebody
//! saw was reached when it was seen: a bound from below. Between the two the clock may have advanced by the real time
//! between them, and by one tick of the leader: it counts up to 100 ms at once, for real time that is over.
//!
//! Time of a table belongs to its revision, whichever node shows it: of two revisions the later has no earlier time. This
//! holds for nodes that start again and go through the log once more, too.
//!
//! Where a nemesis bends monotonic clocks, the first half of the law does not hold, and is not to be asked.

use std::collections::HashMap;

use super::facts::Facts;
use super::{Checker, Found};
use crate::history::{ChangeName, Conclusion, History, Invocation};

/// Cluster time is never faster than real time, and never runs backwards.
pub const CLUSTER_TIME: Checker = Checker {
    name: "cluster-time",
    law: "Cluster time never runs faster than real time, and never backwards.",
    check: cluster_time,
};

/// The most that the leader's clock advances in one step, and a fraction of a millisecond on either side.
const STEP_US: u64 = 101_000;

fn cluster_time(facts: &Facts) -> Found {
    let history = facts.history;
    let mut found = Found::default();
    never_backwards(history, &mut found);
    never_faster(history, &mut found);
    if !found.counts.contains_key("times seen after a stamp of known age") {
        found.undecided =
            Some("no time was seen after a grant whose acquire and change are both known".to_owned());
    }
    found
}

fn never_backwards(history: &History, found: &mut Found) {
    let sights = history.sights.iter().map(|sight| (sight.revision, sight.at_ms));
    let changes = history.end.changes.iter().map(|change| (change.revision, change.at_ms));
    let mut times: Vec<_> = sights.chain(changes).collect();
    times.sort_unstable();
    for pair in times.windows(2) {
        let [(earlier, before_ms), (later, after_ms)] = pair else { continue };
        found.saw("times compared by revision");
        if after_ms < before_ms {
            let what = format!(
                "At revision {earlier} it was {before_ms} ms, at the later revision {later} {after_ms} ms."
            );
            found.breach(what, []);
        }
    }
}

fn never_faster(history: &History, found: &mut Found) {
    let grants = history.end.changes.iter().filter(|change| change.change == ChangeName::Granted);
    let stamped_ms: HashMap<_, _> =
        grants.clone().filter_map(|change| Some((change.token?, change.at_ms))).collect();
    let mut acquires = HashMap::new();
    for call in &history.calls {
        if let Invocation::Acquire { lease, .. } = &call.invocation {
            acquires.entry(*lease).or_insert(call);
        }
    }
    // From above: when an acquire was sent, and the stamp of its grant.
    let mut above: Vec<_> = grants
        .filter_map(|change| acquires.get(&change.lease_id).map(|call| (call.sent_us, change.at_ms, call.id)))
        .collect();
    above.sort_unstable();
    // From below: when a stamp was seen.
    let told = history.calls.iter().filter_map(|call| {
        let Conclusion::Granted { grant, .. } = &call.conclusion else { return None };
        Some((call.ended_us, *stamped_ms.get(&grant.token)?, Some(call.id)))
    });
    let seen = history.sights.iter().map(|sight| (sight.ended_us, sight.at_ms, None));
    let mut below: Vec<_> = told.chain(seen).collect();
    below.sort_unstable();

    let mut above = above.into_iter().peekable();
    // The bound from above, of all so far, which is the least ahead of real time.
    let mut tightest: Option<(i128, u64, u64, u64)> = None;
    for (ended_us, at_ms, by) in below {
        while let Some((sent_us, bound_ms, id)) = above.next_if(|bound| bound.0 <= ended_us) {
            let ahead_us = i128::from(bound_ms) * 1_000 - i128::from(sent_us);
            if tightest.is_none_or(|(least, ..)| ahead_us < least) {
                tightest = Some((ahead_us, sent_us, bound_ms, id));
            }
        }
        let Some((least_us, sent_us, bound_ms, id)) = tightest else { continue };
        found.saw("times seen after a stamp of known age");
        let ahead_us = i128::from(at_ms) * 1_000 - i128::from(ended_us);
        if ahead_us > least_us + i128::from(STEP_US) {
            let what = format!(
                "Cluster time was at most {bound_ms} ms at {:.3} s of the run, and {at_ms} ms at {:.3} s: it went on by \
                 {} ms in {} ms.",
                sent_us as f64 / 1e6,
                ended_us as f64 / 1e6,
                at_ms.saturating_sub(bound_ms),
                ended_us.saturating_sub(sent_us) / 1_000,
            );
            found.breach(what, [id].into_iter().chain(by));
        }
    }
}
