//! What a watch tells, one server-sent event for each change.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{EndReason, Holder, Key, ModeName, Revision, Token};

/// The name of a server-sent event: what happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchEventName {
    /// It was granted, at once or from the queue.
    Granted,
    /// It took its place in the queue.
    Queued,
    /// It was live, and its holder gave it back or, with the reason `abandoned`, never learnt of it.
    Released,
    /// It was live, and its time-to-live ran out.
    Expired,
    /// It was live, and an operator ended it.
    Revoked,
    /// It left the queue without a grant.
    Left,
}

impl WatchEventName {
    /// Every name there is.
    pub const ALL: &[Self] =
        &[Self::Granted, Self::Queued, Self::Released, Self::Expired, Self::Revoked, Self::Left];

    /// The name, as it stands after `event:`.
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
    /// Those of the lease's keys that start with the prefix, in the order they were asked for.
    pub keys: Vec<WatchedKey>,
    /// The lease's token; `None` for one that waits, or left the queue.
    pub token: Option<Token>,
    /// Its public label.
    pub holder: Option<Holder>,
    /// How it ended or left; `None` for a grant, a place in the queue, and a wait that ran out.
    pub reason: Option<EndReason>,
}

/// A key of a lease that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedKey {
    /// The key.
    pub key: Key,
    /// How the lease holds it, held it, or wants it.
    pub mode: ModeName,
    /// With which limit.
    pub limit: Option<NonZeroU32>,
    /// The lowest token that may be alive on it after this change: every one below is dead.
    pub fence: Token,
}

/// The data of the event `cut-off`, the last of a watch that the node ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// Everything up to here was told.
    pub revision: Revision,
    /// Why the rest was not.
    pub reason: CutOffReason,
}

/// Why a node ends a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutOffReason {
    /// It was read so slowly that what comes next is no longer kept.
    TooSlow,
    /// The node, which had fallen behind, took over a state without the changes that led to it.
    StateReplaced,
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
    fn an_event_reads_back_as_it_was_written() {
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
            reason: Some(EndReason::Abandoned),
        };
        let written = json!({
            "revision": 7,
            "keys": [{ "key": "a", "mode": "shared", "limit": 3, "fence": 5 }],
            "token": 6,
            "holder": "me",
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
    fn a_name_is_the_same_in_json() {
        for &name in WatchEventName::ALL {
            assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
        }
    }
}
