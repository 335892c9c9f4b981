//! Options and exit statuses of the commands that call a cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ringfence_client::{Client, Credential, Error, Tls};
use ringfence_wire::ProblemKind;
use serde::Serialize;

use crate::cli::output::Output;
use crate::config::options;
use crate::runtime;

/// Exit status: the lease was not acquired.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// Exit status: the lease was lost.
pub(crate) const LOST: u8 = 76;
/// How long a command waits for its last release before it exits: a little longer than the client repeats it, so that it asks
/// other nodes if one hangs, and waits for the election if that one led.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(6);
/// The variable with the client's credential. There is no option for it: everybody sees the arguments of a process.
pub(crate) const CREDENTIAL: &str = "RINGFENCE_CREDENTIAL";
/// The variable with the leases of all `lock` and `hold` that a process runs under: one TOKEN KEY per line.
pub(crate) const HELD: &str = "RINGFENCE_HELD";
/// A node with default options, and the nodes of `dev`.
const DEFAULT: [&str; 4] =
    ["http://127.0.0.1:7400", "http://127.0.0.1:7401", "http://127.0.0.1:7402", "http://127.0.0.1:7403"];

/// How to reach the cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// URLs of one or more nodes: https://HOST:PORT,… or http://HOST:PORT,… [default: http, 127.0.0.1, ports 7400 to 7403]
    #[arg(
        short,
        long = "urls",
        env = "RINGFENCE_URLS",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    urls: Vec<String>,
    /// TOML file to read `urls` from [default: none]
    #[arg(long, env = "RINGFENCE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// PEM file of the authorities that sign the nodes' certificates [default: those that this system trusts]
    #[arg(long, env = "RINGFENCE_AUTHORITY", value_name = "FILE")]
    authority: Option<PathBuf>,
    /// PEM file of a certificate, if the nodes require one of clients
    #[arg(long, env = "RINGFENCE_CERTIFICATE", value_name = "FILE", requires = "certificate_key")]
    certificate: Option<PathBuf>,
    /// PEM file of the private key of --certificate
    #[arg(long, env = "RINGFENCE_CERTIFICATE_KEY", value_name = "FILE", requires = "certificate")]
    certificate_key: Option<PathBuf>,
}

impl Connection {
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let urls = self.urls()?;
        if urls.is_empty() { self.client_of(&DEFAULT) } else { self.client_of(&urls) }
    }

    /// A client of other nodes, called in the same way.
    pub(crate) fn client_of(&self, urls: &[impl AsRef<str>]) -> anyhow::Result<Client> {
        let Self { authority, certificate, certificate_key, .. } = self;
        let secret = std::env::var(CREDENTIAL).ok();
        let credential = secret.map(|secret| Credential::new(&secret)).transpose().context(CREDENTIAL)?;
        let tls = Tls {
            authority: authority.clone(),
            certificate: certificate.clone(),
            key: certificate_key.clone(),
            credential,
        };
        Ok(Client::connect_with(urls, &tls)?)
    }

    /// Whether nodes are named, and not only those that are called by default.
    pub(crate) fn names_nodes(&self) -> anyhow::Result<bool> {
        Ok(!self.urls()?.is_empty())
    }

    /// Those that are set.
    fn urls(&self) -> anyhow::Result<Vec<String>> {
        if self.urls.is_empty() {
            Ok(options::file(self.config.as_deref())?.urls)
        } else {
            Ok(self.urls.clone())
        }
    }

    /// Adds to an error what may help: why these nodes were called, if the user named none, and where a credential comes from.
    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let remedy = match error.downcast_ref() {
            Some(Error::Unavailable { .. }) if self.urls().is_ok_and(|urls| urls.is_empty()) => {
                "no nodes were named (-u or RINGFENCE_URLS), so this called 127.0.0.1, ports 7400 to 7403"
            }
            Some(Error::Rejected(problem)) if problem.kind == ProblemKind::Unauthenticated => of_credential(),
            _ => return error,
        };
        anyhow!("{error:#}; {remedy}")
    }
}

/// The leases that this process runs under: one TOKEN KEY per line.
pub(crate) fn held() -> String {
    std::env::var(HELD).unwrap_or_default()
}

/// Where a credential comes from.
fn of_credential() -> &'static str {
    match std::env::var_os(CREDENTIAL) {
        Some(_) => "this showed the credential in RINGFENCE_CREDENTIAL",
        None if held().is_empty() => {
            "a credential goes into the variable RINGFENCE_CREDENTIAL, which is not set"
        }
        None => {
            "a credential goes into the variable RINGFENCE_CREDENTIAL, which `ringfence lock` and `hold` take away from their COMMAND: let \
             COMMAND set it again, as from a file"
        }
    }
}

/// A call to the cluster whose answer is printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Call {
    #[command(flatten)]
    connection: Connection,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,
}

impl Call {
    /// Runs `work` with a client.
    pub(crate) fn run(
        &self,
        work: impl AsyncFnOnce(Client) -> anyhow::Result<ExitCode>,
    ) -> anyhow::Result<ExitCode> {
        let called = runtime::block_on(async { work(self.connection.client()?).await })?;
        called.map_err(|error| self.connection.explain(error))
    }

    /// A client of other nodes, called in the same way.
    pub(crate) fn client_of(&self, urls: &[impl AsRef<str>]) -> anyhow::Result<Client> {
        self.connection.client_of(urls)
    }

    /// Makes one call and prints its answer, as JSON or as `text`.
    pub(crate) fn print<T: Serialize>(
        &self,
        text: fn(&T) -> String,
        call: impl AsyncFnOnce(Client) -> anyhow::Result<T>,
    ) -> anyhow::Result<ExitCode> {
        self.run(async |client| {
            self.output.print(&call(client).await?, text)?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_named_no_nodes_learns_which_were_called_and_how_to_name_them() {
        let named = |urls: &[&str]| Connection {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            config: None,
            authority: None,
            certificate: None,
            certificate_key: None,
        };
        let error = || anyhow!(Error::Unavailable { why: "refused".to_owned() });
        let told = named(&[]).explain(error()).to_string();
        assert!(told.contains("-u or RINGFENCE_URLS") && told.contains("refused"), "{told}");
        assert_eq!(named(&["http://a:1"]).explain(error()).to_string(), error().to_string());
    }
}
