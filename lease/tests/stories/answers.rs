//! Answers as text.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ringfence_lease::{Change, Event, Found, LeaseState, LeaseTable, Outcome, Refusal};
use ringfence_wire::{EndReason, Grant, Holder, Key, KeyView, LeaseId, ModeName, PrincipalName, Waiting};

/// The column of the answers.
pub(super) const COLUMN: usize = 48;

pub(super) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(grant) => format!("granted {}", self::grant(grant)),
        Outcome::Standing(grant) => format!("standing {}", self::grant(grant)),
        Outcome::Waiting(waiting) => self::waiting(waiting),
        Outcome::Kept(waiting) => self::waiting(waiting) + ", kept for another",
        Outcome::Done => "done".to_owned(),
        Outcome::Refused(refusal) => self::refusal(refusal),
        Outcome::Changed(grants) => {
            format!("changed {}", grants.iter().map(self::grant).collect::<Vec<_>>().join("; "))
        }
    }
}

/// The first word of an outcome.
pub(super) fn outcome_kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Granted(_) => "granted",
        Outcome::Standing(_) => "standing",
        Outcome::Waiting(_) | Outcome::Kept(_) => "waiting",
        Outcome::Done => "done",
        Outcome::Refused(_) => "refused",
        Outcome::Changed(_) => "changed",
    }
}

/// How often each word comes.
pub(super) fn counted(words: impl Iterator<Item = &'static str>) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn state(state: &Result<LeaseState, Refusal>) -> String {
    match state {
        Ok(LeaseState::Granted(grant)) => format!("granted {}", self::grant(grant)),
        Ok(LeaseState::Waiting(waiting)) => self::waiting(waiting),
        Err(refusal) => self::refusal(refusal),
    }
}

pub(super) fn found(found: &Found, name: impl FnOnce(LeaseId) -> String) -> String {
    match found {
        Found::Free => "free".to_owned(),
        Found::Taken { expires_in_ms } => {
            expires_in_ms.map_or("taken".to_owned(), |ms| format!("taken, {ms} left"))
        }
        Found::Own { token, lease_id, value, until_ms, expires_in_ms, is_untold } => {
            let (name, value) = (name(*lease_id), String::from_utf8_lossy(value.as_bytes()));
            let untold = if *is_untold { ", untold" } else { "" };
            format!("own {token} {name} {value}, {expires_in_ms} left until {until_ms}{untold}")
        }
    }
}

fn grant(grant: &Grant) -> String {
    let left = grant.expires_in_ms.map_or("?".to_owned(), |ms| ms.to_string());
    let keys: Vec<_> = grant
        .keys
        .iter()
        .map(|granted| {
            format!("{}{} fence {}", granted.key, mode(granted.mode, granted.limit), granted.fence)
        })
        .collect();
    format!("{}{}, {left} of {}: {}", grant.token, by(&grant.holder), grant.ttl_ms, keys.join(", "))
}

fn waiting(waiting: &Waiting) -> String {
    format!("waiting, {} ahead", waiting.ahead)
}

fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Held { holders, waiters } => {
            let holders = holders.iter().map(|blocker| {
                let mode = mode(blocker.mode, blocker.limit);
                format!(
                    "{}{mode} {}{}, {} left; ",
                    blocker.key,
                    blocker.token,
                    by(&blocker.holder),
                    blocker.expires_in_ms
                )
            });
            format!("held: {}{waiters} wait", holders.collect::<String>())
        }
        Refusal::WaitTimeout => "wait-timeout".to_owned(),
        Refusal::Mismatch => "mismatch".to_owned(),
        Refusal::NotGranted => "not granted".to_owned(),
        Refusal::NotLive => "not live".to_owned(),
        Refusal::Gone(reason) => format!("gone: {}", self::reason(*reason)),
        Refusal::Unknown => "unknown".to_owned(),
        Refusal::Overloaded => "overloaded".to_owned(),
        Refusal::TooManyLeases { most } => format!("more than {most} leases"),
        Refusal::TooManyWaiting { most } => format!("more than {most} waiting"),
        Refusal::TooManyBytes { most } => format!("more than {most} bytes"),
        Refusal::Full => "full".to_owned(),
        Refusal::NotYet { since, .. } => format!("not before rules {since}"),
        Refusal::Changed { key } => format!("changed: {key}"),
        Refusal::OfDatabase { key } => format!("of a database: {key}"),
    }
}

pub(super) fn event(event: &Event, name: &str) -> String {
    let keys: Vec<_> = event
        .keys
        .iter()
        .map(|(key, mode, fence)| format!("{key}{} fence {fence}", self::mode(mode.name(), mode.limit())))
        .collect();
    let token = event.token.map_or(String::new(), |token| format!(" token {token}"));
    let left = if matches!(event.change, Change::Left(_)) { "left, " } else { "" };
    let (revision, change, by) = (event.revision, change(event.change), by(&event.holder));
    let owner = owner(&event.by);
    format!("{revision} {left}{change} {owner}{name}{token}{by}: {}", keys.join(", "))
}

pub(super) fn change(change: Change) -> &'static str {
    match change {
        Change::Granted => "granted",
        Change::Queued => "queued",
        Change::Ended(reason) | Change::Left(Some(reason)) => self::reason(reason),
        Change::Left(None) => "timed out",
    }
}

pub(super) fn page((page, next): &(Vec<KeyView>, Option<Key>)) -> String {
    let keys: Vec<_> = page.iter().map(|view| view.key.as_str()).collect();
    format!(
        "{}{}",
        keys.join(" "),
        next.as_ref().map_or(String::new(), |next| format!(", more after {next}"))
    )
}

pub(super) fn counts(table: &LeaseTable) -> String {
    format!(
        "{} live, {} waiting, {} remembered, {} keys; at {}, revision {}",
        table.live(),
        table.waiters(),
        table.remembered(),
        table.keys_len(),
        table.at_ms(),
        table.revision()
    )
}

pub(super) fn key_view(view: &KeyView) -> String {
    let holders = view.holders.iter().map(|holder| {
        let left = holder.expires_in_ms.map_or("?".to_owned(), |ms| ms.to_string());
        let metadata = holder.metadata.entries().iter().map(|(name, value)| format!(" {name}={value}"));
        let (mode, by) = (mode(holder.mode, holder.limit), by(&holder.holder));
        format!(
            "; {}held{mode} {}{by}{}, {left} of {}",
            owner(&holder.by),
            holder.token,
            metadata.collect::<String>(),
            holder.ttl_ms
        )
    });
    let waiters = view.waiters.iter().map(|waiter| {
        let (owner, mode) = (owner(&waiter.by), mode(waiter.mode, None));
        format!("; {owner}waits{mode}{} for {}", by(&waiter.holder), waiter.waited_ms)
    });
    format!("fence {} at {}{}", view.fence, view.revision, holders.chain(waiters).collect::<String>())
}

fn reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "released",
        EndReason::Expired => "expired",
        EndReason::Revoked => "revoked",
        EndReason::Abandoned => "abandoned",
    }
}

fn owner(by: &Option<PrincipalName>) -> String {
    by.as_ref().map_or(String::new(), |name| format!("{name}: "))
}

fn by(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or(String::new(), |holder| format!(" by {}", holder.as_str()))
}

fn mode(name: ModeName, limit: Option<NonZeroU32>) -> String {
    match (name, limit) {
        (ModeName::Exclusive, _) => String::new(),
        (ModeName::Shared, None) => " shared".to_owned(),
        (ModeName::Shared, Some(limit)) => format!(" shared/{limit}"),
    }
}
