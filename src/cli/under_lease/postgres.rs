//! `--postgres`: COMMAND's connections to PostgreSQL claim the keys by a setting, so that COMMAND need not know of tokens.
//!
//! Before COMMAND starts, the keys are touched by `psql`. It reads the variables, password files and certificates that COMMAND's own
//! connections read. Its setting takes the same way to the database, where it is compared: a pooler may drop it, and other options replace it.

mod proxy;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_client::Lease;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines, Take};
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::running::Outcome;
use super::{died_of, unless_signalled};
use crate::signals::Signals;
use crate::stderr::Stderr;
use proxy::{Proxy, Server};

/// The variable of libpq with the options of a connection.
const OPTIONS: &str = "PGOPTIONS";
/// How the claims stand there, as [`Lease::postgres_options`] has them.
const SETTING: &str = "-c ringfence.may_claim=";
/// How long the database may leave a question open.
const ANSWERS: Duration = Duration::from_secs(15);
/// The first and the longest pause between two looks at what a touch waits for.
const LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// How much of what `psql` prints is read.
const MOST: u64 = 1 << 16;
/// How a line begins that answers: psql prints warnings as well, as of the version of a collation.
const MARK: &str = "ringfence: ";
/// What encrypts the connection, and where it leads. Only `psql` knows its port and host.
const ENCRYPTED: &str = "SELECT 'ringfence: ' || CASE WHEN EXISTS (SELECT FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl) THEN 'TLS' \
    WHEN EXISTS (SELECT FROM pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted) THEN 'GSSAPI' ELSE 'nothing' END";
const WHERE: &str = "\\echo ringfence: :PORT :HOST";
/// Answers with nothing, at the end.
const DONE: &str = "SELECT 'ringfence: '";

/// Prints the backend. No limit of the database's own ends the wait, and nobody waits once `psql` is gone (PostgreSQL 14 and later).
const PREPARE: &str = "SELECT 'ringfence: ' || pg_backend_pid() FROM (SELECT count(set_config(name, value, false)) FROM pg_settings JOIN (VALUES \
    ('statement_timeout', '0'), ('lock_timeout', '0'), ('transaction_timeout', '0'), ('client_connection_check_interval', '1000'), \
    ('default_transaction_isolation', 'read committed')) AS s(name, value) USING (name)) AS done";

/// Access to PostgreSQL under the lease.
#[derive(Debug, Args)]
pub(crate) struct Postgres {
    /// Let COMMAND's connections to PostgreSQL claim the keys, after psql has touched them at URL [default: as PGHOST, PGDATABASE, … say]
    #[arg(long = "postgres", value_name = "URL", num_args = 0..=1, default_missing_value = "", value_parser = url, requires = "command")]
    url: Option<String>,
    /// Pass connections to 127.0.0.1:PORT on to PostgreSQL, with the claims: for a COMMAND whose connections take no options
    #[arg(long = "postgres-proxy", value_name = "PORT", requires = "url", value_parser = clap::value_parser!(u16).range(1..))]
    proxy: Option<u16>,
}

/// What COMMAND needs for its connections.
#[derive(Default)]
pub(super) struct Access {
    pub(super) variables: Vec<(&'static str, String)>,
    /// Serves it while this exists.
    pub(super) _proxy: Option<Proxy>,
}

/// A key after the option would be taken for it.
fn url(text: &str) -> Result<String, &'static str> {
    let is_url = text.is_empty() || text.starts_with("postgres://") || text.starts_with("postgresql://");
    if is_url { Ok(text.to_owned()) } else { Err("no postgres://… URL (a key stands before --postgres)") }
}

impl Postgres {
    pub(crate) fn is_wanted(&self) -> bool {
        self.url.is_some()
    }

    /// Touches the keys while the lease lives, if it is wanted. Continues with the access of the command, or breaks with what came between.
    pub(super) async fn touch(
        &self,
        lease: &Lease,
        signals: &mut Signals,
        stderr: &Stderr,
    ) -> anyhow::Result<ControlFlow<Outcome, Access>> {
        let Some(url) = &self.url else { return Ok(ControlFlow::Continue(Access::default())) };
        let inherited = match std::env::var(OPTIONS) {
            Ok(options) => options,
            Err(std::env::VarError::NotPresent) => String::new(),
            Err(error) => bail!("{OPTIONS}: {error}"),
        };
        let touched = lease.run(async {
            let options = merged(&inherited, &lease.postgres_options()?);
            let server = Database { url, options: &options }.touch(stderr).await?;
            Ok::<_, anyhow::Error>((options, server))
        });
        let (options, server) = match unless_signalled(signals, touched).await {
            Ok(Ok(touched)) => {
                touched.context("cannot touch the keys in PostgreSQL, so the command was not started")?
            }
            Ok(Err(lost)) => {
                stderr.print(format_args!("{lost}: the command was not started"));
                return Ok(ControlFlow::Break(Outcome::LeaseLost));
            }
            Err(signal) => {
                let status = died_of(signal);
                return Ok(ControlFlow::Break(Outcome::Exited { status, had_terminal: false }));
            }
        };
        let proxy = match self.proxy {
            Some(port) => {
                Some(Proxy::start(port, Server::of(server, url)?, claims_of(&options).to_owned(), lease)?)
            }
            None => None,
        };
        let in_url = utf8_percent_encode(&options, NON_ALPHANUMERIC).to_string();
        let variables = vec![("RINGFENCE_PGOPTIONS", in_url), (OPTIONS, options)];
        Ok(ControlFlow::Continue(Access { variables, _proxy: proxy }))
    }
}

/// The options that are there, with the claims of `own`. PostgreSQL takes the last of two settings: so the claims of an outer `lock` move to
/// the new one, unless their key has a newer claim.
fn merged(inherited: &str, own: &str) -> String {
    let Some((before, rest)) = inherited.rsplit_once(SETTING) else {
        return format!("{inherited} {own}").trim_start().to_owned();
    };
    let (outer, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let key = |claim: &str| claim.split('=').next().map(str::to_owned);
    let newer: BTreeSet<_> = own.trim_start_matches(SETTING).split(',').map(key).collect();
    let older = outer.split(',').filter(|claim| !claim.is_empty() && !newer.contains(&key(claim)));
    let claims = older.fold(own.to_owned(), |claims, claim| format!("{claims},{claim}"));
    format!("{before}{after} {claims}").trim_start().to_owned()
}

/// The claims in options that [`merged`] made.
fn claims_of(options: &str) -> &str {
    options.rsplit_once(SETTING).map_or("", |(_, claims)| claims)
}

/// Where COMMAND connects.
struct Database<'a> {
    /// Empty: by the variables alone.
    url: &'a str,
    options: &'a str,
}

impl Database<'_> {
    /// Returns what the last two statements say.
    async fn touch(&self, stderr: &Stderr) -> anyhow::Result<[String; 2]> {
        let mut psql =
            Psql::start(self, &[PREPARE, &self.check(), "CALL ringfence.touch_all()", ENCRYPTED, WHERE])?;
        let first = timeout(ANSWERS, psql.answer()).await.map_err(|_| silent())??;
        let backend: u32 = first.parse().context("psql does not say which backend it has")?;
        tokio::select! {
            done = async { Ok([psql.answer().await?, psql.answer().await?]) } => done,
            error = self.watch(backend, stderr) => Err(error),
        }
    }

    /// Fails if the connection claims something else: the touch would be of that. Options in a URL, and those of a role, may replace ours.
    fn check(&self) -> String {
        let hex: String = claims_of(self.options).bytes().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "DO $$ BEGIN IF NULLIF(current_setting('ringfence.may_claim', true), '') <> convert_from(decode('{hex}', 'hex'), 'UTF8') THEN \
             RAISE 'the connection has another ringfence.may_claim than PGOPTIONS: leave it out of the URL, and of ALTER ROLE and ALTER DATABASE'; \
             END IF; END $$"
        )
    }

    /// Says what the backend waits for, while it does. Completes once nothing has been seen of that for too long.
    async fn watch(&self, backend: u32, stderr: &Stderr) -> anyhow::Error {
        let (mut pause, mut seen, mut told) = (LOOKS[0], Instant::now(), String::new());
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LOOKS[1]);
            let looked = timeout(ANSWERS, self.blocking(backend)).await.unwrap_or_else(|_| Err(silent()));
            match looked {
                Ok(blocking) if !blocking.is_empty() => {
                    seen = Instant::now();
                    if told != blocking {
                        stderr.print(format_args!("the touch waits in PostgreSQL for {blocking}"));
                        told = blocking;
                    }
                }
                Ok(_) if seen.elapsed() > ANSWERS => return silent(),
                Err(error) if seen.elapsed() > ANSWERS => return error,
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Whose transactions are in the way, the first of them; empty if there are none.
    async fn blocking(&self, backend: u32) -> anyhow::Result<String> {
        let sql = format!(
            "SELECT '{MARK}' || CASE pid WHEN 0 THEN 'a prepared transaction (pg_prepared_xacts)' ELSE concat_ws(', ', 'backend ' || pid, \
             'of ' || usename, nullif(application_name, ''), 'from ' || host(client_addr), \
             'in a transaction since ' || date_trunc('second', xact_start)) END \
             FROM unnest(pg_blocking_pids({backend})) AS b(pid) LEFT JOIN pg_stat_activity USING (pid) LIMIT 3"
        );
        let mut psql = Psql::start(self, &[&sql, DONE])?;
        let mut blocking = Vec::new();
        loop {
            match psql.answer().await? {
                answer if answer.is_empty() => return Ok(blocking.join("; ")),
                answer => blocking.push(answer),
            }
        }
    }
}

/// A `psql` that runs, and what it prints, on either stream. Its exit status is not asked for: in a container, others may reap it.
struct Psql {
    lines: Lines<BufReader<Take<Receiver>>>,
    /// Killed when this is dropped.
    _child: Child,
}

impl Psql {
    fn start(database: &Database, statements: &[&str]) -> anyhow::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mut psql = Command::new("psql");
        psql.args([
            "--no-psqlrc",
            "--no-password",
            "-qAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-v",
            "VERBOSITY=default",
        ]);
        psql.args(statements.iter().flat_map(|statement| ["-c", statement]));
        if !database.url.is_empty() {
            psql.args(["-d", database.url]);
        }
        psql.env(OPTIONS, database.options).stdin(std::process::Stdio::null());
        // In a group of its own, so that Ctrl-C misses it: that is this program's to answer.
        psql.stdout(writer.try_clone()?).stderr(writer).process_group(0).kill_on_drop(true);
        let child = psql.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => anyhow!("there is no psql in the PATH"),
            _ => anyhow!("cannot start psql: {error}"),
        })?;
        let lines = BufReader::new(Receiver::from_owned_fd(OwnedFd::from(reader))?.take(MOST)).lines();
        Ok(Self { lines, _child: child })
    }

    /// The next answer. Without one, the error is all else that it printed: between answers, those are warnings.
    ///
    /// Applications choose their names: no control character reaches terminals.
    async fn answer(&mut self) -> anyhow::Result<String> {
        let mut told = Vec::new();
        // What is no UTF-8 ends it as well.
        while let Ok(Some(line)) = self.lines.next_line().await {
            let line = line.replace(char::is_control, " ");
            match line.strip_prefix(MARK) {
                Some(answer) => return Ok(answer.to_owned()),
                None => told.push(line),
            }
        }
        told.retain(|line| !line.trim().is_empty());
        bail!(told.join("; "))
    }
}

fn silent() -> anyhow::Error {
    anyhow!("the database has not answered for {} s", ANSWERS.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_exist_stay_and_claims_of_an_outer_lock_move_into_the_new_setting() {
        let own = "-c ringfence.may_claim=a=9,b=9";
        for (inherited, expected) in [
            ("", own.to_owned()),
            ("-c work_mem=1MB", format!("-c work_mem=1MB {own}")),
            ("-c ringfence.may_claim=c=7", format!("{own},c=7")),
            ("-c a.b=1 -c ringfence.may_claim=b=5,c=7 -c x.y=2", format!("-c a.b=1 -c x.y=2 {own},c=7")),
            ("-c ringfence.may_claim=", own.to_owned()),
        ] {
            assert_eq!(merged(inherited, own), expected, "{inherited}");
        }
    }

    #[test]
    fn a_key_after_the_option_is_not_taken_for_the_url() {
        assert!(url("").is_ok() && url("postgresql://h/d").is_ok() && url("postgres://").is_ok());
        assert!(url("accounts/42").is_err() && url("host=h").is_err());
    }
}
