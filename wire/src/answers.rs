//! The bodies of responses.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{Holder, Key, LeaseId, Metadata, ModeName, PrincipalName, Problem, Revision, Token};

/// A granted lease, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// Always `granted`.
    pub state: GrantState,
    /// The fencing token, one for all keys.
    pub token: Token,
    /// The public label.
    pub holder: Option<Holder>,
    /// The time-to-live, in milliseconds.
    pub ttl_ms: u32,
    /// How long it certainly lives, in milliseconds from when the request was sent; `None` in a local read.
    pub expires_in_ms: Option<u64>,
    /// The keys, in the order of the request.
    pub keys: Vec<GrantedKey>,
}

/// A [`Grant`] from a cluster that answers grants once their fences are in the mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirroredGrant {
    /// The grant.
    #[serde(flatten)]
    pub grant: Grant,
    /// Whether they are; `false` if that took too long, fails, or is not known.
    pub mirrored: bool,
}

/// The `state` of a [`Grant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantState {
    /// `granted`.
    Granted,
}

/// One key of a granted lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedKey {
    /// The key.
    pub key: Key,
    /// Its mode.
    pub mode: ModeName,
    /// The limit of a shared mode.
    pub limit: Option<NonZeroU32>,
    /// The lowest token that may still be live on it.
    pub fence: Token,
}

/// A lease that waits, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// Always `waiting`.
    pub state: WaitingState,
    /// How many waiters are ahead in the longest of its queues, counted up to 100: 100 means 100 or more.
    pub ahead: u64,
}

/// The `state` of a [`Waiting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitingState {
    /// `waiting`.
    Waiting,
}

/// The public view of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// The key.
    pub key: Key,
    /// The lowest token that may still be live.
    pub fence: Token,
    /// The revision of the table that this was read from.
    pub revision: Revision,
    /// The live leases by token, at most the oldest 100.
    pub holders: Vec<HolderView>,
    /// How many more leases hold it.
    #[serde(default)]
    pub more_holders: u64,
    /// The queue, at most the first 100 waiters.
    pub waiters: Vec<WaiterView>,
    /// How many more leases wait for it.
    #[serde(default)]
    pub more_waiters: u64,
}

/// The public view of a live lease on a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// Its token.
    pub token: Token,
    /// Its public label.
    pub holder: Option<Holder>,
    /// Its mode on the key.
    pub mode: ModeName,
    /// The limit of a shared mode.
    pub limit: Option<NonZeroU32>,
    /// Its time-to-live, in milliseconds.
    pub ttl_ms: u32,
    /// How long it lives on unless renewed, in milliseconds; `None` in a local read.
    pub expires_in_ms: Option<u64>,
    /// Public data of its holder.
    pub metadata: Metadata,
    /// The principal that acquired it; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PrincipalName>,
    /// The first of the lease's other keys that the caller may read. Empty in a list of keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_keys: Vec<Key>,
    /// How many more keys the lease has, besides this one and `other_keys`. 0 in a list of keys.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_keys: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The public view of a waiter on a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterView {
    /// Its public label.
    pub holder: Option<Holder>,
    /// Its mode on the key.
    pub mode: ModeName,
    /// How long it has waited, in milliseconds of cluster time.
    pub waited_ms: u64,
    /// The principal that acquires it; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PrincipalName>,
}

/// A page of keys that are held or waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyList {
    /// The keys, in byte order.
    pub keys: Vec<KeyView>,
    /// The `after` for the next page; `None` on the last.
    pub next: Option<String>,
    /// The revision of the first page: a watch from there misses nothing.
    pub revision: Revision,
}

/// What is known about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictName {
    /// The token is dead for good.
    Stale,
    /// The lease was live at one instant of the call. This permits no later write.
    Live,
    /// Not known to be dead: the token was not granted yet, or a local read cannot tell. This is never a reason to accept.
    Unknown,
}

/// The verdict on one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What is known.
    pub verdict: VerdictName,
    /// The key's fence: every token below it is dead.
    pub fence: Token,
}

/// The answer to many checks, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictsAnswer {
    /// One per check.
    pub results: Vec<Verdict>,
}

/// The answer to a batch, in the order of its operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchAnswer {
    /// One per operation.
    pub results: Vec<BatchResult>,
}

/// The answer to one operation of a batch, the same as if it was sent alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchResult {
    /// Its HTTP status.
    pub status: u16,
    /// Its body; `None` for 204.
    pub body: Option<BatchBody>,
}

/// The body of one operation of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchBody {
    /// An acquire that was granted, if grants wait for the mirror.
    Mirrored(Box<MirroredGrant>),
    /// An acquire that was granted, or a renewal that succeeded.
    Grant(Box<Grant>),
    /// An acquire that has a place in the queue.
    Waiting(Waiting),
    /// Anything else.
    Problem(Box<Problem>),
}
