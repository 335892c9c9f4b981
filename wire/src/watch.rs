//! A watch: one server-sent event for each change.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{EndReason, Holder, Key, ModeName, PrincipalName, Revision, Token};

/// The name of a server-sent event: what happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchEventName {
    /// It was granted, at once or from the queue.
    Granted,
    /// It took its place in the queue.
    Queued,
    /// It was live, and its holder released it or, with the reason `abandoned`, never learned of it.
    Released,
    /// It was live, and its time-to-live ran out.
    Expired,
    /// It was live, and an operator ended it.
    Revoked,
    /// It left the queue without a grant.
    Left,
}

impl WatchEventName {
    /// All names.
    pub const ALL: &[Self] =
        &[Self::Granted, Self::Queued, Self::Released, Self::Expired, Self::Revoked, Self::Left];

    /// The name, as written after `event:`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Queued => "queued",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Left => "left",
        }
    }
}

/// The data of such an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// The number of the change; the id of the event too.
    pub revision: Revision,
    /// The keys of the lease that start with the prefix, in the order of the request.
    pub keys: Vec<WatchedKey>,
    /// The lease's token; `None` for one that waits, or left the queue.
    pub token: Option<Token>,
    /// Its public label.
    pub holder: Option<Holder>,
    /// The principal whose lease it is; `None` without access rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PrincipalName>,
    /// Why it ended or left; `None` for a grant, a place in the queue, and a wait that ran out.
    pub reason: Option<EndReason>,
}

/// A key of a lease that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedKey {
    /// The key.
    pub key: Key,
    /// The mode of the lease.
    pub mode: ModeName,
    /// The limit of a shared mode.
    pub limit: Option<NonZeroU32>,
    /// The lowest token that may be live after this change: all below are dead.
    pub fence: Token,
}

/// The data of the event `cut-off`, the last event when the node ends a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// Everything up to here was sent.
    pub revision: Revision,
    /// Why the rest is not.
    pub reason: CutOffReason,
}

/// Why a node ends a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutOffReason {
    /// The client read so slowly that the next change is no longer kept.
    TooSlow,
    /// The node had fallen behind, and installed a snapshot without the changes that led to it.
    StateReplaced,
    /// For 30 s the node has had no contact with a leader, or was behind it. Another node may know more.
    NoContact,
}

impl CutOff {
    /// The name of the event.
    pub const NAME: &str = "cut-off";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_survives_json() {
        let event = WatchEvent {
            revision: Revision(7),
            keys: vec![WatchedKey {
                key: Key::new("a").unwrap(),
                mode: ModeName::Shared,
                limit: NonZeroU32::new(3),
                fence: Token(5),
            }],
            token: Some(Token(6)),
            holder: Holder::new("me"),
            by: PrincipalName::new("app"),
            reason: Some(EndReason::Abandoned),
        };
        let written = json!({
            "revision": 7,
            "keys": [{ "key": "a", "mode": "shared", "limit": 3, "fence": 5 }],
            "token": 6,
            "holder": "me",
            "by": "app",
            "reason": "abandoned",
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), written);
        assert_eq!(serde_json::from_value::<WatchEvent>(written).unwrap(), event);
        let cut_off = CutOff { revision: Revision(7), reason: CutOffReason::TooSlow };
        let written = json!({ "revision": 7, "reason": "too-slow" });
        assert_eq!(serde_json::to_value(cut_off).unwrap(), written);
        assert_eq!(serde_json::from_value::<CutOff>(written).unwrap(), cut_off);
    }

    #[test]
    fn a_name_is_its_json() {
        for &name in WatchEventName::ALL {
            assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
        }
    }
}
