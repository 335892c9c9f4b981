//! A guard for resources that are written over HTTP: the headers `Ringfence-Key` (percent-encoded), `Ringfence-Token` and
//! `Ringfence-Fence` (by default the token). A dead token is answered 412 `stale-token`, none at all 428
//! `token-required`, both as `application/problem+json`.
//!
//! **What a layer can promise.** A check in front of a handler is no guard: between the check and the handler's write, a
//! newer holder may touch and read. What makes it one is that nobody else gets between, and where that can be arranged
//! depends on where the data are.
//!
//! - *In this process, or where only this process writes*: [`GuardLayer`]. It keeps a lock for each key, from the check
//!   until the handler has answered.
//!
//!   ```text
//!    headers ─▶ whole body ─▶ lock of the key ─▶ known? else ask ─▶ token ≥ high? ─▶ handler ─▶ answer, unlock
//!                             (first come,        the cluster         raise high     └─ also if the client is gone ─┘
//!                              first served)
//!   ```
//!   The body is read before the lock is taken: a client that stops in the middle of it holds up nobody. The handler runs to
//!   its end though its client is gone: else a write that it had begun could land after the lock was free. What the
//!   handler has to keep to: when it answers, its write is done or certainly will not be. A task that it leaves behind,
//!   a write that it gave up waiting for, or a body that writes while it is sent, is not covered. All that shows a claim on
//!   one key takes turns, shared holders and their reads too, and a handler that never answers holds up its key for ever.
//! - *Elsewhere*, in a database that other processes write to as well: no layer can be right. The handler takes the
//!   [`claim`] from the headers and shows it in its own write (`… AND high <= :token`; the other guards of this
//!   crate), and answers with [`Refused::stale`] if that rejects it. It is then the database's write that counts.
//!
//! **Reads.** A safe request (GET, HEAD, OPTIONS) without these headers passes freely. With them it is a *touch*: a new
//! holder's first read carries them, waits for a write that is under way, and shuts out earlier holders before it reads.
//!
//! **Two processes at once are no guard**, each with numbers of its own: of several replicas, or of the old and the new one
//! while a new version is rolled out, one accepts what the other has shut out. Stop the old process before the new one takes
//! requests (in Kubernetes `strategy: Recreate`, or a StatefulSet of one), or let the database compare, as above.
//!
//! **A restart** empties the numbers of a [`GuardLayer`], as those of a [`MemoryGuard`](crate::MemoryGuard); it asks the
//! cluster for the fence of each key before it accepts anything for it, and answers 503 while it gets none.

mod headers;
mod layer;
mod refused;

pub use headers::{FENCE, KEY, TOKEN, claim};
pub use layer::{GuardLayer, GuardService};
pub use refused::Refused;
