//! Calls as columns: a word of each call in one array, so that a hundred thousand of them stay a few megabytes.

use std::collections::{BTreeMap, HashMap};

use ringfence_wire::{Key, LeaseId, Token};
use serde::Serialize;

use crate::history::{Call, Conclusion, History, Invocation, Seen, reason_name};

/// The longest note on a call that the page shows.
const NOTE_CHARS: usize = 300;

/// Calls in the order they were sent; on the page, a call is its place here.
pub(super) struct Order<'a> {
    pub(super) calls: Vec<&'a Call>,
    places: HashMap<u64, usize>,
    /// The keys that each lease was asked for.
    pub(super) leases: HashMap<LeaseId, Vec<&'a Key>>,
}

/// Keys, and the place of each in the page's list.
pub(super) type Keys<'a> = BTreeMap<&'a str, usize>;

/// One array per word; `0` in `node`, `note` and `token` is none.
#[derive(Default, Serialize)]
pub(super) struct Columns<'a> {
    id: Vec<u64>,
    sent: Vec<u64>,
    took: Vec<u64>,
    process: Vec<u32>,
    node: Vec<u64>,
    /// In `fs`.
    f: Vec<usize>,
    /// In `cames`.
    conclusion: Vec<usize>,
    /// In `notes`, from 1.
    note: Vec<usize>,
    key: Vec<KeyPlaces>,
    token: Vec<u64>,
    fs: Vec<&'a str>,
    conclusions: Vec<&'a str>,
    notes: Vec<String>,
}

/// Where the keys of a call stand in the page's list.
#[derive(Serialize)]
#[serde(untagged)]
enum KeyPlaces {
    One(usize),
    /// None, or many.
    Many(Vec<usize>),
}

impl<'a> Order<'a> {
    pub(super) fn new(history: &'a History) -> Self {
        let mut calls: Vec<&Call> = history.calls.iter().collect();
        calls.sort_by_key(|call| call.sent_us);
        let places = calls.iter().enumerate().map(|(place, call)| (call.id, place)).collect();
        let mut leases = HashMap::new();
        for call in &calls {
            if let Invocation::Acquire { lease, .. } = &call.invocation {
                leases.entry(*lease).or_insert_with(|| call.invocation.keys());
            }
        }
        Self { calls, places, leases }
    }

    /// The place of the call with this id.
    pub(super) fn place(&self, id: u64) -> Option<usize> {
        self.places.get(&id).copied()
    }

    fn keys(&self, call: &'a Call) -> Vec<&'a Key> {
        let of_lease = || self.leases.get(&call.invocation.lease()?).cloned();
        Some(call.invocation.keys()).filter(|keys| !keys.is_empty()).or_else(of_lease).unwrap_or_default()
    }
}

/// All keys that anybody asked for, or that changed.
pub(super) fn keys(history: &History) -> Keys<'_> {
    let invocation = history.calls.iter().flat_map(|call| call.invocation.keys());
    let changed = history.end.changes.iter().flat_map(|change| &change.keys).map(|changed| &changed.key);
    let mut keys: Keys<'_> = invocation.chain(changed).map(|key| (key.as_str(), 0)).collect();
    for (place, (_, key)) in keys.iter_mut().enumerate() {
        *key = place;
    }
    keys
}

/// The columns of all calls.
pub(super) fn columns<'a>(order: &Order<'a>, keys: &Keys<'a>) -> Columns<'a> {
    let mut columns = Columns::default();
    let (mut fs, mut conclusions, mut notes) = (HashMap::new(), HashMap::new(), HashMap::new());
    for &call in &order.calls {
        columns.id.push(call.id);
        columns.sent.push(call.sent_us);
        columns.took.push(call.ended_us.saturating_sub(call.sent_us));
        columns.process.push(call.process);
        columns.node.push(call.node.unwrap_or(0));
        columns.f.push(place_of(f(&call.invocation), &mut fs, &mut columns.fs));
        columns.conclusion.push(place_of(
            conclusion(&call.conclusion),
            &mut conclusions,
            &mut columns.conclusions,
        ));
        let note = note(call).map(|note| 1 + place_of(note, &mut notes, &mut columns.notes));
        columns.note.push(note.unwrap_or(0));
        let mut places: Vec<usize> =
            order.keys(call).into_iter().filter_map(|key| keys.get(key.as_str()).copied()).collect();
        columns.key.push(match places.len() {
            1 => KeyPlaces::One(places.swap_remove(0)),
            _ => KeyPlaces::Many(places),
        });
        columns.token.push(token(call).map_or(0, |token| token.0));
    }
    columns
}

/// The place of `word` in `words`, where it is put if it is new.
fn place_of<T: Clone + Eq + std::hash::Hash>(
    word: T,
    places: &mut HashMap<T, usize>,
    words: &mut Vec<T>,
) -> usize {
    *places.entry(word).or_insert_with_key(|word| {
        words.push(word.clone());
        words.len() - 1
    })
}

/// A wait is named apart: how long it takes says nothing of how fast the cluster is.
fn f(invocation: &Invocation) -> &'static str {
    match invocation {
        Invocation::Acquire { wait_ms: 0, .. } => "acquire",
        Invocation::Acquire { .. } => "wait",
        Invocation::Renew { .. } => "renew",
        Invocation::Release { .. } => "release",
        Invocation::Lease { .. } => "lease",
        Invocation::Key { .. } => "key",
        Invocation::Validate { .. } => "validate",
        Invocation::Revoke { .. } => "revoke",
        Invocation::Transfer { .. } => "transfer",
        Invocation::Set { .. } => "set",
        Invocation::EndIf { .. } => "end if",
        Invocation::ExpireIf { .. } => "expire if",
        Invocation::Token { .. } => "token",
        Invocation::Get { .. } => "get",
        Invocation::Read { .. } => "read",
        Invocation::Write { .. } => "write",
    }
}

fn conclusion(conclusion: &Conclusion) -> &'static str {
    match conclusion {
        Conclusion::Granted { .. }
        | Conclusion::Waiting { .. }
        | Conclusion::Done
        | Conclusion::Key { .. }
        | Conclusion::Verdict { .. }
        | Conclusion::Token { .. }
        | Conclusion::Value { .. }
        | Conclusion::Register { .. } => "done",
        Conclusion::Stale { .. } => "stale",
        Conclusion::Refused { .. } => "refused",
        Conclusion::NotDone { .. } => "not done",
        Conclusion::Unknown { .. } => "unknown",
        Conclusion::Malformed { .. } => "malformed",
    }
}

/// What there is to say of a call beside its outcome.
fn note(call: &Call) -> Option<String> {
    let text = match &call.conclusion {
        Conclusion::Refused { problem, reason } => {
            let name = problem.urn().rsplit(':').next().unwrap_or_default();
            reason.map_or(name.to_owned(), |reason| format!("{name}: {}", reason_name(reason)))
        }
        Conclusion::NotDone { why } | Conclusion::Unknown { why } | Conclusion::Malformed { why } => {
            why.chars().take(NOTE_CHARS).collect()
        }
        Conclusion::Waiting { .. } => "still waits".to_owned(),
        Conclusion::Granted { standing: true, .. } => "had been granted before".to_owned(),
        Conclusion::Value { seen: Seen::Nothing } => "free".to_owned(),
        Conclusion::Value { seen: Seen::Other } => "not free".to_owned(),
        Conclusion::Verdict { verdict } => format!("{:?}", verdict.verdict).to_lowercase(),
        _ => String::new(),
    };
    let local = call.invocation.is_local().then(|| "local".to_owned());
    let words: Vec<String> = local.into_iter().chain(Some(text).filter(|text| !text.is_empty())).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

fn token(call: &Call) -> Option<Token> {
    match &call.conclusion {
        Conclusion::Granted { grant, .. } => Some(grant.token),
        Conclusion::Token { token } => Some(*token),
        _ => call.invocation.token(),
    }
}
