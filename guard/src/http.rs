//! A guard for resources written over HTTP, by the headers `Ringfence-Key` (percent-encoded), `Ringfence-Token` and
//! `Ringfence-Fence` (by default the token). A dead token is answered 412 `stale-token`, a missing one 428
//! `token-required`, both as `application/problem+json`.
//!
//! **What a layer can guarantee.** A check before the handler is no guard: between the check and the handler's write, a
//! newer holder may touch and read. Nobody else may get in between, and how to ensure that depends on where the data is.
//!
//! - *In this process, or where only this process writes*: [`GuardLayer`]. It holds a lock for each key, from the check
//!   until the handler has answered.
//!
//!   ```text
//!    headers ─▶ whole body ─▶ key known? else ask ─▶ lock of the key ─▶ token ≥ high? ─▶ handler ─▶ answer, unlock
//!                             the cluster            (first come,       raise high     └─ even if the client is gone ─┘
//!                                                    first served)
//!   ```
//!   The body is read before the lock is taken: a client that stalls in the middle of it blocks nobody. The handler runs to
//!   its end even if its client disconnects: otherwise a write in progress could land after the unlock. When the handler
//!   answers, its write must be done or certain never to happen. A task left behind, a write that timed out, or a body that
//!   writes while it is sent is not covered. All claims on one key take turns, shared holders and their reads too, and
//!   a handler that never answers blocks its key for ever.
//! - *Elsewhere*, in a database that other processes write to as well: no layer can be right. The handler takes the
//!   [`claim`] from the headers and shows it in its own write (by the other guards of this crate), and answers [`Refused::stale`] if the write is rejected.
//!
//! **Reads.** A safe request (GET, HEAD, OPTIONS) without these headers passes freely. With them it is a *touch*: a new
//! holder's first read carries them, waits for a write in progress, and shuts out earlier holders before it reads.
//!
//! **Two processes at once are no guard**, each with numbers of its own: one replica, or the old version during a rolling
//! update, accepts what the other has shut out. Stop the old process before the new one takes
//! requests (in Kubernetes `strategy: Recreate`, or a StatefulSet of one), or let the database check, as above.
//!
//! **A restart** loses the numbers of a [`GuardLayer`], as of a [`MemoryGuard`](crate::MemoryGuard). It asks the
//! cluster for the fence of each key before it accepts anything for it, and answers 503 until it gets one.

mod headers;
mod layer;
mod refused;
mod target;

pub use headers::{FENCE, KEY, TOKEN, claim};
pub use layer::{GuardLayer, GuardService};
pub use refused::Refused;
pub use target::Target;
