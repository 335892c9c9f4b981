//! Publishes a cluster's fences to Redis, for cheap reads in any language.
//!
//! One hash per key: `rev`, `fence`, `token`, `state`, `mode`, `holder`. A reader that finds `token < fence` rejects the
//! token, and is right however old the mirror is: a fence only increases. In all other cases, also if there is no hash, the
//! token is *unknown*.
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
//! matter: those of a former leader that was paused midway change nothing. When a key becomes free, its hash gets
//! `state=free` and is never deleted, so an old write cannot make the key look held again.
//!
//! **A write whose outcome is unknown is repeated.** A key leaves `Work` only when Redis has replied what its hash now
//! holds. After any other outcome it is written again, and every disconnect is followed by a full comparison. The client
//! library retries nothing, and every command times out after a second, so that a Redis that hangs is noticed.
//!
//! **The sweep only marks keys.** `publish` writes the hashes. The sweep reads hashes and the table, and marks keys that
//! are behind as changed: live keys that Redis lacks, and hashes that say `held` for a free key. It runs at full speed
//! when Redis may have lost something (after connecting, after a missing marker, after evictions, for slots that moved
//! here, after an overflow of changed keys), and slowly all the time.
//!
//! **A moving slot delays only its own keys.** They are kept apart until the slot is served.
//!
//! **A hash ahead of the table** may come from a newer leader. After reading the hash, the sweep gets a revision R by a
//! linearizable read. This cluster never wrote a revision above R, so such a hash is replaced, provided that it still
//! holds what was read.
//!
//! **One Redis, one cluster.** A marker on each master names its owner, the cluster that publishes there. The owner's
//! leader updates the marker twice a second. Another cluster does not publish there, and reports that, until it has
//! found the marker unchanged in eight checks in a row, two seconds apart. Then it takes over, if the marker still is
//! what it saw. A check fails wherever Redis refuses writes, because the owner cannot update the marker either. The
//! first cluster that checks a master without a marker becomes its owner, unless it has found another cluster on any
//! [master](owners) of this Redis: then it needs eight checks, too. A replaced cluster notices at its next check, and
//! before its next write if it was paused. The script drops those of its late writes that have lower revisions; because
//! of the others, everything is compared again 5 s later.
//!
//! **Memory is bounded** while Redis is down: too many queued keys are dropped in favour of a full comparison.
//!
//! A grant waits for the mirror only if that is configured: [`Mirror::wait_published`].

mod connection;
mod hash;
mod marker;
mod master;
mod measure;
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
pub use measure::METRICS;
pub use mirror::Mirror;
pub use purge::{PurgeError, purge};
pub use settings::{MirrorMode, Settings, SettingsError};
pub use source::{Changed, Identity, KeyState, Source, View};
pub use status::{MasterStatus, State, Status};
