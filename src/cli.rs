//! The command line: one file a command.

pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod inspect;
pub(crate) mod mirror;
pub(crate) mod serve;

use clap::{Parser, Subcommand};

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
    /// Look after the mirror in Redis
    #[command(subcommand)]
    Mirror(mirror::Command),
    /// Look at the data of a stopped node
    Inspect(inspect::Arguments),
}
