//! Libraries in C that are loaded into a process before the C library, and change what the system tells it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

/// Compiles `source` to the library `to`, unless that exists. An error where there is no C compiler.
pub(crate) fn compile(source: &str, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let (text, built) = (to.with_extension("c"), to.with_extension("new"));
    std::fs::write(&text, source)?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-shared", "-fPIC", "-o"]).arg(&built).arg(&text).arg("-ldl");
    let output = cc.output().context("needs a C compiler, cc")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(std::fs::rename(built, to)?)
}
