//! Who may do what: principals and their rights, from a file of TOML.
//!
//! ```toml
//! [principals.billing]
//! credentials = ["sha256:9f64a747e1b97f131fabb6b447296c9b6f0201e79fb3c5356e6c77e89b6a806a"]
//! certificates = ["dns:billing.example", "uri:spiffe://prod/billing"]
//! allow = [{ keys = "accounts/", may = ["acquire", "read"] }]
//!
//! [principals.prometheus]
//! certificates = ["dns:prometheus.example"]
//! cluster = ["metrics"]
//!
//! [anonymous]
//! allow = [{ keys = "=public/notice", may = ["read"] }]
//! ```
//! A request shows its principal by a *credential*, by a certificate, or by both; else it is *anonymous*. [`Rules`] tell who it
//! is, and a [`Principal`] what it may do. What is not allowed is denied.
//!
//! - **Credentials are random secrets of 256 bits**, of which the file has SHA-256 digests. A digest of so much randomness needs
//!   no slow hash: nobody can guess what it is of.
//! - **A pattern of keys is a whole subtree, one key, or all**: `team1/` covers `team1/a` and never `team10/a`.
//! - **Errors quote no values**: someone may have written a secret in the wrong place.
//! - The rules are those of one node, and stand in no replicated state: nodes whose files differ never differ in their
//!   tables.

mod credential;
mod error;
mod parse;
mod pattern;
mod principal;
mod rights;
mod rules;
mod watched;

pub use credential::{Credential, Digest};
pub use error::Error;
pub use principal::Principal;
pub use rights::{ClusterRight, KeyRight};
pub use rules::{Proof, Rules, Unidentified};
pub use watched::{Watched, watch};
