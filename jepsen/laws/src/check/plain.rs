//! Translates a history into the words of leases. A key that is set over RESP becomes a lease on that key, with the value as its id.
//!
//! The cluster gives each such lease an id that no client sees. But a client that has set a key can ask for the token. So a set that
//! was answered OK becomes an acquire that was granted this token, and the lease with this token in the log gets the value as its id.
//! Then all laws apply.
//!
//! If no client got the token, the set becomes an acquire without an answer, and the lease in the log keeps its id. Only
//! [`transactions`](super::transactions) judges such leases.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{
    Grant, GrantState, GrantedKey, Key, LeaseId, Mode, ModeName, ProblemKind, Token, WantedKey,
};

use crate::history::{Call, Change, Conclusion, History, Invocation, Seen, ValuedKey};

/// A history without sets. Only [`Seen`] still has values.
pub struct Plain<'h> {
    pub(super) history: Cow<'h, History>,
    /// The sets, as they were asked for.
    pub(super) sets: Vec<&'h Call>,
}

impl<'h> Plain<'h> {
    /// The same history in the words of leases.
    pub fn of(history: &'h History) -> Self {
        let sets = history.calls.iter().filter(|call| matches!(call.invocation, Invocation::Set { .. }));
        let sets = sets.collect();
        if !history.calls.iter().any(|call| call.invocation.is_resp()) {
            return Self { history: Cow::Borrowed(history), sets };
        }
        let values = Values::of(history);
        let mut plain = history.clone();
        plain.calls = history.calls.iter().flat_map(|call| values.plain(call)).collect();
        values.name(&mut plain.end.changes, &plain.calls);
        Self { history: Cow::Owned(plain), sets }
    }
}

/// What is known of each value.
#[derive(Default)]
struct Values<'h> {
    /// The keys that were to be set, and whether any such call may have been done.
    keys: BTreeMap<LeaseId, (&'h Key, bool)>,
    /// The tokens that were told first.
    tokens: BTreeMap<LeaseId, Token>,
    /// The calls that may have shortened its time, and to how many milliseconds from then.
    shortened: BTreeMap<LeaseId, Vec<(&'h Call, u32)>>,
}

impl<'h> Values<'h> {
    fn of(history: &'h History) -> Self {
        let mut values = Self::default();
        for call in &history.calls {
            match (&call.invocation, &call.conclusion) {
                (Invocation::Set { keys, .. }, _) => {
                    for ValuedKey { key, value } in keys {
                        values.keys.entry(*value).or_insert((key, false)).1 |= call.may_be_done();
                    }
                }
                (Invocation::Token { at }, Conclusion::Token { token }) => {
                    values.tokens.entry(at.value).or_insert(*token);
                }
                (Invocation::ExpireIf { at, ttl_ms }, _) if call.may_be_done() => {
                    values.shortened.entry(at.value).or_default().push((call, *ttl_ms));
                }
                _ => {}
            }
        }
        values
    }

    fn plain(&self, call: &Call) -> Vec<Call> {
        let told = |invocation, conclusion| vec![Call { invocation, conclusion, ..call.clone() }];
        let same = || call.conclusion.clone();
        match &call.invocation {
            Invocation::Set { keys, ttl_ms, only_if } => self.set(call, keys, *ttl_ms, only_if.as_ref()),
            Invocation::EndIf { at } => {
                // What was ended was there.
                let held = match call.conclusion {
                    Conclusion::Done => self.grant(at.value),
                    _ => None,
                };
                let looked = held.map(|grant| told(look(at.value), Conclusion::granted(grant, true)));
                let ended = told(Invocation::Release { lease: at.value }, same());
                looked.into_iter().flatten().chain(ended).collect()
            }
            Invocation::ExpireIf { at, ttl_ms } => {
                let conclusion = match &call.conclusion {
                    Conclusion::Done => self.granted(call, at.value, *ttl_ms, true),
                    other => other.clone(),
                };
                told(Invocation::Renew { lease: at.value, ttl_ms: Some(*ttl_ms) }, conclusion)
            }
            Invocation::Token { at } => {
                let conclusion = match (&call.conclusion, self.keys.get(&at.value)) {
                    (Conclusion::Token { token }, Some((key, _))) => {
                        Conclusion::granted(grant(at.value, key, *token, 1, None), true)
                    }
                    (Conclusion::Token { .. }, None) => malformed("the token of a value that nobody has set"),
                    (other, _) => other.clone(),
                };
                // A client that gets the token keeps the lease, as with a renewal: it is not taken back any more.
                let kept =
                    Some(Invocation::Renew { lease: at.value, ttl_ms: None }).filter(|_| call.may_be_done());
                let kept = kept.map(|kept| told(kept, conclusion.clone())).into_iter().flatten();
                told(look(at.value), conclusion.clone()).into_iter().chain(kept).collect()
            }
            Invocation::Get { key } => match call.conclusion {
                Conclusion::Value { seen: Seen::Value(value) } => match self.keys.get(&value) {
                    Some((set, true)) if *set == key => self.grant(value).map_or_else(
                        || vec![call.clone()],
                        |grant| told(look(value), Conclusion::granted(grant, true)),
                    ),
                    _ => told(look(value), malformed("a value that nobody can have set there")),
                },
                _ => vec![call.clone()],
            },
            _ => vec![call.clone()],
        }
    }

    /// The grant of what was set, as a look at it shows it, if its token was told.
    fn grant(&self, value: LeaseId) -> Option<Grant> {
        let (key, _) = self.keys.get(&value)?;
        self.tokens.get(&value).map(|token| grant(value, key, *token, 1, None))
    }

    fn set(&self, call: &Call, keys: &[ValuedKey], ttl_ms: u32, only_if: Option<&ValuedKey>) -> Vec<Call> {
        let acquire =
            |lease, keys| Invocation::Acquire { lease, keys, ttl_ms, wait_ms: 0, keep_place: false };
        let exclusive = |at: &ValuedKey| WantedKey { key: at.key.clone(), mode: Mode::Exclusive };
        let (refused, not_done) = match &call.conclusion {
            // Any of the keys was taken.
            Conclusion::Refused { problem: ProblemKind::Held, .. } => {
                (keys.first().map(|at| acquire(at.value, keys.iter().map(exclusive).collect())), true)
            }
            Conclusion::Refused { problem: ProblemKind::LeaseGone, .. } => {
                (only_if.map(|at| look(at.value)), true)
            }
            _ => (None, false),
        };
        let each = keys.iter().map(|at| {
            let conclusion = match &call.conclusion {
                Conclusion::Done => self.granted(call, at.value, ttl_ms, false),
                _ if not_done => Conclusion::NotDone { why: "the script set nothing".to_owned() },
                other => other.clone(),
            };
            (acquire(at.value, vec![exclusive(at)]), conclusion)
        });
        let refused = refused.map(|invocation| (invocation, call.conclusion.clone()));
        let all = refused.into_iter().chain(each);
        all.map(|(invocation, conclusion)| Call { invocation, conclusion, ..call.clone() }).collect()
    }

    /// The grant of a lease that a call was told it has for `ttl_ms` from now, with how long its client can count on it.
    fn granted(&self, call: &Call, value: LeaseId, ttl_ms: u32, standing: bool) -> Conclusion {
        let (Some((key, _)), Some(token)) = (self.keys.get(&value), self.tokens.get(&value)) else {
            return Conclusion::Unknown { why: "it was done, and nobody was told the token".to_owned() };
        };
        let shortened = self.shortened.get(&value).map_or(&[][..], Vec::as_slice).iter();
        let is_before = |other: &Call| other.is_definite() && other.ended_us < call.sent_us;
        let shortened = shortened.filter(|(other, _)| other.id != call.id && !is_before(other));
        let until_us = |sent_us: u64, ttl_ms: u32| sent_us.saturating_add(u64::from(ttl_ms) * 1_000);
        let untils = shortened.map(|(other, ttl_ms)| until_us(other.sent_us, *ttl_ms));
        let until = untils.chain([until_us(call.sent_us, ttl_ms)]).min().unwrap_or(0);
        let in_ms = until.saturating_sub(call.sent_us) / 1_000;
        Conclusion::granted(grant(value, key, *token, ttl_ms, Some(in_ms)), standing)
    }

    /// Names the leases whose tokens were told by their values.
    fn name(&self, changes: &mut [Change], calls: &[Call]) {
        let asked_for: BTreeSet<LeaseId> = calls.iter().filter_map(|call| call.invocation.lease()).collect();
        let by_token: BTreeMap<Token, LeaseId> =
            self.tokens.iter().map(|(value, token)| (*token, *value)).collect();
        let value_of = |change: &Change| {
            let value = by_token.get(&change.token?)?;
            let (key, _) = self.keys.get(value)?;
            let is_of_it = change.keys.iter().map(|changed| &changed.key).eq([*key]);
            (is_of_it && !asked_for.contains(&change.lease_id)).then_some((change.lease_id, *value))
        };
        let values: BTreeMap<LeaseId, LeaseId> = changes.iter().filter_map(value_of).collect();
        for change in changes {
            change.lease_id = values.get(&change.lease_id).copied().unwrap_or(change.lease_id);
        }
    }
}

fn look(lease: LeaseId) -> Invocation {
    Invocation::Lease { lease, local: false }
}

fn malformed(why: &str) -> Conclusion {
    Conclusion::Malformed { why: why.to_owned() }
}

/// A lease that holds its key alone: so its token is the fence.
pub(crate) fn grant(
    value: LeaseId,
    key: &Key,
    token: Token,
    ttl_ms: u32,
    expires_in_ms: Option<u64>,
) -> Grant {
    let key = GrantedKey { key: key.clone(), mode: ModeName::Exclusive, limit: None, fence: token };
    Grant {
        lease_id: value,
        state: GrantState::Granted,
        token,
        holder: None,
        ttl_ms,
        expires_in_ms,
        keys: vec![key],
    }
}
