//! Publishes a cluster's fences to Redis, for cheap reads in any language.
//!
//! One hash per key: `rev`, `fence`, `token`, `state`, `mode`, `holder`. A reader that finds `token < fence` rejects the
//! token, and is right however old the mirror is: a fence only rises. Any other reading, also none, means *unknown*.
//!
//! ```text
//!   lease table ──changed keys──▶ Source ◀── views of one applied table ──┐
//!   (of the leader)                 │ take_changed                        │
//!                                   ▼                                     │
//!   Mirror::publish: dispatch, by slot                                    │
//!        │                                                                │
//!        ▼        one Master per Redis master, one Session per connection │
//!   ┌─ Work ──▶ publish: state, revision and fence of each key ◀──────────┤
//!   │    ▲         │ fence.lua, pipelined                                 │
//!   │    │         ▼                                                      │
//!   │    │       Redis ──answers──▶ what the hash holds ──▶ Waiters       │
//!   │    │         │                                                      │
//!   │    └─behind─ sweep: compares hashes with the table ◀────────────────┘
//!   │                ▲   └─ahead──▶ who wrote it? ──▶ replaced, unless this cluster did
//!   └──overflow──────┘
//!                    watch: marker and evictions ──▶ resync
//! ```
//!
//! **The mirror can only under-report.** State, revision and fence of a key come from one applied table, and the script
//! writes a hash only if that revision is larger than the stored one. So the order, number and delay of writes do not
//! matter: those of a former leader that was paused midway change nothing. A free sets `state=free` and never deletes the
//! hash, so an old write cannot bring the key back to life.
//!
//! **Unknown is not done.** A key leaves `Work` only when Redis has answered what its hash now holds. After any
//! other outcome it is written again, and every disconnect is followed by a full comparison. The client library retries
//! nothing, and every command times out after a second, so that a Redis that hangs is noticed.
//!
//! **Comparing is marking.** Hashes are written by `publish`. The sweep reads hashes and the table, and marks keys that
//! are behind as changed: live keys that Redis lacks, and hashes that Redis calls held and the table does not. It runs at
//! full speed when Redis may have lost something (after connecting, after a missing marker, after evictions, for slots
//! that moved here, after an overflow of changed keys), and slowly all the time.
//!
//! **A moving slot delays its own keys only.** They wait apart until the slot is served.
//!
//! **A hash ahead of the table** may come from a newer leader. After reading the hash, the sweep gets a revision R by a
//! linearizable read. This cluster never wrote a revision above R, so such a hash is replaced, provided that it still
//! holds what was read.
//!
//! **One Redis, one cluster.** A marker on each master names its cluster, whose leader changes it twice a second. Another
//! cluster does not publish there, and says so, until it has found the marker unchanged in eight checks in a row, two
//! seconds apart; then it takes over, if the marker still is what it saw. A check fails wherever Redis refuses writes, as
//! the owner's updates do. A master without a marker goes to the first cluster that checks it, unless that one has found another
//! cluster on any [master](owners) of this Redis: then it needs as many checks. A replaced cluster notices at
//! its next check, and before its next write if it was paused. The script drops its late writes where they have the lower
//! revisions; for the others, everything is compared once more 5 s later.
//!
//! **Memory is bounded** while Redis is away: too many queued keys are dropped for a full resync.
//!
//! A grant never waits here, unless its answer is configured to: [`Mirror::wait_published`].

mod connection;
mod hash;
mod marker;
mod master;
mod mirror;
mod names;
mod owners;
mod publish;
mod purge;
mod redis_url;
mod session;
mod settings;
mod source;
mod status;
mod sweep;
mod topology;
mod waiters;
mod work;

pub use marker::Marker;
pub use mirror::Mirror;
pub use purge::{PurgeError, purge};
pub use settings::{MirrorMode, Settings, SettingsError};
pub use source::{Changed, Identity, KeyState, Source, View};
pub use status::{MasterStatus, State, Status};
