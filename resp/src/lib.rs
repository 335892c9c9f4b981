//! The Redis protocol, as far as lock libraries use it, over the leases of Ringfence.
//!
//! ```text
//!  bytes ─▶ frame ─▶ session ───────▶ work ─────────────▶ Service::transact
//!           one      who is it,       commands (verbs)    what was read ─▶ conditions ─▶ one command of the table
//!           request  what may it do   and scripts         what is left  ─▶ changes
//! ```
//! A lock library of Redis sets a key, looks at keys, and ends or extends what it has set, by single commands, scripts, or MULTI and
//! EXEC. All of these are the same here: they run on a copy of their keys ([`Transaction`](ringfence_service::Transaction)), and what they
//! make of it is done if what they have read still holds, or else they run again.
//!
//! What this crate guarantees to clients, besides what the service does:
//!
//! - **Nothing is half done.** A request that is answered with an error has changed nothing, but for one whose outcome is unknown.
//! - **Nothing is promised that is not kept.** What cannot be done is refused with a reason, never answered `OK`.
//! - **No web page speaks to it.** A request is an array of strings. Lines of words, which a browser can be made to send, are for `PING` and
//!   `QUIT`, and for `AUTH` before anything else.
//! - **A stranger causes no work.** Whoever has no right on any key can say who it is, and nothing else. Everything has a bound: requests
//!   before they are kept, replies, scripts (steps and memory), what is queued behind MULTI, and the scripts that are remembered.
//! - **Tokens go to holders and verifiers.** `RINGFENCE.TOKEN` wants the value, which is a secret of the principal that set it; the fence of a
//!   key wants the right to read it.

mod calls;
mod command;
mod frame;
mod key_name;
mod measure;
mod node;
mod refused;
mod reply;
mod request_log;
mod room;
mod script;
mod scripts;
mod serve;
mod session;
mod verbs;
mod work;

pub use measure::METRICS;
pub use serve::{Options, Resp};
