use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::PrincipalName;

/// Who a caller is, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The name of the principal. `None`: anonymous.
    pub principal: Option<PrincipalName>,
    /// Its rights on keys.
    pub allow: Vec<AllowedKeys>,
    /// Its rights on the cluster: `metrics`, `observe`, `operate`.
    pub cluster: Vec<String>,
    /// How much it may use.
    #[serde(default)]
    pub limits: Limits,
}

/// How much a principal may use. `None`: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Leases in the cluster, live or waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<NonZeroU32>,
    /// Waiting leases in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<NonZeroU32>,
    /// About how many bytes of memory its leases take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_bytes: Option<NonZeroU32>,
    /// Requests to each node in a second. Each operation of a batch is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<NonZeroU32>,
    /// Watches on each node at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watches: Option<NonZeroU32>,
}

/// Rights on some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedKeys {
    /// `accounts/`: all keys that begin with this; `=accounts/42`: this key; `*`: all keys.
    pub keys: String,
    /// `validate`, `read`, `acquire`, `revoke`.
    pub may: Vec<String>,
}
