//! Whatever a body contains, it is refused with words, or is a request that can be written and read again.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ringfence_wire::{
    AcquireRequest, AddMemberRequest, BatchRequest, FieldError, RenewManyRequest, RenewRequest,
    RevokeRequest, TransferRequest, UpgradeRequest, ValidateRequest, from_json,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ID: &str = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
const NAMES: [&str; 14] = [
    "keys", "key", "mode", "limit", "ttl_ms", "holder", "metadata", "lease_id", "acquire", "renew", "token",
    "checks", "id", "to",
];

/// A valid body for each kind of request.
fn valid() -> Vec<Value> {
    let claims = json!(["a/b", { "key": "c", "mode": "shared", "limit": 3 }]);
    let acquire = json!({
        "keys": claims, "ttl_ms": 5_000, "wait_ms": 0, "keep_place": true, "holder": "me", "metadata": { "m": "1" }
    });
    vec![
        acquire,
        json!({ "ttl_ms": 60_000 }),
        json!({ "lease_ids": [ID] }),
        json!({ "key": "a", "token": 7 }),
        json!({ "id": 4, "peer": "10.0.0.4:7500" }),
        json!({ "to": 2 }),
        json!({ "to": 2, "check": true }),
        json!({ "operations": [
            { "acquire": { "lease_id": ID, "keys": claims, "metadata": {} } },
            { "renew": { "lease_id": ID, "ttl_ms": null } },
            { "release": { "lease_id": ID } },
        ]}),
        json!({ "checks": [{ "key": "a", "token": 7 }] }),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let texts = select(vec!["a/b", "", "shared", ID, "..", "10.0.0.1:1", "\u{0}", "ü\u{202e}"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-3..100_000_i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        texts.prop_map(Value::from),
        "\\PC{0,600}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 30, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((select(&NAMES[..]), inner), 0..5).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

/// Replaces the value number `at` of `whole`, and says how many there are before it.
fn replace(whole: &mut Value, at: &mut usize, new: &Value) {
    if *at == 0 {
        *whole = new.clone();
    }
    *at = at.wrapping_sub(1);
    match whole {
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, at, new)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, at, new)),
        _ => {}
    }
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let changed = (select(valid()), 0..25_usize, any_value()).prop_map(|(mut body, mut at, new)| {
        replace(&mut body, &mut at, &new);
        body.to_string().into_bytes()
    });
    let edited = (select(valid()), any::<prop::sample::Index>(), vec(any::<u8>(), 0..4), 0..4_usize)
        .prop_map(|(body, at, new, gone)| {
            let mut body = body.to_string().into_bytes();
            let at = at.index(body.len());
            let end = body.len().min(at + gone);
            body.splice(at..end, new);
            body
        });
    prop_oneof![
        3 => changed,
        2 => edited,
        1 => any_value().prop_map(|value| value.to_string().into_bytes()),
        1 => vec(any::<u8>(), 0..60),
    ]
}

/// Whether `body` is a valid request.
fn read<T>(body: &[u8], check: impl Fn(T) -> Result<(), FieldError>) -> bool
where
    T: Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    match from_json::<T>(body) {
        Err(error) => {
            assert!(!error.detail.is_empty());
            false
        }
        Ok(request) => {
            let again = from_json::<T>(&serde_json::to_vec(&request).unwrap());
            assert_eq!(again.as_ref(), Ok(&request));
            check(request).is_ok()
        }
    }
}

/// By how many kinds of requests `body` is taken.
fn taken(body: &[u8]) -> usize {
    let all = [
        read::<AcquireRequest>(body, |request| request.check()),
        read::<RenewRequest>(body, |_| Ok(())),
        read::<RenewManyRequest>(body, |request| request.check()),
        read::<RevokeRequest>(body, |_| Ok(())),
        read::<AddMemberRequest>(body, |request| request.check()),
        read::<TransferRequest>(body, |request| request.check()),
        read::<UpgradeRequest>(body, |_| Ok(())),
        read::<BatchRequest>(body, |request| request.check()),
        read::<ValidateRequest>(body, |request| request.checks().map(drop)),
    ];
    all.iter().filter(|taken| **taken).count()
}

#[test]
fn each_valid_body_is_taken() {
    for body in valid() {
        assert!(taken(body.to_string().as_bytes()) > 0, "{body}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_body_is_refused_or_is_a_request(body in body()) {
        taken(&body);
    }
}
