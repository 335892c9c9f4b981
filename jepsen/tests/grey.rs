//! The table of half-broken environments, by its program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn grey(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence-jepsen"));
    command.arg("grey").args(arguments).arg("--folder").arg(folder);
    command.output().expect("the program is built with the test")
}

fn program() -> PathBuf {
    let given = std::env::var_os("RINGFENCE_UNDER_TEST").map(PathBuf::from);
    given.unwrap_or_else(|| ringfence_patched::program::build(false).expect("cargo builds the tests, too"))
}

#[test]
#[ignore = "slow"]
fn a_row_is_measured_and_its_reports_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let program = program();
    let output = grey(folder.path(), &["--only", "leader-hangs", "--program", program.to_str().unwrap()]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.starts_with("leader-hangs"), "{output:?}");
    let text = std::fs::read_to_string(folder.path().join("grey.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = &report["rows"][0];
    assert!(row["observed"].is_string(), "{row:#}");
    // Whether two held the key at once cannot be told before somebody is granted it.
    for figure in ["no-grant", "no-renewal", "next-holder", "memory", "healed"] {
        assert!(
            row["promise"][figure].is_number() && row["measured"][figure].is_number(),
            "{figure}: {row:#}"
        );
    }
    assert!(std::fs::read_to_string(folder.path().join("grey.md")).unwrap().contains("| `leader-hangs` |"));
}

/// What starts nothing holds no promise.
#[test]
fn a_program_that_does_not_serve_makes_a_row_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let output = grey(folder.path(), &["--only", "leader-hangs", "--program", "/bin/true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_row_that_does_not_exist_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = grey(folder.path(), &["--only", "leader-dances", "--program", "/bin/true"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no row leader-dances"), "{output:?}");
}
