//! The bodies of requests. Unknown fields are refused by name.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::list::{list, some_list};
use crate::wanted_key::{MAX_KEYS, WantedKey};
use crate::{FieldError, Holder, Key, LeaseId, Metadata, Token, Ttl, Wait, check_peer_address};

/// The most operations, lease ids or checks in one request.
pub const MAX_BATCH: usize = 1_000;

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

#[cfg(test)]
mod tests;
