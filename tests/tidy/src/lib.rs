//! Reads the source tree, and finds what breaks the rules of CONTRIBUTING.md. It links nothing of the product, so it is
//! built in seconds.
//!
//! `tests/repository.rs` runs every check on the repository. The unit tests of each check show, on invented files, that it can fail.

mod markdown;
mod modules;
mod rust;

pub mod circles;
pub mod crates;
pub mod links;
pub mod lists;
pub mod metrics;
pub mod paths;
pub mod settings;
pub mod sizes;
pub mod tour;
pub mod tree;
pub mod undeclared;
pub mod words;
