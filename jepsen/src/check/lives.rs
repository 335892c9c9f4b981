//! What a history tells of each lease, gathered once for the laws of leases.
//!
//! Two measures of time meet here. Calls have microseconds of the harness's clock: one precedes another only if it ended
//! before the other was sent. Changes, tokens, fences and views have revisions of the table, which only rise. [`Peaks`] joins
//! them: a number that somebody was told before an instant bounds from below what the table says after it.

use std::collections::BTreeMap;

use ringfence_wire::{Grant, Key, KeyView, LeaseId, Mode, ModeName, ProblemKind, Token};

use crate::history::{Asked, Call, Came, Change, ChangeName, History};

/// How long the id of an ended lease is remembered at least, in milliseconds of cluster time, which never runs faster
/// than real time: for so long no acquire grants it again.
pub(super) const REMEMBERED_MS: u64 = 60_000;

/// All leases of a history.
pub(super) struct Lives<'a> {
    pub(super) by_id: BTreeMap<LeaseId, Life<'a>>,
    /// Whose a token is; of two leases with one token, the first that was seen.
    pub(super) by_token: BTreeMap<Token, LeaseId>,
    /// Revokes, by the token they name.
    pub(super) revokes: BTreeMap<Token, Vec<&'a Call>>,
    /// The changes, by revision.
    pub(super) log: BTreeMap<u64, &'a Change>,
    /// Whether the logs that were read reach as far as the final reads.
    pub(super) log_is_whole: bool,
}

/// One lease.
#[derive(Default)]
pub(super) struct Life<'a> {
    /// All calls that name it, in the order they were sent.
    pub(super) calls: Vec<&'a Call>,
    /// Those that were answered with its grant.
    pub(super) grants: Vec<(&'a Call, &'a Grant)>,
    /// Its changes, in their order.
    pub(super) changes: Vec<&'a Change>,
}

impl<'a> Lives<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let mut by_id: BTreeMap<LeaseId, Life<'a>> = BTreeMap::new();
        let mut revokes: BTreeMap<Token, Vec<&'a Call>> = BTreeMap::new();
        for call in &history.calls {
            if let Some(lease) = lease_of(call) {
                let life = by_id.entry(lease).or_default();
                life.calls.push(call);
                if let Came::Granted { grant, .. } = &call.came {
                    life.grants.push((call, grant));
                }
            } else if let Asked::Revoke { token, .. } = &call.asked {
                revokes.entry(*token).or_default().push(call);
            }
        }
        for change in &history.end.changes {
            by_id.entry(change.lease_id).or_default().changes.push(change);
        }
        let mut by_token = BTreeMap::new();
        for (&lease, life) in &by_id {
            for token in life.tokens() {
                by_token.entry(token).or_insert(lease);
            }
        }
        let log: BTreeMap<u64, &Change> =
            history.end.changes.iter().map(|change| (change.revision.0, change)).collect();
        let end = history.end.keys.iter().map(|view| view.revision.0).max();
        let reached = log.last_key_value().map(|(&revision, _)| revision);
        let log_is_whole = end.is_some_and(|end| reached.is_some_and(|reached| reached >= end));
        Self { by_id, by_token, revokes, log, log_is_whole }
    }

    /// The lease with this token.
    pub(super) fn with_token(&self, token: Token) -> Option<&Life<'a>> {
        self.by_id.get(self.by_token.get(&token)?)
    }
}

impl<'a> Life<'a> {
    /// All tokens that it was seen with; more than one only where its id was forgotten between, or wrongly.
    pub(super) fn tokens(&self) -> Vec<Token> {
        let answered = self.grants.iter().map(|(_, grant)| grant.token);
        let agreed = self.changes.iter().filter_map(|change| change.token);
        let mut tokens: Vec<Token> = answered.chain(agreed).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// Its acquires.
    pub(super) fn acquires(&self) -> impl Iterator<Item = Acquire<'a>> {
        self.calls.iter().filter_map(|&call| match &call.asked {
            Asked::Acquire { ttl_ms, wait_ms, keep_place, .. } => Some(Acquire {
                call,
                ttl_ms: u64::from(*ttl_ms),
                wait_ms: u64::from(*wait_ms),
                keep_place: *keep_place,
            }),
            _ => None,
        })
    }

    /// When somebody first asked for it: it was granted after that.
    pub(super) fn first_sent_us(&self) -> Option<u64> {
        self.acquires().map(|acquire| acquire.call.sent_us).min()
    }

    /// The change that granted it this token.
    pub(super) fn granted(&self, token: Token) -> Option<&'a Change> {
        self.changes.iter().copied().find(|c| c.change == ChangeName::Granted && c.token == Some(token))
    }

    /// The change that ended it as the holder of this token.
    pub(super) fn ended(&self, token: Token) -> Option<&'a Change> {
        self.changes.iter().copied().find(|c| c.change == ChangeName::Ended && c.token == Some(token))
    }

    /// How it holds its keys with this token, as far as an answer or the log tells.
    pub(super) fn holds(&self, token: Token) -> Vec<(&'a Key, Mode)> {
        if let Some((_, grant)) = self.grants.iter().find(|(_, grant)| grant.token == token) {
            return grant.keys.iter().map(|held| (&held.key, mode(held.mode, held.limit))).collect();
        }
        let change = self.changes.iter().find(|change| change.token == Some(token));
        change.map_or_else(Vec::new, |change| change.keys.iter().map(|k| (&k.key, k.mode)).collect())
    }
}

/// An acquire.
pub(super) struct Acquire<'a> {
    pub(super) call: &'a Call,
    pub(super) ttl_ms: u64,
    pub(super) wait_ms: u64,
    pub(super) keep_place: bool,
}

impl Acquire<'_> {
    /// How long it may keep a place in the queue, from when it took effect.
    pub(super) fn place_ms(&self) -> u64 {
        self.wait_ms + if self.keep_place { 5_000 } else { 0 }
    }
}

/// The lease that a call names by its id.
pub(super) fn lease_of(call: &Call) -> Option<LeaseId> {
    match &call.asked {
        Asked::Acquire { lease, .. }
        | Asked::Renew { lease, .. }
        | Asked::Release { lease }
        | Asked::Lease { lease, .. } => Some(*lease),
        _ => None,
    }
}

/// Whether it asked for what a single node knows, which may lag.
pub(super) fn is_local(call: &Call) -> bool {
    matches!(
        call.asked,
        Asked::Lease { local: true, .. }
            | Asked::Key { local: true, .. }
            | Asked::Validate { local: true, .. }
    )
}

/// The problem of a call that was definitely refused.
pub(super) fn problem(call: &Call) -> Option<ProblemKind> {
    match &call.came {
        Came::Refused { problem, .. } => Some(*problem),
        _ => None,
    }
}

/// Whether it surely left the table as it was. Other refusals tell of a lease that was granted or waited, perhaps by this
/// very call, and is gone.
pub(super) fn did_nothing(call: &Call) -> bool {
    use ProblemKind::{
        Forbidden, Held, InvalidRequest, LeaseMismatch, MethodNotAllowed, NotFound, Overloaded, TooLarge,
    };
    matches!(call.came, Came::NotDone { .. })
        || problem(call).is_some_and(|problem| {
            matches!(
                problem,
                Forbidden
                    | Held
                    | InvalidRequest
                    | LeaseMismatch
                    | MethodNotAllowed
                    | NotFound
                    | Overloaded
                    | TooLarge
            )
        })
}

/// Whether it found the lease standing, or waiting: another call had made it. A renewal and a look always do; an acquire
/// that is told to wait may have taken the place itself.
pub(super) fn found_standing(call: &Call) -> bool {
    match (&call.asked, &call.came) {
        (Asked::Acquire { .. }, Came::Granted { standing, .. }) => *standing,
        (Asked::Renew { .. }, Came::Granted { .. }) => true,
        (Asked::Lease { .. }, Came::Granted { .. } | Came::Waiting { .. }) => true,
        _ => false,
    }
}

/// The fences that a call was answered with.
pub(super) fn fences(call: &Call) -> Vec<(&Key, Token)> {
    match (&call.came, &call.asked) {
        (Came::Granted { grant, .. }, _) => grant.keys.iter().map(|held| (&held.key, held.fence)).collect(),
        (Came::Key { view }, _) => vec![(&view.key, view.fence)],
        (Came::Verdict { verdict }, Asked::Validate { key, .. }) => vec![(key, verdict.fence)],
        _ => Vec::new(),
    }
}

/// All views of keys, and the calls that brought them; the final reads have none.
pub(super) fn views(history: &History) -> impl Iterator<Item = (Option<&Call>, &KeyView)> {
    let calls = history.calls.iter().filter_map(|call| match &call.came {
        Came::Key { view } => Some((Some(call), view)),
        _ => None,
    });
    calls.chain(history.end.keys.iter().map(|view| (None, view)))
}

/// A mode from its two words.
pub(super) fn mode(name: ModeName, limit: Option<std::num::NonZeroU32>) -> Mode {
    match name {
        ModeName::Exclusive => Mode::Exclusive,
        ModeName::Shared => Mode::Shared { limit },
    }
}

/// An instant of a run, for people.
pub(super) fn at(us: u64) -> String {
    format!("{}.{:03} s", us / 1_000_000, us / 1_000 % 1_000)
}

/// A number that can only rise, as it was told over time: the highest told before any instant, and by which call.
pub(super) struct Peaks(Vec<(u64, u64, u64)>);

impl Peaks {
    /// From (when it was known, the number, the call).
    pub(super) fn new(mut told: Vec<(u64, u64, u64)>) -> Self {
        told.sort_unstable();
        let mut highest = (0, 0);
        for (_, number, call) in &mut told {
            if *number > highest.0 {
                highest = (*number, *call);
            }
            (*number, *call) = highest;
        }
        Self(told)
    }

    /// The highest number told before `us`, and the call.
    pub(super) fn before(&self, us: u64) -> Option<(u64, u64)> {
        let earlier = self.0.partition_point(|&(known_us, ..)| known_us < us);
        self.0[..earlier].last().map(|&(_, number, call)| (number, call))
    }
}

/// What the table's revision was at least, over time. A fence is at most one above it.
pub(super) fn revisions(history: &History) -> Peaks {
    let told = history.calls.iter().filter_map(|call| {
        let fence = fences(call).into_iter().map(|(_, fence)| fence.0.saturating_sub(1)).max();
        let number = match &call.came {
            Came::Granted { grant, .. } => Some(grant.token.0),
            Came::Key { view } => Some(view.revision.0),
            _ => None,
        };
        Some((call.ended_us, number.max(fence)?, call.id))
    });
    Peaks::new(told.collect())
}

/// The highest fence of each key that anybody was told, over time.
pub(super) fn fence_peaks(history: &History) -> BTreeMap<&Key, Peaks> {
    let mut told: BTreeMap<&Key, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for call in &history.calls {
        for (key, fence) in fences(call) {
            told.entry(key).or_default().push((call.ended_us, fence.0, call.id));
        }
    }
    told.into_iter().map(|(key, told)| (key, Peaks::new(told))).collect()
}
