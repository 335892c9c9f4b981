//! Tokens and fences only rise.
//!
//! - No two leases have the same token. (That no lease has two is [`super::repeats`].)
//! - A lease that is asked for after somebody was told a token, a view's revision or a fence gets a larger token, on any
//!   key: the token is the number of the change.
//! - The fence of a key, as grants, renewals, views and verdicts of the cluster show it, never falls from one call to a
//!   later one. The state of a single node may lag, but counts for later calls.
//! - A live lease is not below the fences that are shown with it; one that holds a key alone is the fence. The fence in a
//!   view is its smallest holder or, where nobody holds, the revision + 1.
//! - In the agreed log, revisions rise, a grant's token is its revision, and fences follow from the holders.
//!
//! All but the last are judged from what clients were told, without the log.

use ringfence_wire::{KeyView, ModeName, Token, VerdictName};

use super::facts::{Facts, fences_of, is_local};
use super::{Checker, Found};
use crate::history::{Conclusion, Invocation};

/// Tokens and fences only rise.
pub const TOKENS: Checker = Checker {
    name: "tokens",
    law: "Every grant has a token of its own, larger than all that anybody was told of before it was asked for; fences \
          never fall.",
    check,
};

/// What is left of [`TOKENS`] once disks were turned back and nobody was left who knew. A read may show a lower fence then than an
/// earlier one, until the first entry of the new leader; guards keep the highest.
pub const GRANTED_TOKENS: Checker = Checker {
    name: "granted-tokens",
    law: "Every grant has a token of its own, larger than all that anybody was told of before it was asked for.",
    check: |facts| {
        let mut found = Found::default();
        tokens_rise(facts, &mut found);
        found
    },
};

fn check(facts: &Facts) -> Found {
    let mut found = facts.log.numbers.clone();
    tokens_rise(facts, &mut found);
    fences_never_fall(facts, &mut found);
    answers_agree_with_themselves(facts, &mut found);
    if facts.by_token.len() < 2 {
        found.undecided = Some("fewer than two leases were granted".to_owned());
    }
    found
}

fn tokens_rise(facts: &Facts, found: &mut Found) {
    for (lease, life) in &facts.lives {
        let known = life.first_sent_us().and_then(|us| facts.told.floor(us));
        for token in &life.tokens {
            found.saw("tokens");
            let first = facts.by_token[token];
            if first != *lease {
                let grants = [&first, lease].into_iter().flat_map(|id| &facts.lives[id].grants);
                let calls = grants.filter(|(_, grant)| grant.token == *token).map(|(call, _)| call.id);
                found.breach(format!("leases {first} and {lease} both have token {token}"), calls);
            }
            let Some(known) = known else { continue };
            found.saw("tokens compared with what was known before");
            if token.0 <= known.number {
                let number = known.number;
                let calls = known.call.into_iter().chain(life.grants.iter().map(|(call, _)| call.id).next());
                let what = format!(
                    "lease {lease} has token {token}, but revision {number} was known before it was asked for"
                );
                found.breach(what, calls);
            }
        }
    }
}

fn fences_never_fall(facts: &Facts, found: &mut Found) {
    for call in facts.history.calls.iter().filter(|call| !is_local(call)) {
        for (key, fence) in fences_of(call) {
            found.saw("fences");
            if let Some(known) = facts.fences[key].floor(call.sent_us).filter(|known| known.number > fence.0)
            {
                let what = format!("the fence of {key} fell from {} to {fence}", known.number);
                found.breach(what, known.call.into_iter().chain([call.id]));
            }
        }
    }
}

fn answers_agree_with_themselves(facts: &Facts, found: &mut Found) {
    for call in &facts.history.calls {
        match (&call.conclusion, &call.invocation) {
            (Conclusion::Granted { grant, .. }, _) => {
                for held in &grant.keys {
                    let (token, fence, key) = (grant.token, held.fence, &held.key);
                    if fence > token || held.mode == ModeName::Exclusive && fence < token {
                        found.breach(
                            format!("token {token} was told with the fence {fence} of {key}"),
                            [call.id],
                        );
                    }
                }
            }
            (Conclusion::Verdict { verdict }, Invocation::Validate { key, token, .. })
                if verdict.verdict == VerdictName::Live && *token < verdict.fence =>
            {
                let fence = verdict.fence;
                found.breach(
                    format!("token {token} was called live below the fence {fence} of {key}"),
                    [call.id],
                );
            }
            _ => {}
        }
    }
    for (call, view) in facts.views() {
        found.saw("views");
        let KeyView { key, fence, revision, .. } = view;
        let tokens = || view.holders.iter().map(|holder| holder.token);
        let right = tokens().min().unwrap_or(Token(revision.next().0));
        let wrong = match tokens().max() {
            _ if *fence != right => Some(format!("has fence {fence}, and should have {right}")),
            Some(largest) if largest.0 > revision.0 => Some(format!("has a holder with token {largest}")),
            _ => None,
        };
        if let Some(wrong) = wrong {
            found.breach(format!("a view of {key} at revision {revision} {wrong}"), call.map(|call| call.id));
        }
    }
}
