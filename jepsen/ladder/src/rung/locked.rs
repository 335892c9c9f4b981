//! `ringfence lock --postgres`: a program that knows neither locks nor tokens runs under a lease. Here it is `psql`, which reads and writes what
//! it is told to.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::postgres::{self, Database, quoted};
use super::ringfence::Running;
use crate::fault::Fault;
use crate::front::Front;
use crate::rung::{Family, GRANTED, Ground, Lock, PLAIN, Rung, Setting, Stage};
use crate::step::Answer;

/// How long the program may take for an access.
const PATIENT: Duration = Duration::from_secs(10);
/// The exit status of `ringfence lock --try` if another lease has the key.
const HELD: i32 = 75;

pub(super) const RUNGS: [Rung; 1] = [Rung {
    number: 22,
    name: "ringfence lock --postgres",
    plays: "ringfence lock KEY --postgres -- psql: the program knows neither locks nor tokens, and the table is protected by \
            connection.",
    family: Family::Locked,
    // A command needs so much.
    ttl: Duration::from_secs(2),
    renewed: true,
    ..PLAIN
}];

/// A holder's program, which is started by its acquire.
pub(super) struct Locked {
    command: Vec<String>,
    /// The lock's name, quoted.
    name: String,
    running: Option<Program>,
}

struct Program {
    lock: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Locked {
    /// A client, when the row is there.
    pub(super) async fn new(setting: &Setting) -> anyhow::Result<Self> {
        let [program, urls, database] = setting.servers.split('\n').collect::<Vec<_>>()[..] else {
            bail!("there are no such servers: {}", setting.servers);
        };
        let name = quoted(&setting.key);
        postgres::add_row(database, "SET session_replication_role = replica; ", &name).await?;
        let ttl = format!("{}ms", setting.ttl_ms);
        let words = [
            program,
            "lock",
            &setting.key,
            "--try",
            "--urls",
            urls,
            "--ttl",
            &ttl,
            "--holder",
            &setting.name,
        ];
        let under = ["--postgres", database, "--", "psql", "-qXAt", "-d", database];
        let command = words.into_iter().chain(under).map(str::to_owned).collect();
        Ok(Self { command, name, running: None })
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        self.running = None;
        let mut lock = Command::new(&self.command[0]);
        lock.args(&self.command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut lock = lock.kill_on_drop(true).spawn()?;
        let input = lock.stdin.take().context("its input is piped")?;
        let output = BufReader::new(lock.stdout.take().context("its output is piped")?).lines();
        let mut program = Program { lock, input, output };
        if program.ask("SELECT 'runs'", within).await? == Answer::Done {
            self.running = Some(program);
            return Ok(GRANTED);
        }
        let status = program.lock.wait().await?;
        ensure!(status.code() == Some(HELD), "it was not acquired: {status}");
        Ok(Answer::Held)
    }
}

impl Program {
    /// What it prints. No output means that it was ended.
    async fn ask(&mut self, sql: &str, within: Duration) -> anyhow::Result<Answer> {
        // One that was ended reads nothing any more.
        let _ = self.input.write_all(format!("{sql};\n\\echo :SQLSTATE\n").as_bytes()).await;
        let mut line = async || timeout(within, self.output.next_line()).await.context("it does not answer");
        let ended = || Answer::Rejected { why: "the program was ended".into() };
        let Ok(Some(first)) = line().await? else { return Ok(ended()) };
        Ok(match first.as_str() {
            "RF412" => Answer::Rejected { why: first },
            "runs" => line().await?.map(|_| Answer::Done)?,
            count => {
                let count = count.parse().with_context(|| format!("the program failed: {count}"))?;
                line().await?.map(|_| Answer::Read { count })?
            }
        })
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.lock.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(pid.map_or(Ok(()), |pid| kill_process(pid, signal))?)
    }
}

impl Lock for Locked {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.try_acquire(within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        let runs = self.running.as_mut().is_some_and(|program| matches!(program.lock.try_wait(), Ok(None)));
        Box::pin(std::future::ready(Ok(if runs { Answer::Alive } else { Answer::Lost })))
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            let Some(program) = self.running.take() else { return Ok(Answer::Lost) };
            program.signal(Signal::CONT)?;
            let Program { mut lock, input, .. } = program;
            drop(input);
            let status = timeout(within, lock.wait()).await.context("it does not end")??;
            Ok(if status.success() { Answer::Released } else { Answer::Lost })
        })
    }

    /// Nobody renews while it stands still, until the next access. A process of its own ends the program in time.
    fn stop_renewing(&mut self) {
        if let Some(program) = &self.running {
            // If it has ended, nothing is renewed either.
            let _ = program.signal(Signal::STOP);
        }
    }

    fn access(&mut self, write: Option<i64>) -> Option<BoxFuture<'_, anyhow::Result<Answer>>> {
        Some(Box::pin(async move {
            let program = self.running.as_mut().context("no program runs")?;
            program.signal(Signal::CONT)?;
            let name = &self.name;
            let Some(count) = write else {
                return program.ask(&format!("SELECT count FROM locks WHERE name = {name}"), PATIENT).await;
            };
            let update = format!("UPDATE locks SET count = {count} WHERE name = {name} RETURNING count");
            Ok(match program.ask(&update, PATIENT).await? {
                Answer::Read { count } => Answer::Written { count },
                answer => answer,
            })
        }))
    }
}

/// Three nodes, and the database of the programs.
pub(super) struct Guarded {
    program: String,
    nodes: Running,
    database: Database,
}

impl Guarded {
    pub(super) async fn start(rung: &Rung, fault: Fault, ground: &Ground) -> anyhow::Result<Self> {
        let program = ground.program.to_str().context("the path of the program is no text")?.to_owned();
        let guard = Command::new(&program).args(["guard", "postgres"]).kill_on_drop(true).output().await?;
        let why = String::from_utf8_lossy(&guard.stderr);
        ensure!(guard.status.success(), "ringfence guard postgres: {}: {why}", guard.status);
        let nodes = Running::start(fault, ground).await?;
        let database = Database::start(rung, fault).await?;
        database.ask(&String::from_utf8(guard.stdout)?).await?;
        database.ask("SELECT ringfence.protect('locks', '', 'name', by_connection => true)").await?;
        Ok(Self { program, nodes, database })
    }
}

impl Stage for Guarded {
    fn fronts(&self) -> Vec<&Front> {
        Vec::new()
    }

    fn servers(&self) -> String {
        [self.program.clone(), self.nodes.urls(), self.database.servers()].join("\n")
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move { Ok(self.nodes.inflict(fault).await?.0) })
    }

    fn count(&self, key: &str) -> BoxFuture<'_, anyhow::Result<Option<i64>>> {
        self.database.count(key)
    }
}
