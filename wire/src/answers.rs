//! What the cluster answers, as JSON says it.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{Holder, Key, LeaseId, Metadata, ModeName, Problem, Revision, Token};

/// A granted lease, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// Always `granted`.
    pub state: GrantState,
    /// The fencing token, the same for all its keys.
    pub token: Token,
    /// The public label.
    pub holder: Option<Holder>,
    /// The time-to-live, in milliseconds.
    pub ttl_ms: u32,
    /// How long it surely lives on, in milliseconds from when the request was sent; `None` in a local read.
    pub expires_in_ms: Option<u64>,
    /// The keys, in the order they were asked for.
    pub keys: Vec<GrantedKey>,
}

/// A [`Grant`] where grants are answered once their fences stand in the mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirroredGrant {
    /// The grant.
    #[serde(flatten)]
    pub grant: Grant,
    /// Whether they do; `false` where that took too long, or is not known.
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
    /// How it is held.
    pub mode: ModeName,
    /// With which limit.
    pub limit: Option<NonZeroU32>,
    /// The lowest token that may still be alive on it.
    pub fence: Token,
}

/// A lease that waits, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// Always `waiting`.
    pub state: WaitingState,
    /// How many earlier waiters stand before it in the longest of its queues. They are counted up to 100: 100 means that
    /// many or more.
    pub ahead: u64,
}

/// The `state` of a [`Waiting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitingState {
    /// `waiting`.
    Waiting,
}

/// A live lease that stands in the way of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// The key that it holds.
    pub key: Key,
    /// Its token.
    pub token: Token,
    /// Its public label.
    pub holder: Option<Holder>,
    /// How it holds the key.
    pub mode: ModeName,
    /// With which limit.
    pub limit: Option<NonZeroU32>,
    /// How long it lives on unless renewed, in milliseconds.
    pub expires_in_ms: u64,
}

/// What everybody may see of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// The key.
    pub key: Key,
    /// The lowest token that may still be alive.
    pub fence: Token,
    /// The revision of the state that this was read from.
    pub revision: Revision,
    /// Live leases, by token; of very many the oldest 100.
    pub holders: Vec<HolderView>,
    /// How many further leases hold it.
    #[serde(default)]
    pub more_holders: u64,
    /// The queue, first come first; of very many the first 100.
    pub waiters: Vec<WaiterView>,
    /// How many further leases wait for it.
    #[serde(default)]
    pub more_waiters: u64,
}

/// A live lease on a key, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// Its token.
    pub token: Token,
    /// Its public label.
    pub holder: Option<Holder>,
    /// How it holds the key.
    pub mode: ModeName,
    /// With which limit.
    pub limit: Option<NonZeroU32>,
    /// Its time-to-live, in milliseconds.
    pub ttl_ms: u32,
    /// How long it lives on unless renewed, in milliseconds; `None` in a local read.
    pub expires_in_ms: Option<u64>,
    /// What its holder wishes others to know.
    pub metadata: Metadata,
}

/// A waiter on a key, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterView {
    /// Its public label.
    pub holder: Option<Holder>,
    /// How it wants the key.
    pub mode: ModeName,
    /// How long it has waited, in milliseconds of cluster time.
    pub waited_ms: u64,
}

/// A page of keys that are held or waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyList {
    /// In the order of their bytes.
    pub keys: Vec<KeyView>,
    /// What to give as `after` for the next page; `None` at the end.
    pub next: Option<String>,
    /// The revision of the first page's view: watching from there leaves no gap.
    pub revision: Revision,
}

/// What is known of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictName {
    /// The token is dead for good.
    Stale,
    /// The lease lived at one instant of the call. Licenses no later write.
    Live,
    /// Not known to be dead. Never a reason to accept.
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

/// What a batch answers, in the order of its operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchAnswer {
    /// One per operation.
    pub results: Vec<BatchResult>,
}

/// The answer to one operation of a batch: what it would have been on its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchResult {
    /// The HTTP status that it would have had.
    pub status: u16,
    /// The body that it would have had; `None` for 204.
    pub body: Option<BatchBody>,
}

/// The body of one operation of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchBody {
    /// An acquire that succeeded, where grants wait for the mirror.
    Mirrored(Box<MirroredGrant>),
    /// An acquire or a renewal that succeeded.
    Grant(Box<Grant>),
    /// An acquire that keeps its place in the queue.
    Waiting(Waiting),
    /// Anything else.
    Problem(Box<Problem>),
}
