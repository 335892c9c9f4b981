use serde::{Deserialize, Serialize};

/// Who a caller is, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The name of the principal. `None`: anonymous.
    pub principal: Option<String>,
    /// Its rights on keys.
    pub allow: Vec<AllowedKeys>,
    /// Its rights on the cluster: `metrics`, `observe`, `operate`.
    pub cluster: Vec<String>,
}

/// Rights on some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedKeys {
    /// `accounts/`: all keys that begin with this; `=accounts/42`: this key; `*`: all keys.
    pub keys: String,
    /// `validate`, `read`, `acquire`, `revoke`.
    pub may: Vec<String>,
}
