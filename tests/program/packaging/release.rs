//! What the release script packages, from the debug build of the tests.

use std::path::Path;
use std::process::Command;

use super::{PROGRAM, deploy};

/// Runs a command that must succeed, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn release(out: &Path) -> String {
    let mut command = Command::new(deploy("release"));
    // A fresh clone has a commit, and an archive of the sources has none.
    command.args(["--binary", PROGRAM, "--out"]).arg(out).env("SOURCE_DATE_EPOCH", "1700000000");
    // Much faster.
    run(command.env("DPKG_DEB_COMPRESSOR_LEVEL", "0"))
}

#[test]
fn a_release_is_complete_and_the_same_each_time() {
    if !cfg!(target_arch = "x86_64") || Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("skipped: needs dpkg-deb, and a program for x86-64");
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    assert_eq!(release(&first), release(&second));
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&first));

    let name = concat!("ringfence-", env!("CARGO_PKG_VERSION"), "-x86_64-unknown-linux-gnu");
    run(Command::new("tar").arg("-xzf").arg(first.join(format!("{name}.tar.gz"))).arg("-C").arg(dir.path()));
    let unpacked = dir.path().join(name);
    let version = run(Command::new(unpacked.join("bin/ringfence")).arg("--version"));
    assert_eq!(version.trim(), concat!("ringfence ", env!("CARGO_PKG_VERSION")));
    for file in [
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "man/ringfence-cluster-add.1",
        "completions/_ringfence",
        "systemd/ringfence.service",
    ] {
        assert!(unpacked.join(file).exists(), "{file}");
    }

    let package = first.join(concat!("ringfence_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"));
    let files = run(Command::new("dpkg-deb").arg("-c").arg(&package));
    for file in [
        "usr/bin/ringfence",
        "etc/default/ringfence",
        "usr/lib/systemd/system/ringfence.service",
        "usr/share/man/man1/ringfence-lock.1.gz",
    ] {
        assert!(
            files.lines().any(|line| line.ends_with(&format!(" ./{file}"))),
            "{file} is not in:\n{files}"
        );
    }
    let depends = run(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Depends"));
    assert!(depends.starts_with("libc6 (>= 2."), "{depends}");
}
