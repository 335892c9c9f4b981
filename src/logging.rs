//! Log lines: to standard error, as text or JSON.

use std::io::IsTerminal;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::stderr::{self, Stderr};

const DEFAULT: &str = "info,openraft=error";
/// Says of each call to a node that is stopping, or has failed, that it failed. Its caller gets the error, and the node says why it stops.
const REPEATED: &str = "openraft::raft";

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging to `stderr` with `filter`: levels and `target=level` pairs.
pub(crate) fn start(filter: Option<&str>, format: LogFormat, stderr: &Stderr) -> anyhow::Result<()> {
    let filter = parse(filter.unwrap_or(DEFAULT))
        .context("--log must be a level (error, warn, info, debug, trace, off) or a list of target=level")?;
    // Whoever sees any line must see where others are missing.
    let filter =
        filter.with_target(stderr::TARGET, LevelFilter::WARN).with_target(REPEATED, LevelFilter::OFF);
    let lines = fmt::layer().with_writer(stderr.queue()).with_ansi(std::io::stderr().is_terminal());
    let layer = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .context("logging is already started")
}

fn parse(filter: &str) -> anyhow::Result<Targets> {
    // The parser takes an empty text for the level error.
    ensure!(filter.split(',').all(|item| !item.trim().is_empty()), "an item is empty");
    for item in filter.split(',').filter(|item| !item.contains('=')) {
        // The parser would take a misspelt level for a target, and disable all others.
        item.parse::<LevelFilter>().with_context(|| format!("`{item}` is not a level"))?;
    }
    Ok(filter.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_refused() {
        assert!(parse("info,openraft=error").is_ok());
        assert!(parse("off").is_ok());
        for wrong in ["", " ", "info,", ",", "inof", "info,opnraft", "openraft=loud"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
