//! Ringfence: a Raft-replicated lease service with fencing tokens. This is the program: its commands, and the wiring of
//! a node.

mod backup;
mod child;
mod cli;
mod config;
mod demo;
mod descriptors;
mod disk_space;
mod ends;
mod forever;
mod hangs;
mod job;
mod logging;
mod loop_lag;
mod measure;
mod memory;
mod mirror;
mod nodes;
mod poll;
mod predecessors;
mod private;
mod resp;
mod runtime;
mod server;
mod service_manager;
mod signals;
mod stderr;
mod tls;
mod watched_files;

use std::process::ExitCode;

/// The table makes many small allocations: +9% cycles per second over the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run().unwrap_or_else(|error| {
        eprintln!("ringfence: {error:#}");
        ExitCode::FAILURE
    })
}
