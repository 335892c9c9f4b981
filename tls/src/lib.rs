//! TLS configurations from PEM files that may change while a node runs.
//!
//! [`Server`] is for the HTTP port, [`Client`] for its callers, and [`Peer`] for nodes among themselves. Each keeps rustls's
//! configurations of the files that it read last. [`Authorities`] are for a library that makes its own. This crate opens no socket, and has no task: its owner calls
//! [`Reload::look`] every 5 s, and once for a SIGHUP, from a thread that may block.
//!
//! - **Files are compared by content**, so a link that is swapped counts as a change, and a file that is touched does not.
//! - **A change counts when two looks agree**, because a file that is half written may look whole: an authority file that
//!   ends between two certificates is valid. A look *at once* needs no second one.
//! - **Files that are refused change nothing.** The configurations of the old ones stay, and [`Reload::refusal`] says why.
//! - **Nothing outlives its files.** New files make new configurations, which resume no session of the old ones.
//!   [`Server::trusts`] and [`Peer::verify`] tell whether a chain that was accepted before still is.
//! - **A chain of certificates is short**, so that nobody can have it verified for seconds.
//! - **No error quotes what a file contains**: it may be a private key. Of a certificate it tells whose it is, and when it ends.
//! - **An authority that has ended is trusted no more**, nor is one that has not begun: a look finds that, too.
//! - **Nothing that works is replaced by what does not yet, or no longer**: such files are refused until they begin.
//! - **What ends by itself is known to its user**: [`Reload::in_use`] lists the certificates with their ends.

mod authorities;
mod certificates;
mod chain;
mod client;
mod error;
mod files;
mod in_use;
mod names;
mod peer;
mod refused;
mod server;
mod trusted;
mod unrelated;
mod watched;

pub use authorities::Authorities;
pub use certificates::{expires, expires_after};
pub use client::Client;
pub use error::Error;
pub use files::{Content, Files};
pub use in_use::{InUse, Nearness, now, when};
pub use names::{Name, covers, names};
pub use peer::Peer;
pub use refused::{Refused, cut, cut_to, refuses_certificate};
pub use server::{Certificates, Server};
pub use unrelated::Unrelated;
pub use watched::{Look, Reload, Watched};

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::kx_group::{SECP256R1, X25519};

/// The cryptography of all configurations. A key exchange on P-384 costs a server four times as much CPU as on these two
/// curves, and a stranger can ask for it for free. All clients support these two.
fn provider() -> Arc<CryptoProvider> {
    let ring = rustls::crypto::ring::default_provider();
    Arc::new(CryptoProvider { kx_groups: vec![X25519, SECP256R1], ..ring })
}
