//! Histories for tests of the laws of leases, a line or so for each call.
//!
//! Times are milliseconds, a call's as `sent..ended`; leases are numbers. Claims are words: `a` wants the key a alone, `b:s`
//! shared, `c:2` shared with a limit of 2. A story keeps a table of its own as it logs changes, so that grants, fences and
//! views that it tells are right unless a test bends them.

use std::collections::BTreeMap;
use std::ops::Range;

use ringfence_wire::{
    EndReason, Grant, GrantState, GrantedKey, Key, KeyView, LeaseId, Mode, ProblemKind, Revision, Token,
    Verdict as TokenVerdict, VerdictName, WantedKey,
};

use super::scene;
use crate::check::plain::Plain;
use crate::check::{Checker, Facts, Found, Verdict};
use crate::history::{
    Call, Change, ChangeName, ChangedKey, Conclusion, HUNG_UP, History, Invocation, Seen, ValuedKey,
};

#[derive(Default)]
pub(crate) struct Story {
    pub(crate) history: History,
    revision: u64,
    leases: BTreeMap<u128, (String, Option<Token>)>,
    holders: BTreeMap<Key, BTreeMap<Token, Mode>>,
}

pub(crate) const TTL_MS: u32 = 10_000;

impl Story {
    /// Nothing has happened. The log begins at its beginning.
    pub(crate) fn new() -> Self {
        Self { revision: 100, ..Self::default() }
    }

    /// Lease 1 has been granted a.
    pub(crate) fn held() -> Self {
        let mut story = Self::new();
        story.acquires(1, "a", 0..10);
        story
    }

    /// A call and what came of it; its id.
    pub(crate) fn call(&mut self, when: Range<u64>, invocation: Invocation, conclusion: Conclusion) -> u64 {
        let id = self.history.calls.len() as u64;
        let call = scene::call(when.start * 1_000, when.end * 1_000, invocation, conclusion);
        self.history.calls.push(Call { id, ..call });
        id
    }

    /// A change, made in an entry of its own; its revision.
    pub(crate) fn log(
        &mut self,
        at_ms: u64,
        lease: u128,
        what: ChangeName,
        reason: Option<EndReason>,
    ) -> u64 {
        self.revision += 1;
        let (words, token) = self.leases.get_mut(&lease).expect("the story introduces its leases");
        if what == ChangeName::Granted {
            *token = Some(Token(self.revision));
        }
        let (claims, token) = (claims(words), *token);
        for claim in &claims {
            let holders = self.holders.entry(claim.key.clone()).or_default();
            match (what, token) {
                (ChangeName::Granted, Some(token)) => drop(holders.insert(token, claim.mode)),
                (ChangeName::Ended, Some(token)) => drop(holders.remove(&token)),
                _ => {}
            }
        }
        let keys = claims.into_iter();
        let keys =
            keys.map(|WantedKey { key, mode }| ChangedKey { fence: self.fence(&key), key, mode }).collect();
        let (revision, lease_id) = (Revision(self.revision), id(lease));
        let index = self.revision;
        self.history.end.changes.push(Change {
            index,
            at_ms,
            revision,
            lease_id,
            change: what,
            reason,
            token,
            keys,
        });
        self.revision
    }

    /// The last change came in the same entry as the one before.
    pub(crate) fn together(&mut self) {
        let [.., one, other] = &mut self.history.end.changes[..] else { panic!("there are no two changes") };
        other.index = one.index;
    }

    /// A lease is wanted.
    pub(crate) fn lease(&mut self, lease: u128, words: &str) {
        self.leases.insert(lease, (words.to_owned(), None));
    }

    /// A lease is asked for and granted at once; the call.
    pub(crate) fn acquires(&mut self, lease: u128, words: &str, when: Range<u64>) -> u64 {
        self.lease(lease, words);
        self.log(when.start, lease, ChangeName::Granted, None);
        let granted = self.granted(lease);
        self.call(when, acquire(lease, words), granted)
    }

    /// A lease is asked for, takes its place, and its client is told that it waits; the call.
    pub(crate) fn waits(&mut self, lease: u128, words: &str, when: Range<u64>) -> u64 {
        self.lease(lease, words);
        self.log(when.start, lease, ChangeName::Queued, None);
        let wait_ms = u32::try_from(when.end - when.start).unwrap();
        self.call(when, wait(lease, words, wait_ms), Conclusion::Waiting { ahead: 0 })
    }

    /// A lease is released and ends; the call.
    pub(crate) fn releases(&mut self, lease: u128, when: Range<u64>) -> u64 {
        self.log(when.start, lease, ChangeName::Ended, Some(EndReason::Released));
        self.call(when, release(lease), Conclusion::Done)
    }

    /// Keys are set and granted at once, in one entry; the call.
    pub(crate) fn sets(&mut self, leases: &[(u128, &str)], when: Range<u64>) -> u64 {
        self.grants_set(leases, when.start);
        self.call(when, set(leases), Conclusion::Done)
    }

    /// Keys that were set are granted, in one entry.
    pub(crate) fn grants_set(&mut self, leases: &[(u128, &str)], at_ms: u64) {
        for (place, (lease, of)) in leases.iter().enumerate() {
            self.lease(*lease, of);
            self.log(at_ms, *lease, ChangeName::Granted, None);
            if place > 0 {
                self.together();
            }
        }
    }

    /// Somebody asks for the token of what was set and is told it; the call.
    pub(crate) fn tells(&mut self, lease: u128, of: &str, when: Range<u64>) -> u64 {
        let token = self.token(lease);
        self.call(when, self::token(lease, of), Conclusion::Token { token })
    }

    /// What was set is deleted; the call.
    pub(crate) fn deletes(&mut self, lease: u128, of: &str, when: Range<u64>) -> u64 {
        self.log(when.start, lease, ChangeName::Ended, Some(EndReason::Released));
        self.call(when, end_if(lease, of), Conclusion::Done)
    }

    /// Its time ran out, in cluster time.
    pub(crate) fn expires(&mut self, lease: u128, at_ms: u64) -> u64 {
        self.log(at_ms, lease, ChangeName::Ended, Some(EndReason::Expired))
    }

    /// All is healed and read.
    pub(crate) fn end(&mut self, healed_ms: u64, read_ms: u64) -> &mut Self {
        let end_keys: Vec<Key> =
            self.leases.values().flat_map(|(words, _)| claims(words)).map(|c| c.key).collect();
        let mut views: Vec<KeyView> = end_keys.iter().map(|key| self.view(key.as_str())).collect();
        views.sort_by(|one, other| one.key.cmp(&other.key));
        views.dedup();
        let end = &mut self.history.end;
        (end.healed_us, end.read_us, end.keys) = (healed_ms * 1_000, read_ms * 1_000, views);
        self
    }

    /// The grant of a lease as the table has it, as the answer to an acquire.
    pub(crate) fn granted(&self, lease: u128) -> Conclusion {
        Conclusion::granted(self.grant(lease), false)
    }

    pub(crate) fn grant(&self, lease: u128) -> Grant {
        let (words, token) = &self.leases[&lease];
        let keys = claims(words).into_iter().map(|WantedKey { key, mode }| {
            let fence = self.fence(&key);
            GrantedKey { key, mode: mode.name(), limit: mode.limit(), fence }
        });
        Grant {
            lease_id: id(lease),
            state: GrantState::Granted,
            token: token.expect("it was granted"),
            holder: None,
            ttl_ms: TTL_MS,
            expires_in_ms: Some(TTL_MS.into()),
            keys: keys.collect(),
        }
    }

    pub(crate) fn token(&self, lease: u128) -> Token {
        self.leases[&lease].1.expect("it was granted")
    }

    /// The view of a key as the table has it.
    pub(crate) fn view(&self, of: &str) -> KeyView {
        let key = key(of);
        let holders = self.holders.get(&key).into_iter().flatten().map(|(token, mode)| (*token, *mode));
        let (revision, fence) = (Revision(self.revision), self.fence(&key));
        scene::seen(key, revision, fence, holders)
    }

    /// Somebody looks at a key and sees what the table has; the call.
    pub(crate) fn looks(&mut self, of: &str, when: Range<u64>) -> u64 {
        let view = self.view(of);
        self.call(when, look(of), Conclusion::Key { view })
    }

    fn fence(&self, key: &Key) -> Token {
        let oldest = self.holders.get(key).and_then(|holders| holders.keys().next().copied());
        oldest.unwrap_or(Token(self.revision + 1))
    }

    /// The law holds, and was exercised.
    pub(crate) fn keeps(&self, law: &Checker) {
        let found = self.judge(law);
        assert_eq!(found.verdict(), Verdict::Valid, "{found:#?}");
    }

    /// The law was not exercised.
    pub(crate) fn cannot_tell(&self, law: &Checker) {
        let found = self.judge(law);
        assert_eq!(found.verdict(), Verdict::Unknown, "{found:#?}");
    }

    /// The law is broken, as a breach with these words says.
    pub(crate) fn breaks(&self, law: &Checker, words: &str) {
        let found = self.judge(law);
        assert!(
            found.breaches.iter().any(|breach| breach.what.contains(words)),
            "no {words:?} in {found:#?}"
        );
    }

    pub(crate) fn judge(&self, law: &Checker) -> Found {
        (law.check)(&Facts::of(&Plain::of(&self.history)))
    }
}

pub(crate) fn id(lease: u128) -> LeaseId {
    LeaseId::from_u128(lease).unwrap()
}

/// A key, and the value that a client stores there. The lease that the cluster makes of it has the id of this number.
pub(crate) fn valued(lease: u128, of: &str) -> ValuedKey {
    ValuedKey { key: key(of), value: id(1_000_000 + lease) }
}

/// Leases, each with its key.
pub(crate) fn set(leases: &[(u128, &str)]) -> Invocation {
    let keys = leases.iter().map(|(lease, of)| valued(*lease, of)).collect();
    Invocation::Set { keys, ttl_ms: TTL_MS, only_if: None }
}

pub(crate) fn end_if(lease: u128, of: &str) -> Invocation {
    Invocation::EndIf { at: valued(lease, of) }
}

pub(crate) fn expire_if(lease: u128, of: &str, ttl_ms: u32) -> Invocation {
    Invocation::ExpireIf { at: valued(lease, of), ttl_ms }
}

pub(crate) fn token(lease: u128, of: &str) -> Invocation {
    Invocation::Token { at: valued(lease, of) }
}

pub(crate) fn get(of: &str) -> Invocation {
    Invocation::Get { key: key(of) }
}

pub(crate) fn seen(seen: Seen) -> Conclusion {
    Conclusion::Value { seen }
}

pub(crate) fn other() -> Conclusion {
    Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None }
}

pub(crate) fn hung_up() -> Conclusion {
    Conclusion::Unknown { why: format!("{HUNG_UP} after 1 s") }
}

pub(crate) fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn claims(words: &str) -> Vec<WantedKey> {
    let claim = |word: &str| match word.split_once(':') {
        None => WantedKey { key: key(word), mode: Mode::Exclusive },
        Some((word, limit)) => WantedKey { key: key(word), mode: Mode::Shared { limit: limit.parse().ok() } },
    };
    words.split(' ').map(claim).collect()
}

pub(crate) fn acquire(lease: u128, words: &str) -> Invocation {
    wait(lease, words, 0)
}

pub(crate) fn wait(lease: u128, words: &str, wait_ms: u32) -> Invocation {
    Invocation::Acquire { lease: id(lease), keys: claims(words), ttl_ms: TTL_MS, wait_ms, keep_place: false }
}

pub(crate) fn renew(lease: u128) -> Invocation {
    Invocation::Renew { lease: id(lease), ttl_ms: None }
}

pub(crate) fn release(lease: u128) -> Invocation {
    Invocation::Release { lease: id(lease) }
}

pub(crate) fn look(of: &str) -> Invocation {
    Invocation::Key { key: key(of), local: false }
}

pub(crate) fn validate(of: &str, token: Token) -> Invocation {
    Invocation::Validate { key: key(of), token, local: false }
}

pub(crate) fn verdict(verdict: VerdictName, fence: u64) -> Conclusion {
    Conclusion::Verdict { verdict: TokenVerdict { verdict, fence: Token(fence) } }
}

pub(crate) fn refused(problem: ProblemKind) -> Conclusion {
    Conclusion::Refused { problem, reason: None }
}

pub(crate) fn gone(reason: EndReason) -> Conclusion {
    Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: Some(reason) }
}

pub(crate) fn not_done() -> Conclusion {
    Conclusion::NotDone { why: "503".to_owned() }
}

pub(crate) fn unknown() -> Conclusion {
    Conclusion::Unknown { why: "timeout".to_owned() }
}
