//! The bodies of requests. Unknown fields are refused by name.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    FieldError, Holder, Key, LeaseId, Metadata, Mode, ModeName, Token, Ttl, Wait, check_peer_address,
};

/// The most keys of one lease.
pub const MAX_KEYS: usize = 64;
/// The most operations, lease ids or checks in one request.
pub const MAX_BATCH: usize = 1_000;

/// A key of a lease and its mode. In JSON a string (exclusive) or `{"key","mode","limit"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedKey {
    /// The thing to protect.
    pub key: Key,
    /// Alone or shared.
    pub mode: Mode,
}

/// The body of `PUT /v1/leases/{lease_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AcquireRequest {
    /// 1 to [`MAX_KEYS`] keys, none twice, granted together or not at all.
    #[serde(deserialize_with = "list::<MAX_KEYS, _, _>")]
    pub keys: Vec<WantedKey>,
    /// The time-to-live.
    #[serde(default)]
    pub ttl_ms: Ttl,
    /// How long to wait in the queue; 0 tries once.
    #[serde(default)]
    pub wait_ms: Wait,
    /// Whether to keep the place in the queue for 5 s after the wait, for the next PUT.
    #[serde(default)]
    pub keep_place: bool,
    /// A public label.
    #[serde(default)]
    pub holder: Option<Holder>,
    /// Public data of the holder.
    #[serde(default)]
    pub metadata: Metadata,
}

/// The body of `POST /v1/leases/{lease_id}/renew`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RenewRequest {
    /// A new time-to-live; by default the lease's own.
    #[serde(default)]
    pub ttl_ms: Option<Ttl>,
}

/// The body of `POST /v1/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RenewManyRequest {
    /// At most [`MAX_BATCH`] leases.
    #[serde(deserialize_with = "list::<MAX_BATCH, _, _>")]
    pub lease_ids: Vec<LeaseId>,
}

/// The body of `POST /v1/revoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RevokeRequest {
    /// A key of the lease.
    pub key: Key,
    /// The token of the lease.
    pub token: Token,
}

/// The body of `POST /v1/cluster/members`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AddMemberRequest {
    /// The new node's id, from 1.
    pub id: u64,
    /// Its address for peers: `host:port`.
    pub peer: String,
}

impl AddMemberRequest {
    /// Checks the id and the address.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.id == 0 {
            return Err(FieldError::new("id", "a node id must be at least 1"));
        }
        check_peer_address(&self.peer).map_err(|reason| FieldError::new("peer", reason))
    }
}

/// The body of `POST /v1/cluster/transfer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct TransferRequest {
    /// The voter to transfer to; by default the one that lacks the fewest entries.
    #[serde(default)]
    pub to: Option<u64>,
}

impl TransferRequest {
    /// Checks the id.
    pub fn check(&self) -> Result<(), FieldError> {
        match self.to {
            Some(0) => Err(FieldError::new("to", "a node id must be at least 1")),
            _ => Ok(()),
        }
    }
}

/// The body of `POST /v1/cluster/upgrade`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct UpgradeRequest {
    /// The rules to raise to; by default the newest that all members support.
    #[serde(default)]
    pub to: Option<u8>,
    /// Whether to check only, and raise nothing.
    #[serde(default)]
    pub check: bool,
}

/// The body of `POST /v1/batch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct BatchRequest {
    /// At most [`MAX_BATCH`] operations, independent of each other.
    #[serde(deserialize_with = "list::<MAX_BATCH, _, _>")]
    pub operations: Vec<Operation>,
}

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Acquire without waiting.
    Acquire(BatchAcquire),
    /// Renew.
    Renew(BatchRenew),
    /// Release.
    Release(BatchRelease),
}

/// An acquire in a batch, which is answered at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct BatchAcquire {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// As in [`AcquireRequest`].
    #[serde(deserialize_with = "list::<MAX_KEYS, _, _>")]
    pub keys: Vec<WantedKey>,
    /// As in [`AcquireRequest`].
    #[serde(default)]
    pub ttl_ms: Ttl,
    /// Whether to take a place in the queue if it is not granted at once, and keep it for 5 s, for a PUT that waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_place: bool,
    /// As in [`AcquireRequest`].
    #[serde(default)]
    pub holder: Option<Holder>,
    /// As in [`AcquireRequest`].
    #[serde(default)]
    pub metadata: Metadata,
}

/// A renewal in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct BatchRenew {
    /// The lease.
    pub lease_id: LeaseId,
    /// As in [`RenewRequest`].
    #[serde(default)]
    pub ttl_ms: Option<Ttl>,
}

/// A release in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct BatchRelease {
    /// The lease.
    pub lease_id: LeaseId,
}

/// A token to validate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Check {
    /// The key.
    pub key: Key,
    /// The token.
    pub token: Token,
}

/// The body of `POST /v1/validate`: `{"key","token"}` or `{"checks":[…]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct ValidateRequest {
    /// For a single check.
    #[serde(default)]
    pub key: Option<Key>,
    /// For a single check.
    #[serde(default)]
    pub token: Option<Token>,
    /// At most [`MAX_BATCH`] checks.
    #[serde(default, deserialize_with = "some_list::<MAX_BATCH, _, _>")]
    pub checks: Option<Vec<Check>>,
}

impl WantedKey {
    /// Checks the number of keys, and that none comes twice. `path` is their field in the request.
    fn check_all(keys: &[Self], path: &str) -> Result<(), FieldError> {
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(FieldError::new(
                path,
                format!("a lease has 1 to {MAX_KEYS} keys, not {}", keys.len()),
            ));
        }
        let mut seen = BTreeSet::new();
        match keys.iter().position(|wanted| !seen.insert(&wanted.key)) {
            Some(twice) => {
                Err(FieldError::new(format!("{path}[{twice}]"), "a lease must not have a key twice"))
            }
            None => Ok(()),
        }
    }
}

impl AcquireRequest {
    /// Checks the number of keys, and that none comes twice.
    pub fn check(&self) -> Result<(), FieldError> {
        WantedKey::check_all(&self.keys, "keys")
    }
}

impl RenewManyRequest {
    /// Checks the number of ids.
    pub fn check(&self) -> Result<(), FieldError> {
        check_batch(self.lease_ids.len(), "lease_ids")
    }
}

impl BatchRequest {
    /// Checks the number of operations, and each acquire.
    pub fn check(&self) -> Result<(), FieldError> {
        check_batch(self.operations.len(), "operations")?;
        for (index, operation) in self.operations.iter().enumerate() {
            if let Operation::Acquire(acquire) = operation {
                WantedKey::check_all(&acquire.keys, &format!("operations[{index}].acquire.keys"))?;
            }
        }
        Ok(())
    }
}

impl ValidateRequest {
    /// The checks, and whether the request has the form with a single one.
    pub fn checks(self) -> Result<(Vec<Check>, bool), FieldError> {
        match self {
            Self { key: Some(key), token: Some(token), checks: None } => {
                Ok((vec![Check { key, token }], true))
            }
            Self { key: None, token: None, checks: Some(checks) } => {
                check_batch(checks.len(), "checks")?;
                Ok((checks, false))
            }
            Self { checks: Some(_), .. } => {
                Err(FieldError::new("checks", "must not be combined with `key` and `token`"))
            }
            Self { key: None, .. } => {
                Err(FieldError::new("key", "missing: pass `key` and `token`, or `checks`"))
            }
            Self { token: None, .. } => Err(FieldError::new("token", "missing: `key` requires `token`")),
        }
    }
}

fn check_batch(len: usize, path: &str) -> Result<(), FieldError> {
    if len > MAX_BATCH {
        return Err(FieldError::new(path, format!("at most {MAX_BATCH} in one request, not {len}")));
    }
    Ok(())
}

/// Reads at most `MAX` items. What follows may be much, and is not read.
fn list<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<const MAX: usize, T>(PhantomData<T>);
    impl<'de, const MAX: usize, T: Deserialize<'de>> de::Visitor<'de> for List<MAX, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() == MAX {
                    return Err(de::Error::custom(format_args!(
                        "a list of at most {MAX}, and this one is longer"
                    )));
                }
                list.push(item);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(List::<MAX, T>(PhantomData))
}

/// The same, or null.
fn some_list<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    struct Items<const MAX: usize, T>(Vec<T>);
    impl<'de, const MAX: usize, T: Deserialize<'de>> Deserialize<'de> for Items<MAX, T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            list::<MAX, T, D>(deserializer).map(Self)
        }
    }
    Ok(Option::<Items<MAX, T>>::deserialize(deserializer)?.map(|items| items.0))
}

/// serde also reads a struct from a list of its fields. These are read from objects only.
macro_rules! objects {
    ($($name:ident)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;
                impl<'de> de::Visitor<'de> for Object {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        $name::deserialize(de::value::MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_map(Object)
            }
        }
    )*};
}

objects! {
    AcquireRequest RenewRequest RenewManyRequest RevokeRequest AddMemberRequest TransferRequest UpgradeRequest
    BatchRequest BatchAcquire BatchRenew BatchRelease Check ValidateRequest
}

/// The long form of a [`WantedKey`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename = "key")]
struct WantedKeyObject {
    key: Key,
    #[serde(default)]
    mode: ModeName,
    #[serde(default)]
    limit: Option<NonZeroU32>,
}

impl Serialize for WantedKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WantedKeyObject { key: self.key.clone(), mode: self.mode.name(), limit: self.mode.limit() }
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WantedKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = WantedKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key as a string, or an object with `key`, `mode` and `limit`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WantedKey, E> {
                Ok(WantedKey { key: Key::new(text).map_err(E::custom)?, mode: Mode::Exclusive })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WantedKey, A::Error> {
                let object = WantedKeyObject::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let mode = match (object.mode, object.limit) {
                    (ModeName::Exclusive, None) => Mode::Exclusive,
                    (ModeName::Exclusive, Some(_)) => {
                        return Err(de::Error::custom("`limit` goes with `\"mode\": \"shared\"` only"));
                    }
                    (ModeName::Shared, limit) => Mode::Shared { limit },
                };
                Ok(WantedKey { key: object.key, mode })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::from_json;

    fn field_of<T: serde::de::DeserializeOwned + fmt::Debug>(json: &str) -> (String, String) {
        let error = from_json::<T>(json.as_bytes()).expect_err(json);
        (error.field.unwrap_or_default(), error.detail)
    }

    #[test]
    fn an_acquire_needs_only_keys() {
        let request: AcquireRequest =
            from_json(br#"{"keys":["a",{"key":"b","mode":"shared","limit":2}]}"#).unwrap();
        request.check().unwrap();
        assert_eq!(request.ttl_ms.ms(), 15_000);
        assert_eq!(request.wait_ms.ms(), 0);
        assert_eq!(request.keys[0].mode, Mode::Exclusive);
        assert_eq!(request.keys[1].mode, Mode::Shared { limit: NonZeroU32::new(2) });
    }

    #[test]
    fn an_error_names_the_field_as_the_client_wrote_it() {
        for (json, field, word) in [
            (r#"{"keys":["a","b","c",7]}"#, "keys[3]", "a key as a string"),
            (r#"{"keys":["a","/b"]}"#, "keys[1]", "segment"),
            (r#"{"keys":[{"key":"a","mode":"both"}]}"#, "keys[0].mode", "unknown variant `both`"),
            (r#"{"keys":[{"key":"a","mode":"shared","limit":0}]}"#, "keys[0].limit", "nonzero"),
            (r#"{"keys":[{"key":"a","limit":1}]}"#, "keys[0]", "shared"),
            (r#"{"keys":[{"key":"a","colour":1}]}"#, "keys[0].colour", "unknown field `colour`"),
            (r#"{"keys":["a"],"ttl":5}"#, "ttl", "unknown field `ttl`"),
            (r#"{"keys":["a"],"ttl_ms":99}"#, "ttl_ms", "100 to 86,400,000"),
            (r#"{"keys":["a"],"ttl_ms":-1}"#, "ttl_ms", "-1"),
            (r#"{"keys":["a"],"ttl_ms":1.5}"#, "ttl_ms", "1.5"),
            (r#"{"keys":["a"],"wait_ms":60001}"#, "wait_ms", "60,000"),
            (r#"{"keys":["a"],"metadata":{"a":1}}"#, "metadata.a", "string"),
            (r#"{"ttl_ms":500}"#, "keys", "missing field `keys`"),
            (r#"{"keys":["a"],"keys":["b"]}"#, "keys", "duplicate field"),
            (r#"{"keys":["a"],"metadata":{"a":"1","a":"1"}}"#, "metadata.a", "duplicate field"),
            (r#"{"keys":["a"],"metadata":[["a","1"]]}"#, "metadata", "sequence"),
            (r#"{"keys":[["a","shared"]]}"#, "keys[0]", "a key as a string"),
            (r#"[["a"]]"#, "", "expected an object"),
        ] {
            let (found, detail) = field_of::<AcquireRequest>(json);
            assert_eq!(found, field, "{json}: {detail}");
            assert!(detail.contains(word), "{json}: {detail}");
        }
        let (field, _) = field_of::<BatchRequest>(r#"{"operations":[{"renew":{"lease_id":"x"}}]}"#);
        assert_eq!(field, "operations[0].renew.lease_id");
        assert!(field_of::<AcquireRequest>("{").1.contains("line 1"), "a syntax error has a place");
    }

    #[test]
    fn a_list_is_not_a_request() {
        let id = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
        let wrong = |(field, detail): (String, String), expected: &str| {
            assert_eq!(field, expected, "{detail}");
            assert!(detail.contains("expected an object"), "{detail}");
        };
        wrong(field_of::<RenewRequest>("[]"), "");
        wrong(field_of::<RenewRequest>("[null]"), "");
        wrong(field_of::<TransferRequest>("[]"), "");
        wrong(field_of::<UpgradeRequest>("[]"), "");
        wrong(field_of::<RenewManyRequest>("[[]]"), "");
        wrong(field_of::<RevokeRequest>(r#"["a",1]"#), "");
        wrong(field_of::<AddMemberRequest>(r#"[1,"a:1"]"#), "");
        wrong(field_of::<BatchRequest>("[[]]"), "");
        wrong(field_of::<ValidateRequest>("[]"), "");
        wrong(field_of::<ValidateRequest>(r#"{"checks":[["a",1]]}"#), "checks[0]");
        for name in ["acquire", "renew", "release"] {
            let json = format!(r#"{{"operations":[{{"{name}":["{id}",["a"]]}}]}}"#);
            wrong(field_of::<BatchRequest>(&json), &format!("operations[0].{name}"));
        }
    }

    /// It took tens of milliseconds to read all of it.
    #[test]
    fn nothing_is_read_after_the_first_thing_too_many() {
        let too_many = |item: &str, max: usize| format!("{item},").repeat(max + 1) + "no JSON";
        let acquire = |rest: &str| field_of::<AcquireRequest>(&format!(r#"{{"keys":[{rest}"#));
        let check = r#"{"key":"a","token":1}"#;
        let id = r#""0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10""#;
        let release = format!(r#"{{"release":{{"lease_id":{id}}}}}"#);
        for ((field, detail), expected, word) in [
            (acquire(&too_many(r#""a""#, MAX_KEYS)), "keys", "at most 64"),
            (
                acquire(&format!(r#""a"],"metadata":{{"a":"{}",no JSON"#, "b".repeat(4_096))),
                "metadata",
                "at most 4,096 bytes",
            ),
            (
                field_of::<RenewManyRequest>(&format!(r#"{{"lease_ids":[{}"#, too_many(id, MAX_BATCH))),
                "lease_ids",
                "at most 1000",
            ),
            (
                field_of::<BatchRequest>(&format!(r#"{{"operations":[{}"#, too_many(&release, MAX_BATCH))),
                "operations",
                "at most 1000",
            ),
            (
                field_of::<ValidateRequest>(&format!(r#"{{"checks":[{}"#, too_many(check, MAX_BATCH))),
                "checks",
                "at most 1000",
            ),
        ] {
            assert!(field == expected && detail.contains(word), "{field}: {detail}");
        }
        let all = format!(r#"{{"keys":["a"],"metadata":{{"a":"{}"}}}}"#, "b".repeat(4_095));
        assert!(from_json::<AcquireRequest>(all.as_bytes()).is_ok());
        let all = format!(r#"{{"checks":[{check}{}]}}"#, format!(",{check}").repeat(MAX_BATCH - 1));
        assert_eq!(
            from_json::<ValidateRequest>(all.as_bytes()).unwrap().checks().unwrap().0.len(),
            MAX_BATCH
        );
    }

    #[test]
    fn an_error_quotes_no_more_than_the_ends_of_a_long_name() {
        let name = "é".repeat(100_000);
        for json in [
            format!(r#"{{"keys":["a"],"{name}":1}}"#),
            format!(r#"{{"keys":["a"],"metadata":{{"{name}":1}}}}"#),
            format!(r#"{{"keys":["a"],"ttl_ms":"{name}"}}"#),
        ] {
            let (field, detail) = field_of::<AcquireRequest>(&json);
            assert!(field.len() < 600 && detail.len() < 600, "{field}: {detail}");
            assert!(detail.contains("line 1 column"), "{detail}");
        }
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        let twice: AcquireRequest = from_json(br#"{"keys":["a","b",{"key":"a","mode":"shared"}]}"#).unwrap();
        assert_eq!(twice.check().unwrap_err().field.as_deref(), Some("keys[2]"));
        let none: AcquireRequest = from_json(br#"{"keys":[]}"#).unwrap();
        assert_eq!(none.check().unwrap_err().field.as_deref(), Some("keys"));
    }

    #[test]
    fn validation_takes_one_check_or_many_and_not_both() {
        let one: ValidateRequest = from_json(br#"{"key":"a","token":7}"#).unwrap();
        assert!(one.checks().unwrap().1);
        let many: ValidateRequest =
            from_json(br#"{"checks":[{"key":"a","token":7},{"key":"b","token":8}]}"#).unwrap();
        assert_eq!(many.checks().unwrap().0.len(), 2);
        for (json, field) in [
            ("{}", "key"),
            (r#"{"key":"a"}"#, "token"),
            (r#"{"token":1}"#, "key"),
            (r#"{"key":"a","token":1,"checks":[]}"#, "checks"),
        ] {
            let request: ValidateRequest = from_json(json.as_bytes()).unwrap();
            assert_eq!(request.checks().unwrap_err().field.as_deref(), Some(field), "{json}");
        }
    }
}
