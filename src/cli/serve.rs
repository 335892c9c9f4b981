//! `ringfence serve`: runs one node.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{ArgMatches, Args, FromArgMatches};
use ringfence_mirror::Mirror;
use ringfence_raft::StartError;

use crate::config::Config;
use crate::config::options::{self, Options};
use crate::ends::{self, Ends};
use crate::stderr::Stderr;
use crate::{child, logging, private, runtime, server, tls};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// TOML file with any of these options by name [default: none]
    #[arg(long, env = "RINGFENCE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Check the options, certificates and access rules, and exit, without starting the node
    #[arg(long)]
    check: bool,
    /// End when the parent process, which has this id, ends
    #[arg(long, hide = true, value_name = "PID")]
    die_with_parent: Option<i32>,
}

/// The exit status of a node that failed.
const FAILED: u8 = 1;
/// The exit status of a node that would not start at another attempt either. Invalid flags have it, too.
const REFUSED: u8 = 2;

/// Prints its own errors, as nobody may read standard error. `matches` are the flags and variables that `arguments` was made
/// from.
pub(crate) fn run(arguments: Arguments, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let stderr = Stderr::start().context("cannot start a thread")?;
    Ok(match serve(arguments, matches, &stderr) {
        Ok(()) => ExitCode::SUCCESS,
        Err((status, error)) => {
            stderr.print(format_args!("{error:#}"));
            ExitCode::from(status)
        }
    })
}

/// An error comes with the exit status.
fn serve(arguments: Arguments, matches: &ArgMatches, stderr: &Stderr) -> Result<(), (u8, anyhow::Error)> {
    let (check, die_with_parent) = (arguments.check, arguments.die_with_parent);
    let config = configure(arguments, matches, stderr).map_err(|error| (REFUSED, error))?;
    if check {
        return check_files(&config).map_err(|error| (REFUSED, error));
    }
    let run = || {
        die_with_parent.map(child::die_with_parent).transpose()?;
        runtime::block_on(server::run(config))?
    };
    run().map_err(|error| {
        let is_final = error.downcast_ref().is_some_and(StartError::is_final);
        (if is_final { REFUSED } else { FAILED }, error)
    })
}

/// Loads the files that a node would load. An error if a certificate has ended, too.
fn check_files(config: &Config) -> anyhow::Result<()> {
    let files = tls::Loaded::new(config)?.files();
    Ends::default().tell(&files);
    ends::check(&files)
}

fn configure(mut arguments: Arguments, matches: &ArgMatches, stderr: &Stderr) -> anyhow::Result<Config> {
    arguments.options = options::file(arguments.config.as_deref())?;
    // Sets what is in `matches`, and leaves the rest as in the file.
    arguments.update_from_arg_matches(matches)?;
    let options = arguments.options;
    logging::start(options.log.as_deref(), options.log_format.unwrap_or_default(), stderr)?;
    if let Some(file) = &arguments.config {
        tracing::info!(file = %file.display(), "settings are read from a file");
        private::warn_of_others(file, options.redis.is_some());
    }
    if options::shows_password(matches) {
        tracing::warn!(
            "every user of this machine can see the password in --redis: use RINGFENCE_REDIS or a file"
        );
    }
    let config = Config::from_options(options).map_err(name_variables)?;
    config.mirror.clone().map(Mirror::new).transpose()?;
    Ok(config)
}

/// Adds to a message that names options the variables that set them: unit files and manifests have those.
fn name_variables(error: anyhow::Error) -> anyhow::Error {
    let message = format!("{error:#}");
    let words = message.split([' ', ',', ':', ';', '(', ')', '`']);
    let mut variables: Vec<String> = Vec::new();
    for flag in words.filter_map(|word| word.strip_prefix("--")).filter(|flag| !flag.is_empty()) {
        let variable = format!("RINGFENCE_{}", flag.to_ascii_uppercase().replace('-', "_"));
        if !variables.contains(&variable) {
            variables.push(variable);
        }
    }
    if variables.is_empty() { error } else { anyhow!("{message} (as variables: {})", variables.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_variables_of_the_options_that_it_names() {
        let named = |text: &'static str| name_variables(anyhow!(text)).to_string();
        assert_eq!(
            named("use --tls-key and --access, or --tls-key"),
            "use --tls-key and --access, or --tls-key (as variables: RINGFENCE_TLS_KEY, RINGFENCE_ACCESS)"
        );
        assert_eq!(named("--peers: `a` is wrong"), "--peers: `a` is wrong (as variables: RINGFENCE_PEERS)");
        assert_eq!(named("nothing -- here"), "nothing -- here");
    }
}
