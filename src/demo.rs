//! The story that this project exists for, played on a cluster of its own and checked as it is told.
//!
//! 1. A writer is paused past the end of its lease while another one works. Its late write is rejected by a file that
//!    checks tokens; in a file that does not it destroys what the other one wrote.
//! 2. The leader is killed, and 3. all nodes are: the next token is still larger, and no lease is lost.
//! 4. The late write is made again at a Redis and a PostgreSQL that compare tokens, where they are installed.
//!
//! Nothing is acted. Nodes and writers are processes, what is said of the files was read from them, and each claim
//! of the summary was found true in this run.

mod accounts;
mod claims;
mod client;
mod databases;
mod killed_nodes;
mod paused_writer;
mod screen;
pub(crate) mod writer;

use std::path::Path;

use ringfence_wire::{LeaseId, Token};

use self::claims::Claims;
use self::client::Client;
use self::databases::LateWrite;
use self::screen::Screen;
use crate::nodes::{Node, Nodes};

/// The time-to-live of the leases that are to outlast the demo, in milliseconds.
const LONG_MS: u32 = 600_000;

/// The cluster, and what has been seen of it so far.
struct Demo<'a> {
    nodes: &'a mut Nodes,
    client: Client,
    screen: Screen,
    claims: Claims,
    /// The leases that must be found again as they are.
    live: Vec<(LeaseId, Token)>,
    /// The write of the first act that came too late.
    late: Option<LateWrite>,
}

/// Plays it on `nodes`, which have not been started; `dir` is for the files of the story. An error says what was not so.
pub(crate) async fn play(nodes: &mut Nodes, dir: &Path) -> anyhow::Result<()> {
    let screen = Screen::new();
    screen.title("Ringfence: a lease cannot keep a paused writer out. A number can.")?;
    nodes.start()?;
    nodes.ready().await?;
    let client = Client::new(nodes.all().iter().map(|node| node.http).collect());
    let mut demo = Demo { nodes, client, screen, claims: Claims::default(), live: Vec::new(), late: None };
    demo.introduction()?;
    demo.a_writer_is_paused(dir).await?;
    demo.the_leader_is_killed().await?;
    demo.all_nodes_are_killed().await?;
    demo.a_late_write_reaches_databases(dir).await?;
    demo.summary()
}

impl Demo<'_> {
    fn introduction(&self) -> anyhow::Result<()> {
        let pids: Vec<String> =
            self.nodes.all().iter().filter_map(Node::pid).map(|pid| pid.to_string()).collect();
        self.screen.text(&format!(
            "The three nodes of a cluster are up: processes {}.\n\n\
             Two files hold the balance of account 42. The first is guarded: it keeps the\n\
             highest fence it has seen, and checks the token of each write against it. The\n\
             second trusts whoever has acquired a lease.",
            pids.join(", ")
        ))?;
        Ok(())
    }

    fn summary(&self) -> anyhow::Result<()> {
        self.screen.title(&format!("Checked in this run, in {:.1} s", self.screen.elapsed_s()))?;
        for claim in self.claims.proven() {
            self.screen.claim(claim)?;
        }
        self.screen.text(
            "\nTry next: ringfence dev, which keeps three nodes running and shows a curl line.\n\
             README.md says what is guaranteed, what is not, and how a database checks.\n",
        )?;
        Ok(())
    }

    /// A lease that is to outlast the demo.
    async fn acquire(&mut self, holder: &str, key: &str) -> anyhow::Result<Token> {
        let lease_id = LeaseId::random();
        let grant = self.client.acquire(lease_id, holder, &key.parse()?, LONG_MS, 0).await?;
        self.live.push((lease_id, grant.token));
        Ok(grant.token)
    }
}
