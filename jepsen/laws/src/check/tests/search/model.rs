//! What a correct table does, for one key.

use ringfence_wire::LeaseId;

use super::super::scene::{change, granted, key, lease, view};
use super::*;

/// A table with one key that is held exclusively, by leases that live until they are released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Model {
    pub(super) revision: u64,
    pub(super) holder: Option<(LeaseId, u64)>,
    /// Released, and remembered.
    over: Vec<LeaseId>,
}

impl Model {
    fn fence(&self) -> u64 {
        self.holder.map_or(self.revision + 1, |(_, token)| token)
    }

    fn verdict(&self, token: Token) -> VerdictName {
        match self.holder {
            Some((_, holder)) if holder == token.0 => VerdictName::Live,
            _ if token.0 <= self.revision => VerdictName::Stale,
            _ => VerdictName::Unknown,
        }
    }

    /// The table after an acquire.
    fn acquired(mut self, lease: LeaseId) -> Self {
        if self.holder.is_none() && !self.over.contains(&lease) {
            self.revision += 1;
            self.holder = Some((lease, self.revision));
        }
        self
    }

    /// The table after a release.
    fn released(mut self, lease: LeaseId) -> Self {
        if self.holder.is_some_and(|(holder, _)| holder == lease) {
            self.revision += 1;
            self.holder = None;
        }
        if !self.over.contains(&lease) {
            self.over.push(lease);
            self.over.sort_unstable();
        }
        self
    }

    /// The table after a set or an end, whatever it came to.
    fn set_or_ended(mut self, invocation: &Invocation) -> Self {
        match invocation {
            Invocation::Set { keys, .. } if self.holder.is_none() => {
                self.revision += 1;
                self.holder = Some((keys[0].value, self.revision));
            }
            Invocation::EndIf { at } if self.holds(at.value).is_some() => {
                self.revision += 1;
                self.holder = None;
            }
            _ => {}
        }
        self
    }

    fn holds(&self, lease: LeaseId) -> Option<u64> {
        self.holder.filter(|(holder, _)| *holder == lease).map(|(_, token)| token)
    }

    /// Of every ten leases, the last five are set over RESP.
    fn seen(&self) -> Seen {
        match self.holder {
            None => Seen::Nothing,
            Some((holder, _)) if is_value(holder) => Seen::Value(holder),
            Some(_) => Seen::Other,
        }
    }

    /// The table after `call`, if it can have come to its answer here.
    pub(super) fn after(&self, call: &Call) -> Option<Self> {
        let unknown = matches!(call.conclusion, Conclusion::Unknown { .. });
        match (&call.invocation, &call.conclusion) {
            (Invocation::Acquire { lease, .. }, conclusion) => {
                let next = self.clone().acquired(*lease);
                let fits = match conclusion {
                    Conclusion::Granted { grant, .. } => next.holder == Some((*lease, grant.token.0)),
                    Conclusion::Refused { problem: ProblemKind::Held, .. } => {
                        next.holder.is_some_and(|(holder, _)| holder != *lease)
                    }
                    Conclusion::Refused { problem: ProblemKind::LeaseGone, .. } => next.over.contains(lease),
                    _ => unknown,
                };
                fits.then_some(next)
            }
            (Invocation::Release { lease }, _) => Some(self.clone().released(*lease)),
            (Invocation::Set { .. } | Invocation::EndIf { .. }, _) if unknown => {
                Some(self.clone().set_or_ended(&call.invocation))
            }
            (Invocation::Set { .. }, conclusion) => {
                let is_free = self.holder.is_none();
                let says_so = *conclusion == Conclusion::Done;
                (is_free == says_so).then(|| self.clone().set_or_ended(&call.invocation))
            }
            (Invocation::EndIf { at } | Invocation::ExpireIf { at, .. }, conclusion) if !unknown => {
                let says_so = *conclusion == Conclusion::Done;
                (self.holds(at.value).is_some() == says_so)
                    .then(|| self.clone().set_or_ended(&call.invocation))
            }
            (Invocation::Token { at }, Conclusion::Token { token }) => {
                (self.holds(at.value) == Some(token.0)).then(|| self.clone())
            }
            (Invocation::Token { at }, Conclusion::Refused { .. }) => {
                self.holds(at.value).is_none().then(|| self.clone())
            }
            (Invocation::Get { .. }, Conclusion::Value { seen }) => {
                (*seen == self.seen()).then(|| self.clone())
            }
            (Invocation::Key { .. }, Conclusion::Key { view }) => {
                let holders = view.holders.iter().map(|holder| holder.token.0);
                let fits = view.revision.0 == self.revision
                    && view.fence.0 == self.fence()
                    && holders.eq(self.holder.map(|(_, token)| token));
                fits.then(|| self.clone())
            }
            (Invocation::Validate { token, .. }, Conclusion::Verdict { verdict }) => {
                (verdict.verdict == self.verdict(*token) && verdict.fence.0 == self.fence())
                    .then(|| self.clone())
            }
            _ => unknown.then(|| self.clone()),
        }
    }
}

fn is_value(lease: LeaseId) -> bool {
    lease.to_u128() % 10 > 5
}

pub(super) fn valued(n: u64) -> ValuedKey {
    ValuedKey { key: key(), value: lease(n) }
}

pub(super) fn shown(model: &Model) -> ringfence_wire::KeyView {
    let holders: Vec<u64> = model.holder.iter().map(|(_, token)| *token).collect();
    view(model.revision, model.fence(), &holders, 0)
}

pub(super) fn does(model: &mut Model, invocation: &Invocation) -> Conclusion {
    match invocation {
        Invocation::Acquire { lease, .. } => {
            let stood = model.holder;
            *model = model.clone().acquired(*lease);
            let gone = model.over.contains(lease);
            match model.holder {
                Some((holder, token)) if holder == *lease => {
                    let Conclusion::Granted { mut grant, .. } = granted(1, token, token) else {
                        unreachable!()
                    };
                    grant.lease_id = holder;
                    Conclusion::Granted { grant, standing: stood == model.holder, mirrored: None }
                }
                _ if gone => Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None },
                _ => Conclusion::Refused { problem: ProblemKind::Held, reason: None },
            }
        }
        Invocation::Release { lease } => {
            *model = model.clone().released(*lease);
            Conclusion::Done
        }
        Invocation::Key { .. } => Conclusion::Key { view: shown(model) },
        Invocation::Set { .. } | Invocation::EndIf { .. } | Invocation::ExpireIf { .. } => {
            let can = match invocation {
                Invocation::EndIf { at } | Invocation::ExpireIf { at, .. } => model.holds(at.value).is_some(),
                _ => model.holder.is_none(),
            };
            *model = model.clone().set_or_ended(invocation);
            let problem = if matches!(invocation, Invocation::Set { .. }) {
                ProblemKind::Held
            } else {
                ProblemKind::LeaseGone
            };
            if can { Conclusion::Done } else { Conclusion::Refused { problem, reason: None } }
        }
        Invocation::Token { at } => match model.holds(at.value) {
            Some(token) => Conclusion::Token { token: Token(token) },
            None => gone(),
        },
        Invocation::Get { .. } => Conclusion::Value { seen: model.seen() },
        Invocation::Validate { token, .. } => {
            let verdict = model.verdict(*token);
            Conclusion::Verdict { verdict: TokenVerdict { verdict, fence: Token(model.fence()) } }
        }
        other => unreachable!("{other:?} is not planned"),
    }
}

fn gone() -> Conclusion {
    Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None }
}

pub(super) fn changed(before: &Model, after: &Model) -> Option<Change> {
    let (holder, name) = match (before.holder, after.holder) {
        (None, Some(holder)) => (holder, ChangeName::Granted),
        (Some(holder), None) => (holder, ChangeName::Ended),
        _ => return None,
    };
    let mut change = change(after.revision, 1, name, Some(holder.1), after.fence());
    // The cluster has an id of its own for what is set.
    let hidden = if is_value(holder.0) { 1_000 } else { 0 };
    change.lease_id = LeaseId::from_u128(holder.0.to_u128() + hidden).unwrap();
    change.reason = (name == ChangeName::Ended).then_some(EndReason::Released);
    Some(change)
}
