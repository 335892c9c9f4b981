//! `ringfence demo`: a stale writer on a real cluster, verified as it is printed.
//!
//! 1. A writer is paused past the end of its lease while another one works. A file that checks tokens rejects its late
//!    write. A file that does not check them accepts it, and the other writer's write is lost.
//! 2. The leader is killed, and 3. all nodes are: the next token is still larger, and no lease is lost.
//!
//! Nothing is simulated. Nodes and writers are processes, file contents are read back, and the summary lists only claims
//! that were checked in this run.

mod accounts;
mod checks;
mod killed_nodes;
mod paused_writer;
mod screen;
pub(crate) mod writer;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use ringfence_client::{Client, Consistency, Error, Grant, LeaseId, LeaseView, Lock, Token};

use self::checks::Checks;
use self::screen::Screen;
use crate::nodes::{Log, Node, Nodes, Ports};
use crate::runtime;
use crate::signals::Signals;

const NODES: u16 = 3;
/// The ttl of leases that must outlive the demo.
const LONG_TTL: Duration = Duration::from_secs(600);
/// Longer than an election takes on a busy machine. The client gives up after 5 s.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

struct Demo<'a> {
    nodes: &'a mut Nodes,
    client: Client,
    screen: Screen,
    checks: Checks,
    /// Leases that must survive every kill.
    live: Vec<(LeaseId, Token)>,
}

/// Runs the demo on a temporary cluster. It succeeds if every claim was verified.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let mut stop = Signals::stop()?;
        let dir = tempfile::Builder::new().prefix("ringfence-demo-").tempdir()?;
        let ports = Ports::reserve(NODES)?;
        // Small tokens are easier to read, and safe here: every guard is removed at the end.
        let variables = vec![("RINGFENCE_FIRST_REVISION", "1".into())];
        let mut nodes = Nodes::new(NODES, ports.base, dir.path(), variables, Log::Files)?;
        // In every case, drop order ends the writers, then the nodes, and then removes the data.
        let played = tokio::select! {
            played = play(&mut nodes, dir.path()) => played,
            signal = stop.next() => {
                let number = u8::try_from(signal.as_raw()).unwrap_or(0);
                return Ok(ExitCode::from(128 + number));
            }
        };
        match played {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // The reader of standard output is gone.
            Err(error) if is_broken_pipe(&error) => Ok(ExitCode::FAILURE),
            // If a node exited, that is the cause.
            Err(error) => nodes.fail_if_ended().and(Err(error)),
        }
    })?
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Starts the nodes and runs all parts, with files in `dir`. An error names the claim that failed.
async fn play(nodes: &mut Nodes, dir: &Path) -> anyhow::Result<()> {
    let screen = Screen::new();
    screen.title("Ringfence: a lease cannot keep a paused writer out. A number can.")?;
    nodes.start()?;
    nodes.ready().await?;
    let client = Client::connect(nodes.all().iter().map(Node::url))?;
    let mut demo = Demo { nodes, client, screen, checks: Checks::default(), live: Vec::new() };
    demo.introduction()?;
    demo.a_writer_is_paused(dir).await?;
    demo.the_leader_is_killed().await?;
    demo.all_nodes_are_killed().await?;
    demo.summary()
}

impl Demo<'_> {
    fn introduction(&self) -> anyhow::Result<()> {
        let pids: Vec<String> =
            self.nodes.all().iter().filter_map(Node::pid).map(|pid| pid.to_string()).collect();
        Ok(self.screen.text(&format!(
            "A cluster of three nodes is running: processes {}.\n\n\
             Two files hold the balance of account 42. The guarded file stores the highest\n\
             fence it has seen and checks the token of every write against it. The other\n\
             file trusts every writer that has acquired a lease.",
            pids.join(", ")
        ))?)
    }

    fn summary(&self) -> anyhow::Result<()> {
        self.screen.title(&format!("Verified in this run, in {:.1} s", self.screen.elapsed_s()))?;
        for claim in self.checks.verified() {
            self.screen.claim(claim)?;
        }
        Ok(self.screen.text(
            "\nNext: `ringfence dev` keeps three nodes running and prints curl commands to try.\n\
             README.md lists what is guaranteed and what is not.\n",
        )?)
    }

    /// Acquires `key` with a lease that outlives the demo.
    async fn acquire(&mut self, holder: &str, key: &str) -> anyhow::Result<Token> {
        let grant = acquire(self.client.lock(key).holder(holder).ttl(LONG_TTL)).await?;
        self.live.push((grant.lease_id, grant.token));
        Ok(grant.token)
    }
}

/// Acquires, through changes of the leader. Nothing renews or releases the lease.
async fn acquire(lock: Lock) -> anyhow::Result<Grant> {
    let began = Instant::now();
    loop {
        match lock.clone().no_renew().acquire().await {
            Err(Error::Unavailable { .. } | Error::Unknown { .. }) if began.elapsed() < ACQUIRE_TIMEOUT => {}
            lease => {
                let lease = lease?;
                let grant = lease.grant();
                lease.into_id();
                return Ok(grant);
            }
        }
    }
}

/// A granted lease, as the cluster has it.
async fn granted(client: &Client, lease_id: LeaseId) -> anyhow::Result<Grant> {
    match client.lease(lease_id, Consistency::Linearizable).await? {
        LeaseView::Granted(grant) => Ok(*grant),
        LeaseView::Waiting(_) => bail!("lease {lease_id} is not granted"),
    }
}
