//! The last acts, where these servers are installed: A's late write again, at a Redis and at a PostgreSQL that compare
//! tokens themselves. No node is asked.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use redis::aio::MultiplexedConnection;
use ringfence_guard::redis::RedisGuard;
use ringfence_guard::{Admission, Claim};
use ringfence_wire::{Key, Token};
use rustix::process::geteuid;
use tokio::time::{sleep, timeout};

use super::Demo;
use super::screen::Tone::{Bad, Good, Plain};
use crate::child::Child;

/// How long a server may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// The user and group without rights. PostgreSQL does not run as root.
const NOBODY: u32 = 65_534;
/// The rule for PostgreSQL, as any writer installs it.
const SQL: &str = include_str!("../../guard/sql/postgres.sql");

/// A's write that comes after B's, as in the first act.
#[derive(Clone, Debug)]
pub(super) struct LateWrite {
    pub(super) key: Key,
    /// A's token, which is dead, and what A writes.
    pub(super) a: (Token, u64),
    /// B's, which is live.
    pub(super) b: (Token, u64),
}

/// What became of both writes.
struct Outcome {
    /// What the database said to A.
    said: Option<String>,
    /// What it holds, where tokens are compared and where they are not.
    guarded: u64,
    plain: u64,
}

impl Demo<'_> {
    pub(super) async fn a_late_write_reaches_databases(&mut self, dir: &Path) -> anyhow::Result<()> {
        let late = self.late.clone().context("the first act was not played")?;
        let mut number = 3;
        let mut missing = Vec::new();
        match found("redis-server", &[]) {
            Some(program) => {
                number += 1;
                self.screen.title(&format!("{number}. The same late write, at Redis"))?;
                let dir = dir.join("redis");
                std::fs::create_dir(&dir)?;
                let outcome = at_redis(&program, &dir, &late).await?;
                self.show("Redis", &late, &outcome)?;
            }
            None => missing.push("redis-server"),
        }
        let folders = newest_first(Path::new("/usr/lib/postgresql"));
        let programs = ["initdb", "postgres", "psql"].map(|name| found(name, &folders));
        match programs {
            [Some(_), Some(_), Some(_)] if geteuid().is_root() && !lets_nobody_in(dir)? => {
                self.screen.text(&format!(
                    "\nPostgreSQL does not run as root, and the user `nobody` cannot enter\n{}.\n\
                     As another user, or with another TMPDIR, this goes on: the same late write there.",
                    dir.parent().unwrap_or(dir).display()
                ))?;
            }
            [Some(initdb), Some(postgres), Some(psql)] => {
                number += 1;
                self.screen.title(&format!("{number}. The same late write, at PostgreSQL"))?;
                let outcome = at_postgres([&initdb, &postgres, &psql], dir, &late).await?;
                self.show("PostgreSQL", &late, &outcome)?;
            }
            _ => missing.push("PostgreSQL"),
        }
        if !missing.is_empty() {
            let servers = missing.join(" and ");
            self.screen
                .text(&format!("\nWith {servers} installed, this goes on: the same late write there."))?;
        }
        Ok(())
    }

    fn show(&mut self, database: &str, late: &LateWrite, outcome: &Outcome) -> anyhow::Result<()> {
        let ((a, by_a), (b, by_b)) = (late.a, late.b);
        let said = outcome.said.as_deref().unwrap_or("nothing");
        let rejected = outcome.said.is_some() && outcome.guarded == by_b && outcome.plain == by_a;
        let claim = format!("{database} itself rejected the late write; unguarded it took it.");
        self.claims.check(rejected, claim)?;
        self.screen.event(&format!(
            "B writes {by_b} with token {b}; then A writes {by_a} with token {a}.\n{said}"
        ))?;
        self.screen.text("")?;
        for (left, right) in [
            ((Plain, "Guarded".to_owned()), (Plain, "Not guarded".to_owned())),
            ((Good, format!("A writes {by_a}: REJECTED")), (Bad, format!("A writes {by_a}: it lands"))),
            ((Good, format!("It holds {}", outcome.guarded)), (Bad, format!("It holds {}", outcome.plain))),
        ] {
            self.screen.columns(left, right)?;
        }
        Ok(())
    }
}

/// Plays it on a Redis that is started for it, with the guard's script.
async fn at_redis(program: &Path, dir: &Path, late: &LateWrite) -> anyhow::Result<Outcome> {
    let socket = dir.join("socket");
    let mut command = mortal(program, false);
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).arg("--dir").arg(dir);
    let mut server = start(command, &dir.join("log"))?;
    let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
    let connection = async || client.get_multiplexed_async_connection().await.ok();
    let mut connection = ready(&mut server, "Redis", connection).await?;

    let guard = RedisGuard::new(&late.key)?;
    let (guarded, plain) = (format!("{{{}}}:balance", late.key), format!("{}:plain", late.key));
    let mut said = None;
    for (token, balance) in [late.b, late.a] {
        let admission = guard.set(&mut connection, Claim::exclusive(token)?, &guarded, balance).await?;
        if let Admission::Stale { high } = admission {
            said = Some(format!("The script says to A: {{0, {high}}}: every token below {high} is dead."));
        }
        redis::cmd("SET").arg(&plain).arg(balance).exec_async(&mut connection).await?;
    }
    let mut get = async |name: &str| number(&mut connection, name).await;
    Ok(Outcome { said, guarded: get(&guarded).await?, plain: get(&plain).await? })
}

async fn number(connection: &mut MultiplexedConnection, name: &str) -> redis::RedisResult<u64> {
    redis::cmd("GET").arg(name).query_async(connection).await
}

/// Plays it on a PostgreSQL that is started for it, with the guard's functions, by `psql`.
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
    let mut made = mortal(initdb, is_root);
    made.args(["--username=postgres", "--auth=trust", "--no-locale", "--no-sync", "-D"]).arg(&data);
    finished(ends(made).await?).context("initdb")?;
    let mut command = mortal(postgres, is_root);
    command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"]).arg(&own).arg("-D").arg(&data);
    let mut server = start(command, &dir.join("postgres.log"))?;
    let run = async |sql: &str| {
        let mut command = Command::new(psql);
        command.args(["-XqAt", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-h"]).arg(&own);
        command.args(["-c", sql]).stdin(Stdio::null());
        ends(command).await
    };
    let answers = async || run("SELECT 1").await.ok().filter(|output| output.status.success());
    ready(&mut server, "PostgreSQL", answers).await?;

    finished(run(SQL).await?)?;
    finished(
        run("CREATE TABLE guarded (balance int); CREATE TABLE plain (balance int);\
                  INSERT INTO guarded VALUES (100); INSERT INTO plain VALUES (100)")
        .await?,
    )?;
    let key = late.key.as_str().replace('\'', "''");
    let mut said = None;
    for (token, balance) in [late.b, late.a] {
        let claimed = run(&format!(
            "BEGIN; SELECT ringfence.claim('{key}', {token}, {token}); UPDATE guarded SET balance = {balance}; COMMIT"
        ))
        .await?;
        if let Err(error) = finished(claimed) {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default();
            said = Some(format!("It says to A: {}", first.trim_start_matches("ERROR:").trim()));
        }
        finished(run(&format!("UPDATE plain SET balance = {balance}")).await?)?;
    }
    let get = async |table: &str| -> anyhow::Result<u64> {
        Ok(finished(run(&format!("SELECT balance FROM {table}")).await?)?.trim().parse()?)
    };
    let outcome = Outcome { said, guarded: get("guarded").await?, plain: get("plain").await? };
    // In order: its processes would write into the folder a little longer.
    let mut stop = mortal(&postgres.with_file_name("pg_ctl"), is_root);
    stop.args(["stop", "-m", "immediate", "-D"]).arg(&data);
    finished(ends(stop).await?).context("pg_ctl")?;
    Ok(outcome)
}

/// A command that is killed when this program ends, without rights if it is to be without.
fn mortal(program: &Path, without_rights: bool) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if without_rights {
        let id = NOBODY.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    command.arg(program).current_dir("/").stdin(Stdio::null());
    // Ctrl-C in the terminal reaches the whole group; this process ends its children itself.
    command.process_group(0);
    command
}

fn start(mut command: Command, log: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::create(log)?;
    command.stdout(log.try_clone()?).stderr(log);
    Child::start(command).context("cannot run setpriv")
}

/// Runs it to its end, and kills it if that is not waited for.
async fn ends(command: Command) -> std::io::Result<Output> {
    tokio::process::Command::from(command).kill_on_drop(true).output().await
}

/// Whether the user without rights can get to what is in `dir`, which is made passable for it: all above it are.
fn lets_nobody_in(dir: &Path) -> std::io::Result<bool> {
    for above in dir.canonicalize()?.ancestors().skip(1) {
        if above.metadata()?.permissions().mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits until `look` gives something.
async fn ready<T>(server: &mut Child, name: &str, look: impl AsyncFn() -> Option<T>) -> anyhow::Result<T> {
    let looks = async {
        loop {
            if let Some(status) = server.ended()? {
                bail!("{name} has ended ({status})");
            }
            match look().await {
                Some(seen) => return Ok(seen),
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(READY_WITHIN, looks).await.with_context(|| format!("{name} is not ready in time"))?
}

/// What it printed; what it complained of, if it failed.
fn finished(output: Output) -> anyhow::Result<String> {
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", complaint.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Where `program` is: in `folders`, or in the PATH.
fn found(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders.iter().cloned().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The `bin` of each version in `folder`.
fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions.into_iter().map(|path| path.join("bin")).collect()
}
