//! What all commands that call a cluster have in common.

use std::path::PathBuf;

use clap::Args;
use ringfence_client::Client;

use crate::config;

/// Where `dev` has its nodes, and a node that was told nothing.
const DEFAULT: [&str; 4] =
    ["http://127.0.0.1:7400", "http://127.0.0.1:7401", "http://127.0.0.1:7402", "http://127.0.0.1:7403"];

/// How the cluster is reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// Nodes of the cluster, some of them are enough: http://HOST:PORT,… [default: a node on this machine, or those of dev]
    #[arg(short, long = "urls", env = "RINGFENCE_URLS", value_name = "LIST", value_delimiter = ',')]
    urls: Vec<String>,
    /// TOML file that may say `urls = ["http://HOST:PORT", …]` [default: ./ringfence.toml, if there is one]
    #[arg(long, env = "RINGFENCE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Connection {
    /// A client of the cluster.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        if !self.urls.is_empty() {
            return Ok(Client::connect(&self.urls)?);
        }
        let urls = config::file(self.config.as_deref())?.urls;
        Ok(if urls.is_empty() { Client::connect(DEFAULT)? } else { Client::connect(urls)? })
    }
}
