//! Watches a table from outside, command by command, and checks the promises that clients rely on. It learns of leases
//! only from events.

use std::collections::BTreeMap;

use ringfence_wire::{EndReason, Key, LeaseId, Mode, Revision, Token, Ttl};

use super::make::key;
use super::model::compatible;
use super::script::KEYS;
use crate::limits::Limits;
use crate::table::LeaseTable;
use crate::{
    Acquire, Attachment, Change, Command, Conditional, Event, KeyChange, LeaseState, Outcome, Refusal,
};

pub(super) struct Witness {
    limits: Limits,
    revision: u64,
    newest_token: u64,
    fences: BTreeMap<Key, Token>,
    /// Live leases and waiters by id.
    seen: BTreeMap<LeaseId, Seen>,
    /// When each id ended.
    ended_ms: BTreeMap<LeaseId, u64>,
    pub(super) counts: BTreeMap<&'static str, usize>,
}

struct Seen {
    live: bool,
    number: u64,
    claims: Vec<(Key, Mode)>,
    ttl_ms: u64,
    deadline_ms: u64,
    /// The acquire requests that may still be answered, or keep the place, and until when.
    requests: BTreeMap<Attachment, u64>,
    /// Another request may have learned of the grant: a second acquire, or a renewal.
    is_known: bool,
}

/// What caused the events.
pub(super) enum Cause<'a> {
    /// The time advanced.
    Time,
    Command(&'a Command, &'a Outcome),
}

impl Witness {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            revision: 0,
            newest_token: 0,
            fences: BTreeMap::new(),
            seen: BTreeMap::new(),
            ended_ms: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    pub(super) fn saw(&mut self, cause: &Cause<'_>, events: &[Event], table: &LeaseTable) {
        let now_ms = table.at_ms();
        if let Cause::Command(Command::Start { .. }, _) = cause
            && self.revision == 0
        {
            self.revision = table.revision().0;
        }
        for event in events {
            assert_eq!(event.revision, Revision(self.revision + 1), "each change takes the next revision");
            self.revision += 1;
            match event.change {
                Change::Granted => self.saw_grant(cause, event, now_ms),
                Change::Queued => self.saw_queued(cause, event, now_ms),
                Change::Ended(reason) => self.saw_end(cause, event, reason, now_ms),
                Change::Left(reason) => self.saw_leave(cause, event, reason, now_ms),
            }
            for (key, _, fence) in &event.keys {
                self.saw_fence(key, *fence);
            }
        }
        assert_eq!(table.revision(), Revision(self.revision), "nothing else takes a revision");
        for key in KEYS.map(key) {
            self.saw_fence(&key, table.fence(&key));
            for token in (0..=self.revision).rev().take(20).map(Token) {
                assert!(
                    !table.is_live(&key, token) || token >= table.fence(&key),
                    "a token below the fence is dead"
                );
            }
        }
        if let Cause::Command(command, outcome) = cause {
            self.saw_outcome(command, outcome, now_ms);
        }
        self.saw_deadlines(table);
    }

    /// The next entry has this floor. The revision never falls, and is raised no further.
    pub(super) fn saw_floor(&mut self, floor: u64, table: &LeaseTable) {
        let revision = table.revision().0;
        assert!(revision >= self.revision, "the revision fell");
        assert!(revision == self.revision || revision == floor, "the revision was raised beyond the floor");
        if revision > self.revision {
            self.count("raised to a floor");
        }
        self.revision = revision;
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn saw_fence(&mut self, key: &Key, fence: Token) {
        let before = self.fences.insert(key.clone(), fence);
        assert!(
            before.is_none_or(|before| before <= fence),
            "the fence of {key} fell from {before:?} to {fence}"
        );
    }

    fn saw_grant(&mut self, cause: &Cause<'_>, event: &Event, now_ms: u64) {
        let token = event.token.expect("a grant has a token").0;
        assert!(token == event.revision.0 && token > self.newest_token, "tokens rise");
        self.newest_token = token;
        if let Some(ended_ms) = self.ended_ms.remove(&event.lease_id) {
            let may_be_dropped = self.limits.remembered < 2_000_000;
            assert!(
                may_be_dropped || now_ms > ended_ms + 60_000,
                "{} was granted after its end",
                event.lease_id
            );
            self.count("granted after it was forgotten");
        }
        let waited = self.seen.remove(&event.lease_id);
        let claims: Vec<_> = event.keys.iter().map(|(key, mode, _)| (key.clone(), *mode)).collect();
        let (ttl_ms, place, mut requests) = match (&waited, cause) {
            (Some(waiter), _) => {
                assert!(!waiter.live && now_ms <= waiter.deadline_ms, "a wait that is over ends in no grant");
                (waiter.ttl_ms, waiter.number, waiter.requests.clone())
            }
            (None, Cause::Command(Command::Acquire(acquire), _)) if acquire.lease_id == event.lease_id => {
                (acquire.ttl.ms().into(), u64::MAX, BTreeMap::from([(acquire.attachment, now_ms)]))
            }
            (None, Cause::Command(Command::Conditional(conditional), _)) => {
                let (ttl, attachment) = new_lease(conditional, event.lease_id);
                self.count("granted by a conditional");
                (ttl.ms().into(), u64::MAX, BTreeMap::from([(attachment, now_ms)]))
            }
            _ => panic!("{} was granted without a request", event.lease_id),
        };
        self.count(if waited.is_some() { "granted from the queue" } else { "granted at once" });
        for (key, mode) in &claims {
            let others = || {
                let others = self.seen.values();
                others.filter_map(|o| o.claims.iter().find(|c| c.0 == *key).map(|c| (o.live, o.number, c.1)))
            };
            let holders: Vec<Mode> = others().filter(|o| o.0).map(|o| o.2).chain([*mode]).collect();
            assert!(compatible(&holders), "the holders of {key} are not compatible: {holders:?}");
            let before: Vec<Mode> =
                others().filter(|o| o.0 || o.1 < place).map(|o| o.2).chain([*mode]).collect();
            assert!(compatible(&before), "{} overtook an earlier waiter on {key}", event.lease_id);
            let earlier = others().filter(|other| !other.0 && other.1 < place).count();
            if earlier > 0 {
                self.count("granted before an earlier waiter that it does not disturb");
            }
            if holders.len() > 1 {
                self.count("granted beside other holders");
            }
        }
        let deadline_ms = now_ms + ttl_ms;
        // The HTTP server may still answer these.
        requests.retain(|_, until_ms| *until_ms + 20_000 >= now_ms);
        let is_known = requests.len() > 1;
        let seen = Seen { live: true, number: token, claims, ttl_ms, deadline_ms, requests, is_known };
        self.seen.insert(event.lease_id, seen);
    }

    fn saw_queued(&mut self, cause: &Cause<'_>, event: &Event, now_ms: u64) {
        let Cause::Command(Command::Acquire(acquire), _) = cause else { panic!("queued without a request") };
        let seen = Seen {
            live: false,
            number: event.revision.0,
            claims: acquire.claims.clone(),
            ttl_ms: acquire.ttl.ms().into(),
            deadline_ms: wait_ends_ms(acquire, now_ms),
            requests: BTreeMap::from([(acquire.attachment, wait_ends_ms(acquire, now_ms))]),
            is_known: false,
        };
        assert!(self.seen.insert(event.lease_id, seen).is_none(), "one place for each lease");
        self.count("queued");
    }

    fn saw_end(&mut self, cause: &Cause<'_>, event: &Event, reason: EndReason, now_ms: u64) {
        let seen = self.seen.remove(&event.lease_id).expect("it was live");
        self.ended_ms.insert(event.lease_id, now_ms);
        assert!(
            seen.live && event.token == Some(Token(seen.number)),
            "only a live lease ends, with its token"
        );
        match (reason, cause) {
            (EndReason::Expired, _) => {
                assert!(now_ms > seen.deadline_ms, "{} expired too early", event.lease_id);
                self.count("expired");
            }
            (EndReason::Released, Cause::Command(Command::Release { lease_id }, _)) => {
                assert_eq!(*lease_id, event.lease_id);
                self.count("released");
            }
            (EndReason::Released, Cause::Command(Command::Conditional(conditional), _)) => {
                let is_it = |change: &KeyChange| {
                    matches!(change, KeyChange::End { key, token }
                        if token.0 == seen.number && *key == seen.claims[0].0)
                };
                assert!(seen.claims.len() == 1 && conditional.changes().iter().any(is_it));
                self.count("released by a conditional");
            }
            (EndReason::Revoked, Cause::Command(Command::Revoke { key, token }, _)) => {
                assert!(token.0 == seen.number && seen.claims.iter().any(|claim| claim.0 == *key));
                self.count("revoked");
            }
            (EndReason::Abandoned, Cause::Command(command, _)) => {
                let attachment = closed(command, event.lease_id);
                assert!(
                    !seen.is_known && seen.requests.keys().eq([attachment]),
                    "another request may know of it"
                );
                self.count("abandoned");
            }
            _ => panic!("{} ended for no reason", event.lease_id),
        }
    }

    fn saw_leave(&mut self, cause: &Cause<'_>, event: &Event, reason: Option<EndReason>, now_ms: u64) {
        let seen = self.seen.remove(&event.lease_id).expect("it waited");
        self.ended_ms.insert(event.lease_id, now_ms);
        assert!(!seen.live && event.token.is_none(), "only a waiter leaves its queues");
        match (reason, cause) {
            (None, cause) => {
                assert!(now_ms > seen.deadline_ms, "{} timed out too early", event.lease_id);
                assert!(
                    seen.requests.values().all(|until_ms| now_ms > *until_ms),
                    "its place is kept longer"
                );
                let comes_back = matches!(cause, Cause::Command(Command::Acquire(acquire), _) if acquire.lease_id == event.lease_id);
                self.count(if comes_back { "came back too late" } else { "timed out" });
            }
            (Some(EndReason::Released), Cause::Command(Command::Release { lease_id }, _)) => {
                assert_eq!(*lease_id, event.lease_id);
                self.count("left");
            }
            (Some(EndReason::Abandoned), Cause::Command(command, _)) => {
                let attachment = closed(command, event.lease_id);
                let others = || seen.requests.iter().filter(|(other, _)| *other != attachment);
                assert!(seen.requests.contains_key(attachment), "that is none of its requests");
                assert!(others().all(|(_, until_ms)| now_ms > *until_ms), "another request waits for it");
                if others().count() > 0 {
                    self.count("left, abandoned by the last of several");
                }
                self.count("left, abandoned");
            }
            _ => panic!("{} left for no reason", event.lease_id),
        }
    }

    fn saw_outcome(&mut self, command: &Command, outcome: &Outcome, now_ms: u64) {
        match (command, outcome) {
            (Command::Acquire(acquire), Outcome::Waiting(_) | Outcome::Kept(_)) => {
                let seen = self.seen.get_mut(&acquire.lease_id).expect("it waits");
                let kept_ms = if matches!(outcome, Outcome::Kept(_)) { 5_000 } else { 0 };
                let (wait_ends_ms, before_ms) = (wait_ends_ms(acquire, now_ms), seen.deadline_ms);
                let ends_ms = wait_ends_ms + kept_ms;
                let request = seen.requests.entry(acquire.attachment).or_default();
                *request = ends_ms.max(*request);
                seen.deadline_ms = seen.deadline_ms.max(ends_ms);
                let is_kept = before_ms > wait_ends_ms;
                assert_eq!(
                    matches!(outcome, Outcome::Kept(_)),
                    is_kept,
                    "its place is kept for another request"
                );
                if is_kept {
                    self.count("kept for another");
                }
            }
            (Command::Acquire(acquire), Outcome::Standing(_)) => {
                let seen = self.seen.get_mut(&acquire.lease_id).expect("it is live");
                let was_known = std::mem::replace(&mut seen.is_known, true);
                self.count(if was_known { "repeated once more" } else { "repeated" });
            }
            (Command::Detach { lease_id, attachment } | Command::TakeBack { lease_id, attachment }, _) => {
                if matches!(command, Command::TakeBack { .. }) && !self.seen.contains_key(lease_id) {
                    self.ended_ms.entry(*lease_id).or_insert(now_ms);
                }
                let Some(seen) = self.seen.get_mut(lease_id).filter(|seen| !seen.live) else { return };
                if seen.requests.remove(attachment).is_some() {
                    seen.deadline_ms =
                        seen.requests.values().copied().max().expect("another request is left");
                    self.count("one of several stands no more");
                }
            }
            (Command::Release { .. }, Outcome::Refused(refusal)) => {
                assert!(matches!(refusal, Refusal::Gone(reason) if *reason != EndReason::Released));
                self.count("released too late");
            }
            (Command::Release { lease_id }, _) => {
                self.ended_ms.entry(*lease_id).or_insert(now_ms);
            }
            (Command::Renew { lease_id, ttl }, Outcome::Standing(grant)) => {
                let seen = self.seen.get_mut(lease_id).expect("it is live");
                let full_ms = ttl.map_or(seen.ttl_ms, |ttl| ttl.ms().into());
                let left_ms = grant.expires_in_ms.expect("a renewal has the time left");
                assert!(
                    left_ms >= full_ms && now_ms + left_ms >= seen.deadline_ms,
                    "a renewal never shortens"
                );
                let shorter = left_ms > full_ms;
                (seen.ttl_ms, seen.deadline_ms) = (full_ms, now_ms + left_ms);
                seen.is_known = true;
                self.count(if shorter { "renewed for less than it had" } else { "renewed" });
            }
            (Command::Conditional(conditional), Outcome::Changed(_)) => {
                for change in conditional.changes() {
                    let (token, ttl) = match change {
                        KeyChange::Keep { token, .. } => (token, None),
                        KeyChange::Expire { token, ttl, .. } => (token, Some(ttl)),
                        KeyChange::Acquire { .. } | KeyChange::End { .. } => continue,
                    };
                    let of_token = |seen: &&mut Seen| seen.live && seen.number == token.0;
                    // A later change may have ended it.
                    let Some(seen) = self.seen.values_mut().find(of_token) else { continue };
                    seen.is_known = true;
                    let Some(ttl) = ttl else {
                        self.count("kept");
                        continue;
                    };
                    let (before_ms, ttl_ms) = (seen.deadline_ms, u64::from(ttl.ms()));
                    (seen.ttl_ms, seen.deadline_ms) = (ttl_ms, now_ms + ttl_ms);
                    self.count(if now_ms + ttl_ms < before_ms { "shortened" } else { "prolonged" });
                }
            }
            (_, Outcome::Refused(refusal)) => self.count(match refusal {
                Refusal::Held { holders, .. } if holders.is_empty() => "held by waiters alone",
                Refusal::Held { .. } => "held",
                Refusal::WaitTimeout => "wait-timeout",
                Refusal::Mismatch => "mismatch",
                Refusal::NotGranted => "not granted",
                Refusal::NotLive => "not live",
                Refusal::Gone(_) => "gone",
                Refusal::Unknown => "unknown",
                Refusal::Overloaded => "overloaded",
                Refusal::TooManyLeases { .. }
                | Refusal::TooManyWaiting { .. }
                | Refusal::TooManyBytes { .. }
                | Refusal::Full => {
                    panic!("nobody in particular has no quota, and there is room")
                }
                Refusal::Changed { .. } => "changed",
                Refusal::NotYet { .. } | Refusal::OfDatabase { .. } => panic!("of no rules or keys here"),
            }),
            _ => {}
        }
    }

    fn saw_deadlines(&self, table: &LeaseTable) {
        for (&id, seen) in self.seen.iter().filter(|(_, seen)| seen.live) {
            let Ok(LeaseState::Granted(grant)) = table.lease(None, id, Some(table.at_ms())) else {
                panic!("{id} was live, and there was no event of its end");
            };
            assert_eq!(grant.token, Token(seen.number));
            let left_ms = seen.deadline_ms.saturating_sub(table.at_ms());
            assert_eq!(grant.expires_in_ms, Some(left_ms), "only a renewal, or an expiry, moves a deadline");
        }
        assert_eq!(self.seen.values().filter(|seen| seen.live).count(), table.live());
        assert_eq!(self.seen.values().filter(|seen| !seen.live).count(), table.waiters());
    }
}

/// The attachment of the request for this lease whose connection closed.
fn closed(command: &Command, id: LeaseId) -> &Attachment {
    match command {
        Command::Detach { lease_id, attachment } | Command::TakeBack { lease_id, attachment } => {
            assert_eq!(*lease_id, id);
            attachment
        }
        other => panic!("{id} was abandoned by {other:?}"),
    }
}

/// What a conditional asks for the new lease with this id.
fn new_lease(conditional: &Conditional, id: LeaseId) -> (Ttl, Attachment) {
    let mut changes = conditional.changes().iter();
    let found = changes.find_map(|change| match change {
        KeyChange::Acquire { lease_id, ttl, attachment, .. } if *lease_id == id => Some((*ttl, *attachment)),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{id} was granted without a request"))
}

fn wait_ends_ms(acquire: &Acquire, now_ms: u64) -> u64 {
    now_ms + u64::from(acquire.wait.ms()) + if acquire.keep_place { 5_000 } else { 0 }
}
