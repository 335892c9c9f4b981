//! The files of `deploy/` start the real program: in an image, under systemd, and in Kubernetes.

mod image;
mod kubernetes;
mod manifests;
mod release;
mod service_manager;
mod start;
mod yaml;

use std::path::{Path, PathBuf};

use crate::support::PROGRAM;

/// A file or folder of `deploy/`.
fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

/// The text of a file of `deploy/`.
fn text(path: &str) -> String {
    std::fs::read_to_string(deploy(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}
