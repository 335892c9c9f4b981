//! Ringfence: a Raft-replicated lease service with fencing tokens. The program: its commands, and what wires the rooms
//! together.

mod backup;
mod child;
mod cli;
mod config;
mod demo;
mod descriptors;
mod disk_space;
mod duties;
mod held;
mod logging;
mod loop_lag;
mod measured;
mod nodes;
mod poll;
mod private;
mod server;
mod stop;

use std::process::ExitCode;

use clap::Parser;

/// Small allocations dominate here: +9% cycles per second over the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("RINGFENCE_MUTANT") {
        if let Err(error) = ringfence_mutant::choose(&name) {
            eprintln!("ringfence: {error}");
            return ExitCode::FAILURE;
        }
        eprintln!(
            "ringfence: THIS PROGRAM IS WRONG ON PURPOSE ({name}): nothing that it says can be relied on"
        );
    }
    let done = |()| ExitCode::SUCCESS;
    let arguments = match cli::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return cli::refuse(&error),
    };
    let result = match arguments.command {
        cli::Command::Lock(arguments) => Ok(cli::lock::run(&arguments)),
        cli::Command::Acquire(arguments) => cli::leases::acquire(&arguments),
        cli::Command::Renew(arguments) => cli::leases::renew(&arguments),
        cli::Command::Release(arguments) => cli::leases::release(&arguments),
        cli::Command::Get(arguments) => cli::keys::get(&arguments),
        cli::Command::Ls(arguments) => cli::keys::list(&arguments),
        cli::Command::Watch(arguments) => cli::keys::watch(&arguments),
        cli::Command::Validate(arguments) => cli::keys::validate(&arguments),
        cli::Command::Revoke(arguments) => cli::keys::revoke(&arguments),
        cli::Command::Cluster(command) => cli::cluster::run(&command),
        cli::Command::Backup(command) => cli::backup::run(&command),
        cli::Command::Completions(arguments) => cli::manual::completions(&arguments).map(done),
        cli::Command::Man(arguments) => cli::manual::man(&arguments).map(done),
        cli::Command::Become(arguments) => held::r#become::run(&arguments),
        cli::Command::Supervise(arguments) => held::supervise::run(&arguments).map(done),
        cli::Command::Serve(arguments) => cli::serve::run(*arguments).map(done),
        cli::Command::Dev(arguments) => cli::dev::run(&arguments).map(done),
        cli::Command::Demo => cli::demo::run(),
        cli::Command::DemoWriter(arguments) => cli::demo::write(arguments).map(done),
        cli::Command::Mirror(command) => cli::mirror::run(command).map(done),
        cli::Command::Inspect(arguments) => cli::inspect::run(&arguments).map(done),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ringfence: {error:#}");
            ExitCode::FAILURE
        }
    }
}
