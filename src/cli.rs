//! The command line: one file per group of commands.

pub(crate) mod access;
pub(crate) mod acquire_options;
pub(crate) mod backup;
pub(crate) mod cert;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod dev;
pub(crate) mod guard;
pub(crate) mod hold;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod leases;
pub(crate) mod lock;
pub(crate) mod manual;
pub(crate) mod mirror;
pub(crate) mod output;
pub(crate) mod serve;
pub(crate) mod under_lease;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::options;
use crate::{demo, job};

/// A Raft-replicated lease service with fencing tokens.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node
    Serve(Box<serve::Arguments>),
    /// Run a temporary cluster on this machine, to try things out
    Dev(dev::Arguments),
    /// Show on a temporary cluster how a stale writer is rejected, and that no lease is lost when nodes are killed
    Demo,
    /// A writer process of the demo
    #[command(hide = true)]
    DemoWriter(demo::writer::Arguments),
    /// Run a command while holding a lease
    Lock(Box<lock::Arguments>),
    /// Take over a lease by its id, and renew it while a command runs, or until a signal
    Hold(Box<hold::Arguments>),
    /// Acquire a lease that is not renewed automatically
    Acquire(Box<leases::Acquire>),
    /// Renew a lease
    Renew(leases::Renew),
    /// Release a lease, or leave the queue
    Release(leases::Release),
    /// Show the holders and waiters of a key
    Get(keys::Get),
    /// List the keys that are held or waited for
    Ls(keys::List),
    /// Print changes of leases as they happen
    Watch(keys::Watch),
    /// Check whether a token is live or stale
    Validate(keys::Validate),
    /// End the lease of another client
    Revoke(keys::Revoke),
    /// Show and change the members of the cluster
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Save the cluster's revision, for a new cluster that replaces this one
    #[command(subcommand)]
    Backup(backup::Command),
    /// Make certificates for TLS
    #[command(subcommand)]
    Cert(cert::Command),
    /// Make credentials, and check access rules
    #[command(subcommand)]
    Access(access::Command),
    /// Print the file with which a store rejects stale writers
    Guard(guard::Arguments),
    /// Print a completion script for a shell
    Completions(manual::Completions),
    /// Print a manual page
    Man(manual::Man),
    /// Maintain the mirror in Redis
    #[command(subcommand)]
    Mirror(mirror::Command),
    /// Inspect the data of a stopped node
    Inspect(inspect::Arguments),
    /// Prepares a process for the command of `lock`
    #[command(hide = true)]
    Exec(job::exec::Arguments),
    /// The parent of the command of `lock`
    #[command(hide = true)]
    Supervise(job::supervisor::Arguments),
}

/// Parses the command line and runs the command.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut program = command();
    if let Some(variable) = empty_variable(&mut program) {
        let message = format!("{variable} is empty: give it a value, or unset it");
        return Ok(usage_error(&program.error(ErrorKind::InvalidValue, message)));
    }
    let parsed = program.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| {
        let arguments = Arguments::from_arg_matches(&matches);
        Ok((arguments.map_err(|error| error.format(&mut program))?, matches))
    });
    let (Arguments { command }, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return Ok(usage_error(&with_usage(error, &mut program))),
    };
    let done = |()| ExitCode::SUCCESS;
    // A node logs this itself.
    if !matches!(command, Command::Serve(_)) && options::shows_password(innermost(&matches)) {
        eprintln!("ringfence: every user of this machine can see the password in --redis while this runs");
    }
    match command {
        Command::Lock(arguments) => Ok(lock::run(&arguments)),
        Command::Hold(arguments) => Ok(hold::run(&arguments)),
        Command::Acquire(arguments) => leases::acquire(&arguments),
        Command::Renew(arguments) => leases::renew(&arguments),
        Command::Release(arguments) => leases::release(&arguments),
        Command::Get(arguments) => keys::get(&arguments),
        Command::Ls(arguments) => keys::list(&arguments),
        Command::Watch(arguments) => keys::watch(&arguments),
        Command::Validate(arguments) => keys::validate(&arguments),
        Command::Revoke(arguments) => keys::revoke(&arguments),
        Command::Cluster(command) => cluster::run(&command),
        Command::Backup(command) => backup::run(&command),
        Command::Cert(command) => cert::run(&command).map(done),
        Command::Access(command) => access::run(&command),
        Command::Guard(arguments) => guard::run(&arguments).map(done),
        Command::Completions(arguments) => manual::completions(&self::command(), &arguments).map(done),
        Command::Man(arguments) => manual::man(&self::command(), &arguments).map(done),
        Command::Exec(arguments) => job::exec::run(&arguments),
        Command::Supervise(arguments) => job::supervisor::run(&arguments).map(done),
        Command::Serve(arguments) => serve::run(*arguments, of_subcommand(&matches)),
        Command::Dev(arguments) => dev::run(&arguments).map(done),
        Command::Demo => demo::run(),
        Command::DemoWriter(arguments) => demo::writer::run(arguments).map(done),
        Command::Mirror(command) => mirror::run(command).map(done),
        Command::Inspect(arguments) => inspect::run(&arguments).map(done),
    }
}

/// The program. The help of each command that calls nodes tells of the credential, which is no option.
fn command() -> clap::Command {
    tell_of_credential(Arguments::command())
}

fn tell_of_credential(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(tell_of_credential);
    if !calls_nodes(&command) {
        return command;
    }
    let told = format!(
        "The client's credential, if the nodes have access rules, is read from the variable {}: everybody sees the arguments of a process.",
        client::CREDENTIAL
    );
    match command.get_after_help().map(ToString::to_string) {
        Some(help) => command.after_help(format!("{told}\n\n{help}")),
        None => command.after_help(told),
    }
}

fn calls_nodes(command: &clap::Command) -> bool {
    command.get_arguments().any(|argument| argument.get_env().is_some_and(|name| name == "RINGFENCE_URLS"))
}

/// The command that the first arguments name, as far as they do.
fn called(program: &mut clap::Command) -> &mut clap::Command {
    let mut command = program;
    for word in std::env::args_os().skip(1) {
        let Some(name) = word.to_str().filter(|name| command.find_subcommand(name).is_some()) else { break };
        command = command.find_subcommand_mut(name).expect("it was found");
    }
    command
}

/// The error with the usage of its command, without options that variables have set.
fn with_usage(mut error: clap::Error, program: &mut clap::Command) -> clap::Error {
    if error.get(ContextKind::Usage).is_some() {
        program.build();
        let usage = called(program).render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    error
}

/// The command that somebody means by this name, which no command has.
fn meant(name: &str) -> Option<&'static str> {
    Some(match name {
        "status" | "members" | "nodes" => "cluster status",
        "why" | "who" | "show" => "get KEY",
        "list" | "keys" => "ls",
        "top" => "ls --sort waiters",
        "version" => "--version",
        _ => return None,
    })
}

fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

/// A variable of the command that is called, if it is set and empty: a deployment forgot to fill it, probably. That is an error
/// for all variables alike, as for the values in a file.
fn empty_variable(program: &mut clap::Command) -> Option<String> {
    let command = &*called(program);
    let mut names: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_env()).collect();
    if calls_nodes(command) {
        names.push(client::CREDENTIAL.as_ref());
    }
    let empty = names.into_iter().find(|name| std::env::var_os(name).is_some_and(|value| value.is_empty()));
    empty.map(|name| name.to_string_lossy().into_owned())
}

fn of_subcommand(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().expect("clap requires a subcommand").1
}

/// Prints a usage error, or the help that was asked for.
fn usage_error(error: &clap::Error) -> ExitCode {
    // If this fails, the exit status still shows the error.
    let _ = error.print();
    let called = std::env::args_os().nth(1).unwrap_or_default();
    let (is_lock, is_hold) = (called == "lock", called == "hold");
    let meant = called.to_str().filter(|_| error.kind() == ErrorKind::InvalidSubcommand).and_then(meant);
    if let Some(meant) = meant {
        eprintln!("\nringfence: perhaps you mean: ringfence {meant}");
    }
    if error.kind() == ErrorKind::MissingRequiredArgument {
        if is_lock {
            eprintln!(
                "\nringfence: `--` goes between the keys and the command: ringfence lock orders/42 -- ./ship 42"
            );
        } else if is_hold {
            eprintln!("\nringfence: --max, --kill-after and --signal are for a command, after `--`");
        }
    }
    match error.exit_code() {
        // 2 would look like the status of COMMAND.
        code if code != 0 && (is_lock || is_hold) => ExitCode::from(under_lease::FAILED),
        code => ExitCode::from(u8::try_from(code).unwrap_or(1)),
    }
}
