//! The command line: one file a command.

pub(crate) mod backup;
pub(crate) mod calls;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod leases;
pub(crate) mod lock;
pub(crate) mod manual;
pub(crate) mod mirror;
pub(crate) mod output;
pub(crate) mod serve;
pub(crate) mod teller;
pub(crate) mod text;
pub(crate) mod wish;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::held;

/// A Raft-replicated lease service with fencing tokens.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one node
    Serve(Box<serve::Arguments>),
    /// Run a cluster of throw-away nodes on this machine
    Dev(dev::Arguments),
    /// Watch a stale writer being rejected and nodes being killed, on a cluster of its own
    Demo,
    /// One of the demo's writers
    #[command(hide = true)]
    DemoWriter(crate::demo::writer::Arguments),
    /// Run a command while a lease is held
    Lock(Box<lock::Arguments>),
    /// Take a lease, and leave renewing it to others
    Acquire(Box<leases::Acquire>),
    /// Renew a lease
    Renew(leases::Renew),
    /// Give a lease back, or leave the queue
    Release(leases::Release),
    /// Show who holds a key and who waits for it
    Get(keys::Get),
    /// List the keys that are held or waited for
    Ls(keys::List),
    /// Show changes as they come
    Watch(keys::Watch),
    /// Tell whether a token is dead
    Validate(keys::Validate),
    /// End somebody's lease
    Revoke(keys::Revoke),
    /// Look after a cluster
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Note how far a cluster has come, for one that is to take its place
    #[command(subcommand)]
    Backup(backup::Command),
    /// Print what a shell needs to complete these commands
    Completions(manual::Completions),
    /// Print a manual page
    Man(manual::Man),
    /// Look after the mirror in Redis
    #[command(subcommand)]
    Mirror(mirror::Command),
    /// Look at the data of a stopped node
    Inspect(inspect::Arguments),
    /// The command of `lock`, before it is that
    #[command(hide = true)]
    Become(held::r#become::Arguments),
    /// The parent of the command of `lock`
    #[command(hide = true)]
    Supervise(held::supervise::Arguments),
}

/// Says what is wrong with the arguments, or shows the help that was asked for.
pub(crate) fn refuse(error: &clap::Error) -> ExitCode {
    // Where nobody reads, the exit status tells it.
    let _ = error.print();
    let of_lock = std::env::args_os().nth(1).is_some_and(|command| command == "lock");
    match error.exit_code() {
        // Else it would be taken for COMMAND's.
        code if code != 0 && of_lock => ExitCode::from(lock::OWN_ERROR),
        code => ExitCode::from(u8::try_from(code).unwrap_or(1)),
    }
}
