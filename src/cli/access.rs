//! `ringfence access`: credentials and access rules.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use ringfence_access::{Credential, watch};
use ringfence_wire::{Access, PrincipalName};
use tempfile::NamedTempFile;

use crate::cli::client::{CREDENTIAL, Call};
use crate::cli::output;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a credential, and its digest for the access rules of the nodes
    Credential(New),
    /// Check a file of access rules
    Check(Check),
    /// Show who the nodes take this client for, and what it may do
    Show(Show),
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// Write the credential to this new file, which only its owner can read, and print the digest alone
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file to check
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    call: Call,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Credential(New { file }) => {
            let credential = Credential::generate().map_err(|error| anyhow!("no random numbers: {error}"))?;
            let digest = credential.digest();
            match file {
                None => output::print(&format!("{CREDENTIAL}={}\n{digest}\n", credential.reveal()))?,
                Some(file) => {
                    write(file, credential.reveal())
                        .with_context(|| format!("cannot write {}", file.display()))?;
                    output::print(&format!("{digest}\n"))?
                }
            };
        }
        Command::Check(Check { file }) => {
            watch(file.clone())?;
            output::print(&format!("{} is valid\n", file.display()))?;
        }
        Command::Show(Show { call }) => return call.print(text, async |client| Ok(client.access().await?)),
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, credential: &str) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Its mode is 0600, and nobody sees half of it under its name.
    let mut file = NamedTempFile::new_in(dir)?;
    writeln!(file, "{credential}")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    Ok(())
}

fn text(access: &Access) -> String {
    let Access { principal, allow, cluster, limits } = access;
    let mut text = format!("principal  {}\n", principal.as_ref().map_or("anonymous", PrincipalName::as_str));
    for allowed in allow {
        let _ = writeln!(text, "keys       {}: {}", allowed.keys, allowed.may.join(", "));
    }
    if !cluster.is_empty() {
        let _ = writeln!(text, "cluster    {}", cluster.join(", "));
    }
    if let Some(limit) = limits.leases {
        let _ = writeln!(text, "limit      {limit} leases");
    }
    if let Some(limit) = limits.waiting {
        let _ = writeln!(text, "limit      {limit} waiting leases");
    }
    if let Some(limit) = limits.lease_bytes {
        let _ = writeln!(text, "limit      {limit} bytes of leases");
    }
    if let Some(limit) = limits.requests_per_s {
        let _ = writeln!(text, "limit      {limit} requests per second to each node");
    }
    if let Some(limit) = limits.watches {
        let _ = writeln!(text, "limit      {limit} watches on each node");
    }
    text
}
