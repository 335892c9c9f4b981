//! What a history says, gathered once for all checkers.
//!
//! Two measures of time meet here. Calls have microseconds of the harness's clock: one precedes another only if it ended
//! before the other was sent. Changes, tokens, fences and views have revisions of the table. [`Facts::revisions`] joins
//! them: a revision that an answer shows had been reached when the call ended.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{EndReason, Grant, Key, KeyView, LeaseId, Mode, ProblemKind, Token, VerdictName};

use super::bounds::{Bound, Bounds};
use super::log::{Log, REMEMBERED_MS, Stage};
use super::plain::Plain;
use super::tally::mode;
use crate::history::{Call, Change, ChangeName, Conclusion, History, Invocation, ValuedKey};

/// A history and what follows from it.
pub struct Facts<'h> {
    /// The history, in the words of leases.
    pub history: &'h History,
    /// The sets, as they were asked for.
    pub(crate) sets: &'h [&'h Call],
    pub(crate) log: Log<'h>,
    pub(crate) lives: BTreeMap<LeaseId, Life<'h>>,
    /// The lease of each token; of two leases with one token, the first.
    pub(crate) by_token: BTreeMap<Token, LeaseId>,
    /// Revocations, by the token that they name.
    pub(crate) revokes: BTreeMap<Token, Vec<&'h Call>>,
    /// Lower bounds of the table's revision, from what clients were told alone.
    pub(crate) told: Bounds,
    /// Bounds of the table's revision, from all there is.
    pub(crate) revisions: Bounds,
    /// Lower bounds of each key's fence.
    pub(crate) fences: BTreeMap<&'h Key, Bounds>,
}

/// The calls about one lease.
#[derive(Default)]
pub(crate) struct Life<'h> {
    /// In the order they were sent.
    pub(crate) calls: Vec<&'h Call>,
    /// Those that were answered with its grant.
    pub(crate) grants: Vec<(&'h Call, &'h Grant)>,
    /// What the log says.
    pub(crate) stages: Vec<Stage<'h>>,
    /// All its tokens; more than one only where its id was forgotten in between, or wrongly.
    pub(crate) tokens: BTreeSet<Token>,
}

impl<'h> Facts<'h> {
    /// Replays the log, and sorts the calls.
    pub fn of(plain: &'h Plain<'h>) -> Self {
        let (history, sets) = (plain.history.as_ref(), &plain.sets[..]);
        let mut log = Log::replay(&history.end);
        let mut lives: BTreeMap<LeaseId, Life<'h>> = BTreeMap::new();
        let mut revokes: BTreeMap<Token, Vec<&Call>> = BTreeMap::new();
        let mut fences: BTreeMap<&Key, Vec<Bound>> = BTreeMap::new();
        for call in &history.calls {
            if let Some(lease) = call.invocation.lease() {
                let life = lives.entry(lease).or_default();
                life.calls.push(call);
                if let Conclusion::Granted { grant, .. } = &call.conclusion {
                    life.grants.push((call, grant));
                }
            } else if let Invocation::Revoke { token, .. } = &call.invocation {
                revokes.entry(*token).or_default().push(call);
            }
            for (key, fence) in fences_of(call) {
                fences.entry(key).or_default().push(at_least(call, fence.0));
            }
        }
        for (lease, stages) in std::mem::take(&mut log.stages) {
            lives.entry(lease).or_default().stages = stages;
        }
        let mut by_token = BTreeMap::new();
        for (&lease, life) in &mut lives {
            let answered = life.grants.iter().map(|(_, grant)| grant.token);
            life.tokens = answered.chain(life.stages.iter().filter_map(|stage| stage.token)).collect();
            for token in &life.tokens {
                by_token.entry(*token).or_insert(lease);
            }
        }
        let fences = fences.into_iter().map(|(key, floors)| (key, Bounds::new(floors, Vec::new())));
        let (fences, told, revisions) = (fences.collect(), Bounds::default(), Bounds::default());
        let mut facts = Self { history, sets, log, lives, by_token, revokes, told, revisions, fences };
        let (mut floors, mut ceilings) = shown(history);
        facts.told = Bounds::new(floors.clone(), Vec::new());
        facts.bounds(&mut floors, &mut ceilings);
        facts.revisions = Bounds::new(floors.clone(), ceilings.clone());
        floors.extend(facts.ends_seen());
        facts.revisions = Bounds::new(floors, ceilings);
        facts
    }

    /// Adds what nodes and final reads showed, and what the causes of changes prove.
    fn bounds(&self, floors: &mut Vec<Bound>, ceilings: &mut Vec<Bound>) {
        let sights = self.history.sights.iter();
        floors.extend(sights.map(|sight| Bound {
            at_us: sight.ended_us,
            number: sight.revision.0,
            call: None,
        }));
        let end = &self.history.end;
        let at_us = end.healed_us.min(end.read_us);
        ceilings.extend(end.keys.iter().map(|view| Bound { at_us, number: view.revision.0, call: None }));
        // A change comes after the first call that asked for it was sent.
        for change in &end.changes {
            let Some(life) = self.lives.get(&change.lease_id) else { continue };
            let cause = life.calls.iter().copied().find(|call| match (change.change, change.reason) {
                (ChangeName::Granted | ChangeName::Queued, _) => {
                    matches!(call.invocation, Invocation::Acquire { .. })
                }
                (_, Some(EndReason::Released)) => matches!(call.invocation, Invocation::Release { .. }),
                _ => false,
            });
            let cause =
                cause.or_else(|| self.first_that_may_have_set(change).filter(|_| life.calls.is_empty()));
            ceilings.extend(cause.map(|call| at_most(call, change.revision.0.saturating_sub(1))));
        }
    }

    /// The first call over RESP that can have made this change of a lease that no call names.
    fn first_that_may_have_set(&self, change: &Change) -> Option<&'h Call> {
        let [changed] = &change.keys[..] else { return None };
        let wishes = self.untold().filter(|(_, at)| at.key == changed.key);
        match (change.change, change.reason) {
            (ChangeName::Granted, _) => wishes.map(|(call, _)| call).min_by_key(|call| call.sent_us),
            (_, Some(EndReason::Released)) => {
                let lives = wishes.filter_map(|(_, at)| self.lives.get(&at.value));
                lives.flat_map(Life::releases).min_by_key(|call| call.sent_us)
            }
            _ => None,
        }
    }

    /// The keys that may have been set, and whose token no client got.
    pub(crate) fn untold(&self) -> impl Iterator<Item = (&'h Call, &'h ValuedKey)> {
        let is_untold = |at: &ValuedKey| self.lives.get(&at.value).is_none_or(|life| life.tokens.is_empty());
        let sets = self.sets.iter().copied().filter(|call| call.may_be_done());
        let all = sets.flat_map(|call| match &call.invocation {
            Invocation::Set { keys, .. } => keys.iter().map(|at| (call, at)).collect(),
            _ => Vec::new(),
        });
        all.filter(move |(_, at)| is_untold(at))
    }

    /// A client that learnt that a lease is over, after its grant was known or by what it did, saw the revision of its end.
    fn ends_seen(&self) -> Vec<Bound> {
        let mut seen = Vec::new();
        for call in &self.history.calls {
            let over = match (&call.invocation, &call.conclusion) {
                (Invocation::Validate { token, .. }, Conclusion::Verdict { verdict })
                    if verdict.verdict == VerdictName::Stale =>
                {
                    self.by_token.get(token).map(|lease| (*lease, Some(*token)))
                }
                (Invocation::Revoke { token, .. }, Conclusion::Done) => {
                    self.by_token.get(token).map(|lease| (*lease, Some(*token)))
                }
                (Invocation::Release { lease }, Conclusion::Done) => Some((*lease, None)),
                _ => call
                    .invocation
                    .lease()
                    .filter(|_| problem(call) == Some(ProblemKind::LeaseGone))
                    .map(|lease| (lease, None)),
            };
            let Some((lease, token)) = over else { continue };
            let Some(life) = self.lives.get(&lease) else { continue };
            // A key that was deleted because it had this value.
            let itself = life.grants.iter().any(|(granted, _)| granted.id == call.id);
            for stage in &life.stages {
                let (Some(held), Some(end)) = (stage.token, stage.ended) else { continue };
                let granted = self.revisions.reached(held.0);
                if token.is_none_or(|token| token == held)
                    && (itself || granted.is_some_and(|known| known.at_us < call.sent_us))
                {
                    seen.push(at_least(call, end.revision.0));
                }
            }
        }
        seen
    }

    /// The lease with this token.
    pub(crate) fn with_token(&self, token: Token) -> Option<&Life<'h>> {
        self.lives.get(self.by_token.get(&token)?)
    }

    /// How its lease holds its keys, as far as an answer or the log says.
    pub(crate) fn holds(&self, token: Token) -> Vec<(&'h Key, Mode)> {
        let Some(life) = self.with_token(token) else { return Vec::new() };
        if let Some((_, grant)) = life.grants.iter().find(|(_, grant)| grant.token == token) {
            return grant.keys.iter().map(|held| (&held.key, mode(held.mode, held.limit))).collect();
        }
        let change = life.held(token).and_then(|stage| stage.begun.or(stage.ended));
        change.map_or_else(Vec::new, |change| change.keys.iter().map(|k| (&k.key, k.mode)).collect())
    }

    /// All views of keys, and the calls that returned them; the final reads have none.
    pub(crate) fn views(&self) -> impl Iterator<Item = (Option<&'h Call>, &'h KeyView)> {
        let calls = self.history.calls.iter().filter_map(|call| match &call.conclusion {
            Conclusion::Key { view } => Some((Some(call), view)),
            _ => None,
        });
        calls.chain(self.history.end.keys.iter().map(|view| (None, view)))
    }
}

impl<'h> Life<'h> {
    /// The stage in which it held this token.
    pub(crate) fn held(&self, token: Token) -> Option<&Stage<'h>> {
        self.stages.iter().find(|stage| stage.token == Some(token))
    }

    pub(crate) fn acquires(&self) -> impl Iterator<Item = Acquire<'h>> {
        self.calls.iter().filter_map(|&call| match call.invocation {
            Invocation::Acquire { ttl_ms, wait_ms, keep_place, .. } => {
                Some(Acquire { call, ttl_ms: ttl_ms.into(), wait_ms: wait_ms.into(), keep_place })
            }
            _ => None,
        })
    }

    /// The acquires that may have been done.
    pub(crate) fn possible_acquires(&self) -> impl Iterator<Item = Acquire<'h>> {
        self.acquires().filter(|acquire| !did_nothing(acquire.call))
    }

    pub(crate) fn releases(&self) -> impl Iterator<Item = &'h Call> {
        self.calls.iter().copied().filter(|call| matches!(call.invocation, Invocation::Release { .. }))
    }

    /// When somebody first asked for it.
    pub(crate) fn first_sent_us(&self) -> Option<u64> {
        self.acquires().map(|acquire| acquire.call.sent_us).min()
    }

    /// All time-to-lives that anybody asked for.
    pub(crate) fn ttls_ms(&self) -> impl Iterator<Item = u64> {
        let renewed = self.calls.iter().filter_map(|call| match &call.invocation {
            Invocation::Renew { ttl_ms, .. } => ttl_ms.map(u64::from),
            _ => None,
        });
        self.acquires().map(|acquire| acquire.ttl_ms).chain(renewed)
    }

    /// Whether its id must still be remembered at `us`, even if it ended right after it was first asked for.
    pub(crate) fn is_remembered(&self, us: u64) -> bool {
        self.first_sent_us().is_some_and(|first_us| us < first_us + REMEMBERED_MS * 1_000)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.calls.iter().map(|call| call.id)
    }
}

pub(crate) struct Acquire<'h> {
    pub(crate) call: &'h Call,
    pub(crate) ttl_ms: u64,
    pub(crate) wait_ms: u64,
    pub(crate) keep_place: bool,
}

impl Acquire<'_> {
    /// How long it may keep a place in the queue.
    pub(crate) fn place_ms(&self) -> u64 {
        self.wait_ms + if self.keep_place { 5_000 } else { 0 }
    }
}

/// Bounds of the revision that single answers prove.
fn shown(history: &History) -> (Vec<Bound>, Vec<Bound>) {
    let (mut floors, mut ceilings) = (Vec::new(), Vec::new());
    for call in &history.calls {
        let shown = match (&call.conclusion, &call.invocation) {
            (Conclusion::Granted { grant, standing, .. }, invocation) => {
                if !standing && matches!(invocation, Invocation::Acquire { .. }) {
                    ceilings.push(at_most(call, grant.token.0.saturating_sub(1)));
                }
                Some(grant.token.0)
            }
            (Conclusion::Key { view }, _) => {
                if !is_local(call) {
                    ceilings.push(at_most(call, view.revision.0));
                }
                Some(view.revision.0)
            }
            (Conclusion::Verdict { verdict }, Invocation::Validate { token, .. })
                if verdict.verdict == VerdictName::Live =>
            {
                Some(token.0)
            }
            _ => None,
        };
        // A fence is a live token, or the revision + 1.
        let fence = fences_of(call).into_iter().map(|(_, fence)| fence.0.saturating_sub(1)).max();
        floors.extend(shown.max(fence).map(|number| at_least(call, number)));
    }
    (floors, ceilings)
}

/// It was at least this when the call ended.
fn at_least(call: &Call, number: u64) -> Bound {
    Bound { at_us: call.ended_us, number, call: Some(call.id) }
}

/// It was at most this when the call was sent.
fn at_most(call: &Call, number: u64) -> Bound {
    Bound { at_us: call.sent_us, number, call: Some(call.id) }
}

/// Whether it asked for the state of a single node, which may lag.
pub(crate) fn is_local(call: &Call) -> bool {
    call.invocation.is_local()
}

/// The problem of a call that was definitely refused.
pub(crate) fn problem(call: &Call) -> Option<ProblemKind> {
    match &call.conclusion {
        Conclusion::Refused { problem, .. } => Some(*problem),
        _ => None,
    }
}

/// Whether it certainly left the table as it was. The other refusals are about a lease that was granted or waited, perhaps
/// because of this very call, and is gone.
pub(crate) fn did_nothing(call: &Call) -> bool {
    use ProblemKind::{
        Forbidden, Held, InvalidRequest, LeaseMismatch, MethodNotAllowed, NotFound, Overloaded, TooLarge,
    };
    let harmless =
        [Forbidden, Held, InvalidRequest, LeaseMismatch, MethodNotAllowed, NotFound, Overloaded, TooLarge];
    matches!(call.conclusion, Conclusion::NotDone { .. })
        || problem(call).is_some_and(|problem| harmless.contains(&problem))
}

/// Whether another call had made the grant that this acquire or renewal was answered with.
pub(crate) fn found_standing(call: &Call) -> bool {
    match (&call.invocation, &call.conclusion) {
        (Invocation::Acquire { .. }, Conclusion::Granted { standing, .. }) => *standing,
        (Invocation::Renew { .. }, Conclusion::Granted { .. }) => true,
        _ => false,
    }
}

/// The fences that a call was answered with.
pub(crate) fn fences_of(call: &Call) -> Vec<(&Key, Token)> {
    match (&call.conclusion, &call.invocation) {
        (Conclusion::Granted { grant, .. }, _) => {
            grant.keys.iter().map(|held| (&held.key, held.fence)).collect()
        }
        (Conclusion::Key { view }, _) => vec![(&view.key, view.fence)],
        (Conclusion::Verdict { verdict }, Invocation::Validate { key, .. }) => vec![(key, verdict.fence)],
        _ => Vec::new(),
    }
}

/// An instant of a run, for people.
pub(crate) fn at(us: u64) -> String {
    format!("{}.{:03} s", us / 1_000_000, us / 1_000 % 1_000)
}
