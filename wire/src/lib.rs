//! The types that clients, nodes and storage backends of Ringfence exchange.
//!
//! Every value is checked: a [`Key`] is valid, a [`Ttl`] is in range. What a type alone cannot express (no key twice in an
//! [`AcquireRequest`]) is checked once, by `check()`, where the request is read. Untrusted JSON goes through
//! [`from_json`], whose errors name the field as a client would write it (`keys[3].limit`).
//!
//! Requests and responses have the shape that the HTTP API documents. The basic types ([`Key`], [`LeaseId`], [`Token`],
//! [`Mode`], [`Grant`] …) also have a compact binary encoding, for the log and for peers.

mod access;
mod address;
mod answers;
mod backup;
mod claim;
mod cluster;
mod event;
mod header;
mod json;
mod key;
mod lease_id;
mod list;
mod mode;
mod problem;
mod requests;
mod text;
mod time;
mod token;
mod wanted_key;
mod watch;

pub use access::{Access, AllowedKeys, Limits};
pub use address::{check_peer_address, is_loopback, is_unspecified};
pub use answers::{
    BatchAnswer, BatchBody, BatchResult, Grant, GrantState, GrantedKey, HolderView, KeyList, KeyView,
    MirroredGrant, Verdict, VerdictName, VerdictsAnswer, WaiterView, Waiting, WaitingState,
};
pub use backup::Backup;
pub use claim::{Claim, ClaimError};
pub use cluster::{CertificateStatus, ClusterStatus, FilesRefused, MemberStatus, Role, RulesRange, Upgraded};
pub use event::{ChangeName, ChangedKey, EndReason};
pub use header::{CLUSTER_HEADER, FENCE_HEADER, KEY_HEADER, LEADER_HEADER, TOKEN_HEADER, WITHIN_HEADER};
pub use json::{FieldError, from_json};
pub use key::{Key, KeyError};
pub use lease_id::{LeaseId, LeaseIdError};
pub use mode::{Mode, ModeName};
pub use problem::{Blocker, Problem, ProblemKind};
pub use requests::{
    AcquireRequest, AddMemberRequest, BatchAcquire, BatchRelease, BatchRenew, BatchRequest, Check, MAX_BATCH,
    Operation, RenewManyRequest, RenewRequest, RevokeRequest, TransferRequest, UpgradeRequest,
    ValidateRequest,
};
pub use text::{Holder, Metadata, PrincipalName};
pub use time::{MAX_TTL_MS, MAX_WAIT_MS, MIN_TTL_MS, Ttl, Wait};
pub use token::{Revision, Token};
pub use wanted_key::{MAX_KEYS, WantedKey};
pub use watch::{CutOff, CutOffReason, WatchEvent, WatchEventName, WatchedKey};
