use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{EndReason, Holder, Key, LeaseId, ModeName, PrincipalName, Revision, Token};

/// The body of an HTTP error: `application/problem+json`, RFC 9457. Clients switch on `type`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Which problem: `urn:ringfence:problem:<name>`.
    #[serde(rename = "type")]
    pub kind: ProblemKind,
    /// A short summary of the problem, for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened this time, for people.
    pub detail: String,
    /// For an acquire: its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// For `invalid-request`: the field (`keys[3].limit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// For `held`: some of the live leases that block it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<Blocker>>,
    /// For `held`: the length of the longest queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u64>,
    /// For `lease-gone`: how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// For `stale-token`: the fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Token>,
    /// For `history-gone`: the node has all changes after this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Revision>,
}

/// A live lease that blocks another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// The key that it holds.
    pub key: Key,
    /// Its token.
    pub token: Token,
    /// Its public label.
    pub holder: Option<Holder>,
    /// Its mode on the key.
    pub mode: ModeName,
    /// The limit of a shared mode.
    pub limit: Option<NonZeroU32>,
    /// How long it lives unless renewed, in milliseconds.
    pub expires_in_ms: u64,
    /// The principal that acquired it; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PrincipalName>,
}

macro_rules! problems {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $status:literal, $title:literal;)*) => {
        /// The name of a [`Problem`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ProblemKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl ProblemKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The URN in `type`.
            pub const fn urn(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// Its HTTP status.
            pub fn status(self) -> u16 {
                match self { $(Self::$kind => $status,)* }
            }

            /// Its title.
            pub fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)* }
            }
        }
    };
}

problems! {
    /// Malformed or out of range; see `field`.
    InvalidRequest = "urn:ringfence:problem:invalid-request", 400, "The request is not valid";
    /// The credential is not valid, or nobody may do this without one.
    Unauthenticated = "urn:ringfence:problem:unauthenticated", 401, "The request has no valid credential";
    /// A foreign `Origin`, or a right is missing.
    Forbidden = "urn:ringfence:problem:forbidden", 403, "The request is not allowed";
    /// No such route.
    NotFound = "urn:ringfence:problem:not-found", 404, "There is no such route";
    /// A lease that is unknown, or was forgotten.
    UnknownLease = "urn:ringfence:problem:unknown-lease", 404, "The lease is unknown";
    /// The route exists, for another method.
    MethodNotAllowed = "urn:ringfence:problem:method-not-allowed", 405, "The route does not support this method";
    /// A key was not free, and the acquire did not wait.
    Held = "urn:ringfence:problem:held", 409, "A key is not free";
    /// The wait timed out.
    WaitTimeout = "urn:ringfence:problem:wait-timeout", 409, "The wait timed out";
    /// The same lease_id with other keys.
    LeaseMismatch = "urn:ringfence:problem:lease-mismatch", 409, "The lease_id belongs to a lease with other keys";
    /// A renewal of a lease that is still in the queue.
    NotGranted = "urn:ringfence:problem:not-granted", 409, "The lease is not granted yet";
    /// A revoke of a token that is not live on that key.
    NotLive = "urn:ringfence:problem:not-live", 409, "The token is not live";
    /// This change of the members or of their rules is not possible, or not now. Nothing has changed.
    MembersRefused = "urn:ringfence:problem:members-refused", 409, "The membership cannot be changed";
    /// A watch from a revision whose later changes are no longer kept, or that is in the future.
    HistoryGone = "urn:ringfence:problem:history-gone", 410, "The changes after this revision are not available";
    /// The lease ended; see `reason`.
    LeaseGone = "urn:ringfence:problem:lease-gone", 410, "The lease has ended";
    /// From a guard: the token is below the fence, and nothing was done; see `fence`.
    StaleToken = "urn:ringfence:problem:stale-token", 412, "The token is stale";
    /// A body over 1 MiB.
    TooLarge = "urn:ringfence:problem:too-large", 413, "The body is too large";
    /// The request names a host that is not the node's.
    Misdirected = "urn:ringfence:problem:misdirected", 421, "The request is for another host";
    /// From a guard: the request has no token.
    TokenRequired = "urn:ringfence:problem:token-required", 428, "A token is required";
    /// A full queue, too many watches, or more leases than there may be; see the header `Retry-After`.
    Overloaded = "urn:ringfence:problem:overloaded", 429, "There are too many leases, waiters or watches";
    /// More requests than the limits of the principal allow: not done; see the header `Retry-After`.
    RateLimited = "urn:ringfence:problem:rate-limited", 429, "The principal sends too many requests";
    /// No leader, or the rules in use do not have this yet: certainly not done.
    Unavailable = "urn:ringfence:problem:unavailable", 503, "The cluster is not available";
    /// May or may not have been done: repeat the same request.
    Indeterminate = "urn:ringfence:problem:indeterminate", 504, "The request may or may not have been done";
}

impl ProblemKind {
    /// Its name: the URN without `urn:ringfence:problem:`.
    pub const fn name(self) -> &'static str {
        self.urn().split_at("urn:ringfence:problem:".len()).1
    }

    /// Whether it was not allowed, whatever it was.
    pub fn is_denial(self) -> bool {
        matches!(self, Self::Unauthenticated | Self::Forbidden)
    }

    /// Whether it comes from a guarded resource, and never from the cluster.
    pub fn is_of_a_guard(self) -> bool {
        matches!(self, Self::StaleToken | Self::TokenRequired)
    }
}

impl Problem {
    /// A problem with its own title and status, and no further fields.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: detail.into(),
            lease_id: None,
            field: None,
            holders: None,
            waiters: None,
            reason: None,
            fence: None,
            oldest: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_survives_json() {
        for &kind in ProblemKind::ALL {
            let mut problem = Problem::new(kind, "why");
            problem.reason = Some(EndReason::Expired);
            let json = serde_json::to_value(&problem).unwrap();
            assert_eq!(json["type"], kind.urn());
            assert_eq!(json["status"], kind.status());
            assert_eq!(json.get("field"), None, "absent fields are left out");
            assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
        }
    }
}
