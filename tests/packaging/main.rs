//! The files of `deploy/` start the real program: in an image, under systemd, and in Kubernetes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod service_manager;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ringfence");
