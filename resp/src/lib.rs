//! The Redis protocol, as far as lock libraries use it, over the leases of Ringfence.
//!
//! ```text
//!  bytes ─▶ frame ─▶ session ───────▶ work ─────────────▶ Service::transact
//!           one      who is it,       commands (verbs)    what was read ─▶ conditions ─▶ one command of the table
//!           request  what may it do   and scripts         what is left  ─▶ changes
//! ```
//! A Redis lock library sets a key, reads keys, and deletes or extends the key that it has set, with single commands, scripts, or MULTI and
//! EXEC. All of these run in the same way: on a copy of their keys ([`Transaction`](ringfence_service::Transaction)). If the keys that they
//! have read are still the same, the cluster does what they did to the copy; otherwise they run again.
//!
//! What this crate guarantees to clients, besides what the service does:
//!
//! - **Nothing is half done.** A request that is answered with an error has changed nothing, unless the error says that it may have been done.
//! - **No promise is broken.** A command that cannot do what it says is refused with a reason, never answered `OK`.
//! - **No web page speaks to it.** A request is an array of strings. A page can make a browser send lines of words, so these are only for `PING`
//!   and `QUIT`, and for `AUTH` as the first request.
//! - **A stranger causes no work.** A client without a right on any key can authenticate, and nothing else. Everything has a bound: requests
//!   (before memory is set aside for them), replies, steps and memory of scripts, commands behind MULTI, and the scripts that a node remembers.
//! - **Tokens go to holders and verifiers.** `RINGFENCE.TOKEN` needs the value, which is a secret of the principal that set it. Reading the
//!   fence of a key needs the right to read the key.

mod calls;
mod command;
mod door;
mod frame;
mod key_name;
mod measure;
mod refused;
mod refused_calls;
mod reply;
mod requester;
mod response;
mod scripts;
mod serve;
mod session;
mod verbs;
mod work;

pub use measure::METRICS;
pub use serve::Resp;
