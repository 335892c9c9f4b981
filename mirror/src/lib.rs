//! Publishes the fences of a cluster into a real Redis, for cheap reads in any language.
//!
//! One hash per key: `rev`, `fence`, `token`, `state`, `mode`, `holder`. Whoever reads `token < fence` there rejects, and is
//! right, however old the mirror is: a fence only rises. Anything else that is read, or nothing, says *unknown*.
//!
//! ```text
//!   lease table ──marks──▶ Source ◀── views of one applied table ──────┐
//!   (of the leader)          │ take_changed                            │
//!                            ▼                                         │
//!   Mirror::publish: dispatch, by slot                                 │
//!        │                                                             │
//!        ▼        one Master per Redis master, until this node leads no longer
//!   ┌─ pending ──▶ publish: state, revision and fence of each key ◀────┤
//!   │     ▲           │ fence.lua, pipelined                           │
//!   │     │           ▼                                                │
//!   │     │        Redis ──answers──▶ what stands ──▶ Mirror::stands   │
//!   │     │           │                                                │
//!   │     └──behind── sweep: what was read, beside the table ◀─────────┘
//!   │                 ▲   └──ahead──▶ who wrote that? ──▶ replaced, if nobody of us
//!   └──too many───────┘
//!                     watch: the marker, and evictions ──▶ all is due
//! ```
//!
//! **It can only under-report.** State, revision and fence of a key come from one applied table, and the script writes
//! nothing unless that revision is larger than the one that stands there. So it does not matter in which order writes
//! arrive, how often, or how late: one of a former leader that was stopped in the middle changes nothing. Frees write
//! `state=free` and never delete, so that an old write cannot come back to life behind them.
//!
//! **Unknown is not done.** A key leaves `pending` when Redis has said what stands. Whatever else happened to a write, it
//! is written again; every connection's end is followed by a comparison of everything. Nothing is repeated by the
//! client library, and every command ends within a second, so that a Redis that stopped is noticed.
//!
//! **Comparing is marking.** There is one way into a hash, `publish`. The sweep reads hashes and the table, and marks what
//! is behind as if it had changed just now: live keys that Redis does not have, and hashes that Redis calls held and the
//! table does not. It does so at full speed when Redis may have lost something (after connecting, when the marker is
//! missing, after evictions, when slots came from another master, after too many changes at once), and slowly all the time.
//!
//! **A slot that moves concerns its keys.** Those wait apart until it is served, and hold up neither the others nor the
//! connection.
//!
//! **What is ahead of the table** may be a newer leader's. The hash was read; *then* the cluster is asked for a revision R
//! by a linearizable read. What carries a revision above R was never written by this cluster: it is replaced, if it still
//! is what was read.
//!
//! **One Redis, one cluster.** A marker on each master names the cluster that has it, and changes with each of that
//! cluster's looks, twice a second. Another cluster does not publish there, and says so, until it has seen the marker
//! unchanged at eight looks in a row, two seconds apart; then it takes over, if the marker still is what it saw. A look
//! fails wherever Redis refuses writes, as the owner's beat does. A master without a marker goes to the cluster that looks first,
//! unless that one has found another cluster on any [master](owners) of this Redis: then it looks as often. The one
//! that was replaced finds that at its next look, and before its next write if it was paused. Where what it writes until
//! then has the lower revisions the script leaves it out; for where it has not, everything is compared once more 5 s
//! later.
//!
//! **Memory is bounded** while Redis is away: so many pending keys, then none and the word that all is due.
//!
//! A grant never waits here, unless its answer is to: [`Mirror::stands`].

mod answers;
mod connection;
mod due;
mod elder;
mod hash;
mod marker;
mod master;
mod mirror;
mod names;
mod owners;
mod pending;
mod publish;
mod purge;
mod redis_url;
mod settings;
mod source;
mod status;
mod sweep;
mod topology;

pub use elder::Elder;
pub use mirror::Mirror;
pub use purge::{PurgeError, purge};
pub use settings::{MirrorMode, Settings, SettingsError};
pub use source::{Changed, Identity, KeyState, Source, View};
pub use status::{MasterStatus, State, Status};
