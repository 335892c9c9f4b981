//! The resource of Ringfence: storage that rejects stale holders.
//!
//! A lease cannot keep a paused holder from writing late; the resource can. It keeps one number, [`High`], with the
//! data: every token below it is dead. A holder shows its [`Claim`], and *atomically with the write*
//!
//! ```text
//!  token < high    nothing is written                        Admission::Stale
//!  otherwise       high = max(high, fence), and the write    Admission::Accepted
//! ```
//! The fence is the one that the grant or the renewal gave for the key. Several shared holders have the same fence, the
//! oldest live token among them, so that none shuts out another; an exclusive holder's fence is its token.
//!
//! Every backend has the same four verbs:
//!
//! - `touch` raises the number. A new holder touches **before its first read**: else a late write could land between
//!   what it reads and what it writes.
//! - The guarded writes check, raise and write in one step that nothing can come between.
//! - `high` reads the number.
//! - `reset` sets it, down as well, by an operator's hand: for a resource that was shown a number which was no token (a
//!   timestamp), and lets nobody in since. To the fence that the cluster gives for the key, never below.

mod claim;
mod file;
mod head;
mod high;
#[cfg(feature = "http")]
pub mod http;
mod known;
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
mod tasks;

pub use claim::{Claim, ClaimError};
pub use file::{Contents, GuardedFile};
pub use high::{Admission, High};
pub use memory::{GuardedKey, MemoryGuard, UnknownKey};
#[cfg(feature = "mirror")]
pub use mirror::{MirrorReader, MirrorVerdict};
#[cfg(feature = "tokio")]
pub use tasks::{AsyncGuard, AsyncGuardedKey, NotKnown, Written};
