//! Leases that hold a key together are compatible: one alone, or all shared and within the smallest of their limits.
//!
//! A lease holds from its token on, in revisions. Three witnesses tell how long it certainly held, and each suffices: the
//! agreed log, which has its end; the last call that was told that it lives, which came after everything that was known
//! when the call was sent; and any single view, which lists its holders of one instant. The last two do not need the log.
//!
//! Times do not count here: a lease is live until a change ends it, however late. That it does not end early is another law.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{Key, Mode, Token, VerdictName};

use super::facts::{Facts, is_local};
use super::tally::{Tally, mode};
use super::{Checker, Found};
use crate::history::{Call, Conclusion, Invocation};

/// Live holders of a key are always compatible.
pub const EXCLUSION: Checker = Checker {
    name: "exclusion",
    law: "Leases that hold a key at the same time are compatible: one alone, or shared and within the smallest limit.",
    check,
};

/// A lease that clients were told of: it holds a key from its token up to the revision `to` at least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    token: Token,
    to: u64,
    /// The calls that were told of its grant and of its life.
    calls: [Option<u64>; 2],
}

fn check(facts: &Facts) -> Found {
    let mut found = facts.log.holders.clone();
    let holds = holds(facts);
    let logged = facts.log.lines.values().any(|line| line.lives.len() > 1);
    if !logged && holds.values().all(|holds| holds.len() < 2) {
        found.undecided = Some("no key was granted twice".to_owned());
    }
    holds.into_iter().for_each(|(key, holds)| sweep(key, holds, &mut found));
    for (call, view) in facts.views() {
        found.saw("views");
        let mut tally = Tally::default();
        view.holders.iter().for_each(|holder| tally.add(mode(holder.mode, holder.limit)));
        if !tally.is_compatible() {
            let tokens: Vec<u64> = view.holders.iter().map(|holder| holder.token.0).collect();
            let what =
                format!("a view of {} at revision {} lists holders {tokens:?}", view.key, view.revision);
            found.breach(what, call.map(|call| call.id));
        }
    }
    found
}

/// From each grant to the last sign of life, as calls were told.
fn holds<'h>(facts: &Facts<'h>) -> BTreeMap<&'h Key, Vec<(Hold, Mode)>> {
    let mut signs: BTreeMap<Token, (u64, Option<u64>)> = BTreeMap::new();
    let mut sign = |token: Token, revision: u64, call: Option<u64>| {
        let last = signs.entry(token).or_insert((token.0, call));
        *last = (*last).max((revision, call));
    };
    // The revision that the state certainly had reached when the call was answered from it.
    let since = |call: &Call| {
        if is_local(call) { 0 } else { facts.told.floor(call.sent_us).map_or(0, |it| it.number) }
    };
    for call in &facts.history.calls {
        match (&call.conclusion, &call.invocation) {
            (Conclusion::Granted { grant, .. }, _) => sign(grant.token, since(call), Some(call.id)),
            (Conclusion::Verdict { verdict }, Invocation::Validate { token, .. })
                if verdict.verdict == VerdictName::Live && facts.by_token.contains_key(token) =>
            {
                sign(*token, since(call), Some(call.id));
            }
            _ => {}
        }
    }
    for (call, view) in facts.views() {
        for holder in &view.holders {
            sign(holder.token, view.revision.0, call.map(|call| call.id));
        }
    }
    let mut holds: BTreeMap<&Key, Vec<(Hold, Mode)>> = BTreeMap::new();
    for (token, (to, by)) in signs {
        let Some(life) = facts.with_token(token) else { continue };
        let granted = life.grants.iter().find(|(_, grant)| grant.token == token).map(|(call, _)| call.id);
        for (key, mode) in facts.holds(token) {
            let hold = Hold { token, to: to.max(token.0), calls: [granted, by] };
            holds.entry(key).or_default().push((hold, mode));
        }
    }
    holds
}

/// Compares each grant of a key, in the order of their tokens, with those that still hold then.
fn sweep(key: &Key, holds: Vec<(Hold, Mode)>, found: &mut Found) {
    let mut live: Vec<(Hold, Mode)> = Vec::new();
    for (hold, mode) in holds {
        live.retain(|(other, _)| other.to >= hold.token.0);
        let mut tally = Tally::default();
        live.iter().for_each(|(_, mode)| tally.add(*mode));
        if !tally.bears(mode) {
            let others: Vec<u64> = live.iter().map(|(other, _)| other.token.0).collect();
            let what = format!(
                "token {} was granted {key} while {others:?} held it: their clients were told so",
                hold.token
            );
            let calls = live.iter().flat_map(|(other, _)| other.calls).chain(hold.calls);
            found.breach(what, calls.flatten().collect::<BTreeSet<_>>());
        }
        live.push((hold, mode));
    }
}
