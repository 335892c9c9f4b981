//! The words of Ringfence: what a client, a node and a storage backend say to each other.
//!
//! Everything here is data that has already been checked. A [`Key`] that exists is a legal key, a [`Ttl`] is in
//! range, an [`AcquireRequest`] names no key twice; so no room behind the door checks them again. Reading untrusted
//! JSON goes through [`from_json`], which names the field that was wrong as a client would write it
//! (`keys[3].limit`).
//!
//! Requests and answers have the shape that the HTTP API documents. The plain words ([`Key`], [`LeaseId`],
//! [`Token`], [`Mode`], [`Grant`] …) can also be encoded by position, for the log and for peers.

mod answers;
mod backup;
mod cluster;
mod event;
mod json;
mod key;
mod lease_id;
mod mode;
mod problem;
mod requests;
mod text;
mod time;
mod token;
mod watch;

pub use answers::{
    BatchAnswer, BatchBody, BatchResult, Blocker, Grant, GrantState, GrantedKey, HolderView, KeyList,
    KeyView, MirroredGrant, Verdict, VerdictName, VerdictsAnswer, WaiterView, Waiting, WaitingState,
};
pub use backup::Backup;
pub use cluster::{ClusterStatus, MemberStatus, Role};
pub use event::EndReason;
pub use json::{FieldError, from_json};
pub use key::{Key, KeyError};
pub use lease_id::{LeaseId, LeaseIdError};
pub use mode::{Mode, ModeName};
pub use problem::{Problem, ProblemKind};
pub use requests::{
    AcquireRequest, AddMemberRequest, BatchAcquire, BatchRelease, BatchRenew, BatchRequest, Check, Claim,
    MAX_BATCH, MAX_KEYS, Operation, RenewManyRequest, RenewRequest, RevokeRequest, TransferRequest,
    ValidateRequest,
};
pub use text::{Holder, Metadata};
pub use time::{MAX_TTL_MS, MAX_WAIT_MS, MIN_TTL_MS, Ttl, Wait};
pub use token::{Revision, Token};
pub use watch::{CutOff, CutOffReason, WatchEvent, WatchEventName, WatchedKey};
