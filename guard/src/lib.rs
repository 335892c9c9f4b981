//! Guards for storage that rejects stale holders.
//!
//! A lease cannot keep a paused holder from writing late; the resource can. It keeps one number, [`High`], with the
//! data: every token below it is dead. A holder shows its [`Claim`], and *atomically with the write*
//!
//! ```text
//!  token < high    nothing is written                        Admission::Stale
//!  otherwise       high = max(high, fence), and the write    Admission::Accepted
//! ```
//! The fence is the one that the grant or the last renewal gave for the key. Shared holders have the same fence, the
//! oldest live token among them, so that none shuts out another; an exclusive holder's fence is its token.
//!
//! Every backend has the same four operations:
//!
//! - `touch` raises the number. A new holder touches **before its first read**: otherwise a late write could land between
//!   its read and its write.
//! - Guarded writes check, raise and write in one atomic step.
//! - `high` reads the number.
//! - `reset` sets it, down as well, by an operator: for a resource that was shown a number which was no token (a
//!   timestamp) and has rejected everybody since. Set it to the fence that the cluster gives for the key, never below.

#[cfg(feature = "tokio")]
mod async_guard;
mod cache;
#[cfg(any(unix, feature = "objects"))]
mod contents;
#[cfg(unix)]
mod file;
mod high;
#[cfg(feature = "http")]
pub mod http;
mod memory;
#[cfg(feature = "mirror")]
mod mirror;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

#[cfg(feature = "tokio")]
pub use async_guard::{AsyncGuard, AsyncGuardedKey, FenceError, Interrupted};
#[cfg(any(unix, feature = "objects"))]
pub use contents::Contents;
#[cfg(unix)]
pub use file::GuardedFile;
pub use high::{Admission, High};
pub use memory::{GuardedKey, MemoryGuard, UnknownKey};
#[cfg(feature = "mirror")]
pub use mirror::{MirrorReader, MirrorVerdict};
pub use ringfence_wire::{Claim, ClaimError, Key, Token};
