//! Reads, renewals and verdicts are linearizable: each shows the table as it was at one instant of the call.
//!
//! The table numbers its states, so there is hardly anything to search for. What is asked:
//!
//! - **Nobody is shown less than was known before**: neither a lower revision nor, per key, a lower fence than a call that
//!   had ended before this one was sent. This includes what a node showed of its own state: it had applied it, so it stands.
//! - **A lease that is over stays over**: once a call has told so, no call that is sent afterwards finds it alive. So a verdict
//!   `stale` for a lease that a later call finds alive is wrong, if its grant was known before.
//! - **What is shown was there**: a view is the state of the key at the view's revision, by the logs: holders, fence,
//!   waiters. An answer without a revision (a grant, a verdict, a look at a lease that is gone or waits) holds at one
//!   revision at least of those that the table can have had during the call, for all that it says at once.
//! - **A node's own state** may lag, but must be one that the table had by then; a verdict from it is never `live`, and
//!   `stale` must be right.
//!
//! Where the logs do not reach back, or up, to a revision, only the first two are asked. Two calls of which one ended in the
//! microsecond in which the other was sent count as concurrent. Not looked at here: how long a lease has left, who is ahead of
//! a waiter, whose key a refused acquire found held.

use std::collections::HashMap;
use std::ops::Range;

use ringfence_wire::{Grant, Key, KeyView, LeaseId, ProblemKind, Token, Verdict, VerdictName};

use super::bounds::Bounds;
use super::states::{Line, Stage, States};
use super::{Checker, Found};
use crate::history::{Asked, Call, Came, History};

/// Reads, renewals and verdicts show the table as it was at one instant of the call.
pub const LINEARIZABLE_READS: Checker = Checker {
    name: "linearizable-reads",
    law: "What a linearizable call shows is the table at one instant of the call; what a local one shows, an earlier one.",
    check: linearizable_reads,
};

/// A call that shows something of the table.
struct Look<'h> {
    call: &'h Call,
    /// Whether it shows a node's own state.
    local: bool,
    shows: Shows<'h>,
}

enum Shows<'h> {
    Key(&'h KeyView),
    Verdict(&'h Key, Token, Verdict),
    Live(&'h Grant),
    Waiting(LeaseId),
    Over(LeaseId),
}

fn linearizable_reads(history: &History) -> Found {
    let mut found = Found::default();
    let looks: Vec<Look<'_>> = history.calls.iter().filter_map(Look::of).collect();
    let revisions = Bounds::of_revision(history);
    never_less(&looks, &revisions, &mut found);
    over_stays_over(&looks, &mut found);
    as_it_was(&looks, &revisions, &States::of(history), &mut found);
    let reads = |look: &Look<'_>| {
        matches!(look.call.asked, Asked::Key { .. } | Asked::Validate { .. } | Asked::Lease { .. })
    };
    if !looks.iter().any(|look| !look.local && reads(look)) {
        found.undecided = Some("nothing was read linearizably".to_owned());
    } else if !["views compared with the state at their revision", "verdicts", "grants, renewals and looks"]
        .iter()
        .any(|compared| found.counts.contains_key(*compared))
    {
        found.undecided = Some("nothing that was read could be compared with the logs".to_owned());
    }
    found
}

impl<'h> Look<'h> {
    fn of(call: &'h Call) -> Option<Self> {
        let local = match &call.asked {
            Asked::Lease { local, .. } | Asked::Key { local, .. } | Asked::Validate { local, .. } => *local,
            _ => false,
        };
        let shows = match (&call.asked, &call.came) {
            (_, Came::Key { view }) => Shows::Key(view),
            (Asked::Validate { key, token, .. }, Came::Verdict { verdict }) => {
                Shows::Verdict(key, *token, *verdict)
            }
            (_, Came::Granted { grant, .. }) => Shows::Live(grant),
            (Asked::Lease { lease, .. }, Came::Waiting { .. }) => Shows::Waiting(*lease),
            (Asked::Release { lease }, Came::Done)
            | (
                Asked::Acquire { lease, .. } | Asked::Lease { lease, .. } | Asked::Renew { lease, .. },
                Came::Refused { problem: ProblemKind::LeaseGone, .. },
            ) => Shows::Over(*lease),
            _ => return None,
        };
        Some(Self { call, local, shows })
    }

    /// The fences that it shows.
    fn fences(&self) -> Vec<(&'h Key, u64)> {
        match self.shows {
            Shows::Key(view) => vec![(&view.key, view.fence.0)],
            Shows::Verdict(key, _, verdict) => vec![(key, verdict.fence.0)],
            Shows::Live(grant) => grant.keys.iter().map(|granted| (&granted.key, granted.fence.0)).collect(),
            Shows::Waiting(_) | Shows::Over(_) => Vec::new(),
        }
    }
}

/// Compares with what was known before, and a view with itself.
fn never_less(looks: &[Look<'_>], revisions: &Bounds, found: &mut Found) {
    let mut fences: HashMap<&Key, Bounds> = HashMap::new();
    for look in looks {
        for (key, fence) in look.fences() {
            fences.entry(key).or_default().at_least(look.call.ended_us, fence, Some(look.call.id));
        }
    }
    fences.values_mut().for_each(Bounds::settle);
    for look in looks {
        let call = look.call;
        if let Shows::Key(view) = look.shows {
            let fence = view.holders.first().map_or(view.revision.0 + 1, |holder| holder.token.0);
            if view.fence.0 != fence {
                let what = format!(
                    "{}: a view of revision {} says that the fence is {}, and not {fence}.",
                    view.key, view.revision, view.fence
                );
                found.breach(what, [call.id]);
            }
        }
        if look.local {
            continue;
        }
        if let (Shows::Key(view), Some(known)) = (&look.shows, revisions.floor(call.sent_us))
            && view.revision.0 < known.number
        {
            let what = format!(
                "{}: a view shows revision {}, though {} was known before it was asked for.",
                view.key, view.revision, known.number
            );
            found.breach(what, known.call.into_iter().chain([call.id]));
        }
        for (key, fence) in look.fences() {
            if let Some(known) = fences.get(key).and_then(|fences| fences.floor(call.sent_us))
                && fence < known.number
            {
                let what = format!(
                    "{key}: fence {fence} is shown, though {} was known before it was asked for.",
                    known.number
                );
                found.breach(what, known.call.into_iter().chain([call.id]));
            }
        }
    }
}

/// What calls tell of one token on one key.
#[derive(Default)]
struct Life<'h> {
    alive: Vec<&'h Call>,
    /// And whether a lease not granted yet would be told of in the same way.
    over: Vec<(&'h Call, bool)>,
}

fn over_stays_over(looks: &[Look<'_>], found: &mut Found) {
    let mut lives: HashMap<(&Key, u64), Life<'_>> = HashMap::new();
    let mut tokens: HashMap<LeaseId, &Grant> = HashMap::new();
    for look in looks {
        if let Shows::Live(grant) = look.shows {
            tokens.insert(grant.lease_id, grant);
        }
    }
    for look in looks {
        let call = look.call;
        match look.shows {
            Shows::Live(grant) if !look.local => {
                for granted in &grant.keys {
                    lives.entry((&granted.key, grant.token.0)).or_default().alive.push(call);
                }
            }
            Shows::Key(view) if !look.local => {
                for holder in &view.holders {
                    lives.entry((&view.key, holder.token.0)).or_default().alive.push(call);
                }
            }
            Shows::Verdict(key, token, verdict) => {
                let life = lives.entry((key, token.0)).or_default();
                match verdict.verdict {
                    VerdictName::Live => life.alive.push(call),
                    VerdictName::Stale => life.over.push((call, !look.local && token >= verdict.fence)),
                    VerdictName::Unknown => {}
                }
            }
            Shows::Over(lease) => {
                let Some(grant) = tokens.get(&lease) else { continue };
                for granted in &grant.keys {
                    lives.entry((&granted.key, grant.token.0)).or_default().over.push((call, true));
                }
            }
            _ => {}
        }
    }
    for ((key, token), life) in lives {
        let Some(granted_us) = life.alive.iter().map(|call| call.ended_us).min() else { continue };
        let over =
            life.over.iter().filter(|(call, maybe_not_yet)| !maybe_not_yet || call.sent_us > granted_us);
        let Some((over, _)) = over.min_by_key(|(call, _)| call.ended_us) else { continue };
        found.saw("leases known to live, and known to be over");
        if let Some(alive) = life.alive.iter().find(|call| call.sent_us > over.ended_us) {
            let what = format!("{key}: token {token} was alive after a call had told that it was over.");
            found.breach(what, [over.id, alive.id]);
        }
    }
}

/// Compares with the states that the logs tell of.
fn as_it_was(looks: &[Look<'_>], revisions: &Bounds, states: &States<'_>, found: &mut Found) {
    for look in looks {
        let call = look.call;
        let most = revisions.ceiling(call.ended_us);
        let floor = revisions.floor(call.sent_us).filter(|_| !look.local).map_or(0, |known| known.number);
        let floor = if states.whole { floor.max(states.after) } else { floor };
        // Those that the call can have seen; none if it may have seen some that are not known.
        let span = match most {
            Some(most) if states.has(floor) && states.has(most.number) => floor..most.number + 1,
            _ => 0..0,
        };
        match look.shows {
            Shows::Key(view) => {
                found.saw(if look.local { "local views of keys" } else { "views of keys" });
                if let Some(most) = most.filter(|most| view.revision.0 > most.number) {
                    let what = format!(
                        "{}: a view shows revision {}, and a call that was sent afterwards found {}.",
                        view.key, view.revision, most.number
                    );
                    found.breach(what, [call.id].into_iter().chain(most.call));
                }
                if let Some(line) = states.line(&view.key).filter(|_| states.has(view.revision.0)) {
                    found.saw("views compared with the state at their revision");
                    if let Some(wrong) = wrong_view(view, line, states.whole) {
                        found.breach(format!("{}: {wrong}", view.key), [call.id]);
                    }
                }
            }
            _ if span.is_empty() => {}
            Shows::Verdict(key, token, verdict) => {
                let Some(line) = states.line(key) else { continue };
                found.saw(if look.local { "local verdicts" } else { "verdicts" });
                let at = meet(&span, &line.with_fence(verdict.fence.0));
                let life = line.life(token.0);
                let fits = match verdict.verdict {
                    VerdictName::Live => !look.local && !meet(&at, &life).is_empty(),
                    VerdictName::Stale if look.local => {
                        !meet(&at, &(life.end.max(token.0)..u64::MAX)).is_empty()
                    }
                    VerdictName::Stale => !without(&at, &life).all(|rest| rest.is_empty()),
                    VerdictName::Unknown => look.local && !at.is_empty(),
                };
                if !fits {
                    let what = format!(
                        "{key}: token {token} was called {:?} with fence {}, {}. It lived {}.",
                        verdict.verdict,
                        verdict.fence,
                        nowhere(&span),
                        words(&life)
                    );
                    found.breach(what, [call.id]);
                }
            }
            Shows::Live(grant) => {
                found.saw("grants, renewals and looks");
                let mut at = span.clone();
                for granted in &grant.keys {
                    let Some(line) = states.line(&granted.key) else { continue };
                    at = meet(&at, &meet(&line.with_fence(granted.fence.0), &line.life(grant.token.0)));
                }
                if at.is_empty() {
                    let what = format!(
                        "Lease {} was shown with token {} and fences {:?}, {}.",
                        grant.lease_id,
                        grant.token,
                        grant.keys.iter().map(|granted| granted.fence.0).collect::<Vec<_>>(),
                        nowhere(&span)
                    );
                    found.breach(what, [call.id]);
                }
            }
            Shows::Waiting(lease) | Shows::Over(lease) if states.whole => {
                found.saw("looks at leases that wait or are over");
                let waits = matches!(look.shows, Shows::Waiting(_));
                let stages = states.stages(lease);
                let fits = if waits {
                    stages.iter().any(|stage| stage.token.is_none() && !meet(&span, &stage.during).is_empty())
                } else {
                    let goes_on =
                        |at, stage: &Stage| if stage.during.contains(&at) { stage.during.end } else { at };
                    stages.iter().fold(span.start, goes_on) < span.end
                };
                if !fits {
                    let said = if waits { "waiting" } else { "over" };
                    found.breach(format!("Lease {lease} was called {said}, {}.", nowhere(&span)), [call.id]);
                }
            }
            _ => {}
        }
    }
}

/// What is wrong with a view, beside the state at its revision. Its fence follows from the rest.
fn wrong_view(view: &KeyView, line: &Line, all_waiters_are_known: bool) -> Option<String> {
    let revision = view.revision.0;
    let step = line.at(revision);
    if let Some(holder) = view.holders.iter().find(|holder| !line.life(holder.token.0).contains(&revision)) {
        return Some(format!(
            "at revision {revision} a view shows holder {}, which was not live.",
            holder.token
        ));
    }
    if view.holders.len() != step.holders {
        return Some(format!(
            "at revision {revision} a view shows {} holders, not {}.",
            view.holders.len(),
            step.holders
        ));
    }
    (all_waiters_are_known && view.waiters.len() != step.waiters).then(|| {
        format!("at revision {revision} a view shows {} waiters, not {}.", view.waiters.len(), step.waiters)
    })
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// What of `all` is not in `hole`.
fn without(all: &Range<u64>, hole: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = if hole.is_empty() { all.clone() } else { meet(all, &(0..hole.start)) };
    [before, meet(all, &(hole.end..u64::MAX))].into_iter()
}

fn nowhere(span: &Range<u64>) -> String {
    format!(
        "which it was at no revision from {} to {}, those that the call can have seen",
        span.start,
        span.end - 1
    )
}

fn words(life: &Range<u64>) -> String {
    match life {
        life if life.is_empty() => "never".to_owned(),
        Range { start, end: u64::MAX } => format!("from revision {start} on"),
        Range { start, end } => format!("from revision {start}, and was ended by revision {end}"),
    }
}

#[cfg(test)]
mod tests;
