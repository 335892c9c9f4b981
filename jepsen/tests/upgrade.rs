//! A rolling upgrade runs to its end, and is judged.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::PathBuf;

use ringfence_jepsen::upgrade::{Course, UpgradeOptions, old, run_upgrades};
use ringfence_patched::program;

/// From the older program, if somebody has built it; otherwise from the program itself.
#[tokio::test]
async fn nodes_are_upgraded_one_by_one_and_no_call_of_the_client_library_fails() {
    let given = std::env::var_os("RINGFENCE_UNDER_TEST").map(PathBuf::from);
    let new = given.unwrap_or_else(|| program::build(false).unwrap());
    let store = tempfile::tempdir().unwrap();
    let options = UpgradeOptions {
        old: old::built(old::BEFORE_RULES, false).unwrap_or_else(|| new.clone()),
        early: new.clone(),
        new,
        courses: vec![Course::Roll],
        rounds: 1,
        seed: 1,
        rate: 50,
        store: store.path().to_owned(),
    };
    let mut out = Vec::new();
    let code = run_upgrades(&options, &mut out).await.unwrap();
    let out = String::from_utf8(out).unwrap();
    // In so short a run, not every law is exercised.
    assert!(code != 1 && !out.contains("missing"), "{out}");
    assert!(out.contains("9 restarts"), "{out}");
}
