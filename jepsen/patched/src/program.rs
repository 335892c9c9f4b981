//! The program under test, built from this workspace.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::workspace;

/// Builds `ringfence` from this workspace, and returns the path of the program.
pub fn build(release: bool) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace()?)
        .args(["build", "--quiet", "-p", "ringfence"])
        .args(release.then_some("--release"));
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(status.success(), "cannot build ringfence: {status}");
    let program = path(release)?;
    ensure!(program.is_file(), "cargo has built ringfence, but there is no {}", program.display());
    Ok(program)
}

/// Where [`build`] puts the program.
pub fn path(release: bool) -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(workspace()?.join(target).join(if release { "release" } else { "debug" }).join("ringfence"))
}
