//! `ringfence serve`: runs one node.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches};
use ringfence_mirror::Mirror;

use crate::config::Config;
use crate::config::options::{self, Options};
use crate::{child, logging, runtime, server};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// TOML file with any of these options by name [default: ./ringfence.toml, if it exists]
    #[arg(long, env = "RINGFENCE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Check the options and exit, without starting the node
    #[arg(long)]
    check: bool,
    /// End when the parent process, which has this id, ends
    #[arg(long, hide = true, value_name = "PID")]
    die_with_parent: Option<i32>,
}

/// `matches` are the flags and variables that `arguments` was made from.
pub(crate) fn run(mut arguments: Arguments, matches: &ArgMatches) -> anyhow::Result<()> {
    arguments.options = options::file(arguments.config.as_deref())?;
    // Sets what is in `matches`, and leaves the rest as in the file.
    arguments.update_from_arg_matches(matches)?;
    let Arguments { options, check, die_with_parent, .. } = arguments;
    logging::start(options.log.as_deref(), options.log_format.unwrap_or_default())?;
    let config = Config::from_options(options)?;
    if check {
        return Ok(config.mirror.map(Mirror::new).transpose().map(drop)?);
    }
    if let Some(parent) = die_with_parent {
        child::die_with_parent(parent)?;
    }
    runtime::block_on(server::run(config))?
}
