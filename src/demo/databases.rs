//! Part 4, if Redis or PostgreSQL is installed: it compares the tokens itself and rejects A's late write. No node is
//! involved.

use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_client::{Key, Token};
use ringfence_guard::redis::RedisGuard;
use ringfence_guard::{Admission, Claim};
use rustix::process::geteuid;

use super::Demo;
use super::screen::Tone::{Bad, Good, Plain};
use crate::child::Child;
use crate::poll;

const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// The unprivileged user and group, for PostgreSQL, which refuses to run as root.
const NOBODY: u32 = 65_534;
/// The guard for PostgreSQL, as every user installs it.
const SQL: &str = include_str!("../../guard/sql/postgres.sql");

/// The writes of part 1: B's, then A's with a stale token.
#[derive(Clone, Debug)]
pub(super) struct LateWrite {
    pub(super) key: Key,
    /// Token and balance.
    pub(super) a: (Token, u64),
    pub(super) b: (Token, u64),
}

/// What a database did with both writes.
struct Outcome {
    /// Its answer to A.
    rejection: Option<String>,
    /// The balance where tokens are compared, and where they are not.
    guarded: u64,
    plain: u64,
}

impl Demo<'_> {
    pub(super) async fn a_late_write_reaches_databases(&mut self, dir: &Path) -> anyhow::Result<()> {
        let late = self.late.clone().context("part 1 did not run")?;
        let mut part = 3;
        let mut missing = Vec::new();
        match find("redis-server", &[]) {
            Some(program) => {
                part += 1;
                self.screen.title(&format!("{part}. The same late write, at Redis"))?;
                let outcome = at_redis(&program, dir, &late).await?;
                self.show("Redis", &late, &outcome)?;
            }
            None => missing.push("redis-server"),
        }
        let folders = postgres_folders();
        match ["initdb", "postgres", "psql"].map(|name| find(name, &folders)) {
            [Some(_), Some(_), Some(_)] if geteuid().is_root() && !nobody_can_enter(dir)? => {
                self.screen.text(&format!(
                    "\nPostgreSQL does not run as root, and the user `nobody` cannot enter\n{}.\n\
                     Run this as another user or set TMPDIR to see the same late write there.",
                    dir.parent().unwrap_or(dir).display()
                ))?;
            }
            [Some(initdb), Some(postgres), Some(psql)] => {
                part += 1;
                self.screen.title(&format!("{part}. The same late write, at PostgreSQL"))?;
                let outcome = at_postgres([&initdb, &postgres, &psql], dir, &late).await?;
                self.show("PostgreSQL", &late, &outcome)?;
            }
            _ => missing.push("PostgreSQL"),
        }
        if !missing.is_empty() {
            let servers = missing.join(" and ");
            self.screen.text(&format!("\nInstall {servers} to see the same late write there."))?;
        }
        Ok(())
    }

    fn show(&mut self, database: &str, late: &LateWrite, outcome: &Outcome) -> anyhow::Result<()> {
        let LateWrite { a: (a, by_a), b: (b, by_b), .. } = late;
        let Outcome { rejection, guarded, plain } = outcome;
        let rejected = rejection.is_some() && guarded == by_b && plain == by_a;
        let claim = format!("{database} itself rejected the late write. Unguarded, it took it.");
        self.checks.check(rejected, claim)?;
        self.screen.event(&format!(
            "B writes {by_b} with token {b}; then A writes {by_a} with token {a}.\n{}",
            rejection.as_deref().unwrap_or_default()
        ))?;
        self.screen.columns([
            ((Plain, "Guarded".to_owned()), (Plain, "Not guarded".to_owned())),
            ((Good, format!("A writes {by_a}: REJECTED")), (Bad, format!("A writes {by_a}: accepted"))),
            ((Good, format!("It holds {guarded}")), (Bad, format!("It holds {plain}"))),
        ])?;
        Ok(())
    }
}

/// Starts a Redis and writes to it through the guard's script, and past it.
async fn at_redis(program: &Path, dir: &Path, late: &LateWrite) -> anyhow::Result<Outcome> {
    let dir = dir.join("redis");
    std::fs::create_dir(&dir)?;
    let socket = dir.join("socket");
    let mut command = mortal(program, false);
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).arg("--dir").arg(&dir);
    let mut server = start(command, &dir.join("log"))?;
    let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
    let mut connection = poll::until(READY_TIMEOUT, "Redis did not become ready", async || {
        server.fail_if_ended("Redis")?;
        Ok(client.get_multiplexed_async_connection().await.ok())
    })
    .await?;

    let guard = RedisGuard::new(&late.key)?;
    let (guarded, plain) = (format!("{{{}}}:balance", late.key), format!("{}:plain", late.key));
    let mut rejection = None;
    for (token, balance) in [late.b, late.a] {
        let admission = guard.set(&mut connection, Claim::exclusive(token)?, &guarded, balance).await?;
        if let Admission::Stale { high } = admission {
            rejection =
                Some(format!("The script answers A: {{0, {high}}}: every token below {high} is dead."));
        }
        redis::cmd("SET").arg(&plain).arg(balance).exec_async(&mut connection).await?;
    }
    let (guarded, plain) = redis::cmd("MGET").arg(&guarded).arg(&plain).query_async(&mut connection).await?;
    Ok(Outcome { rejection, guarded, plain })
}

/// Starts a PostgreSQL and writes to it through `psql`, with the guard's functions and without.
async fn at_postgres(
    [initdb, postgres, psql]: [&Path; 3],
    dir: &Path,
    late: &LateWrite,
) -> anyhow::Result<Outcome> {
    let is_root = geteuid().is_root();
    let own = dir.join("postgres");
    std::fs::create_dir(&own)?;
    if is_root {
        chown(&own, Some(NOBODY), Some(NOBODY))?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711))?;
    }
    let data = own.join("data");
    let mut command = mortal(initdb, is_root);
    command.args(["--username=postgres", "--auth=trust", "--no-locale", "--no-sync", "-D"]).arg(&data);
    output(command).await.context("initdb")?;
    let mut command = mortal(postgres, is_root);
    command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"]).arg(&own).arg("-D").arg(&data);
    let mut server = start(command, &dir.join("postgres.log"))?;
    let run = async |sql: &str| {
        let mut command = Command::new(psql);
        command.args(["-XqAt", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-h"]).arg(&own);
        command.args(["-c", sql]).stdin(Stdio::null());
        output(command).await
    };
    poll::until(READY_TIMEOUT, "PostgreSQL did not become ready", async || {
        server.fail_if_ended("PostgreSQL")?;
        Ok(run("SELECT 1").await.ok())
    })
    .await?;

    run(SQL).await?;
    run("CREATE TABLE guarded (balance int); CREATE TABLE plain (balance int);\
         INSERT INTO guarded VALUES (100); INSERT INTO plain VALUES (100)")
    .await?;
    let key = late.key.as_str().replace('\'', "''");
    let mut rejection = None;
    for (token, balance) in [late.b, late.a] {
        let written = run(&format!(
            "BEGIN; SELECT ringfence.claim('{key}', {token}, {token}); UPDATE guarded SET balance = {balance}; COMMIT"
        ))
        .await;
        if let Err(error) = written {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default();
            rejection = Some(format!("It answers A: {}", first.trim_start_matches("ERROR:").trim()));
        }
        run(&format!("UPDATE plain SET balance = {balance}")).await?;
    }
    let balance = async |table: &str| {
        anyhow::Ok(run(&format!("SELECT balance FROM {table}")).await?.trim().parse::<u64>()?)
    };
    let outcome = Outcome { rejection, guarded: balance("guarded").await?, plain: balance("plain").await? };
    // A SIGKILL would leave its children behind for a moment, and they write to the folder that is removed next.
    let mut stop = mortal(&postgres.with_file_name("pg_ctl"), is_root);
    stop.args(["stop", "-m", "immediate", "-D"]).arg(&data);
    output(stop).await.context("pg_ctl")?;
    Ok(outcome)
}

/// A command that the kernel kills when this program ends.
fn mortal(program: &Path, as_nobody: bool) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if as_nobody {
        let id = NOBODY.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    command.arg(program).current_dir("/").stdin(Stdio::null());
    // Ctrl-C goes to the whole foreground group; this process ends its children itself.
    command.process_group(0);
    command
}

fn start(mut command: Command, log: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::create(log)?;
    command.stdout(log.try_clone()?).stderr(log);
    Child::start(command).context("cannot run setpriv")
}

/// Runs `command` and returns its standard output, or its standard error as the error. Killed if dropped.
async fn output(command: Command) -> anyhow::Result<String> {
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether the user `nobody` can pass every folder above `dir`. `dir` itself is opened to it later.
fn nobody_can_enter(dir: &Path) -> io::Result<bool> {
    for above in dir.canonicalize()?.ancestors().skip(1) {
        if above.metadata()?.permissions().mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Finds `program` in `folders`, then in the PATH.
fn find(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders.iter().cloned().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Where Debian installs PostgreSQL, newest version first.
fn postgres_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions.into_iter().map(|path| path.join("bin")).collect()
}
