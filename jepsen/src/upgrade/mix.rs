//! Every mix of old and new nodes, with each node as the leader, which is killed, and comes back by a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_harness::{Node, until};
use ringfence_laws::history::Fault;
use ringfence_wire::{BatchAcquire, Key, LeaseId, Metadata, Mode, Ttl, WantedKey};
use tokio::time::sleep;

use super::scene::{Age, Scene};

/// Bounds the growth of the log past what a node lacks.
const PAST_WITHIN: Duration = Duration::from_secs(60);
/// Bounds the election after a leader was killed.
const LED_WITHIN: Duration = Duration::from_secs(30);
/// Acquires that fill the log, with as much metadata as a lease may have.
const FILLERS: u32 = 16;
const FILLER_BYTES: usize = 4_000;
/// What the load does at the end is still in the logs when they are read.
const QUIET: Duration = Duration::from_secs(5);
/// Part of what a node logs when it has installed a snapshot.
const INSTALLED: &str = "snapshot installed";

impl Scene<'_> {
    pub(super) async fn mix(&mut self) -> anyhow::Result<()> {
        let nodes = self.field.nodes();
        let mut seen = BTreeSet::new();
        for mix in 0..1_u64 << nodes {
            // Neighbours in the Gray code differ in one node.
            let gray = mix ^ (mix >> 1);
            for id in 1..=nodes {
                let age = if gray >> (id - 1) & 1 == 1 { Age::New } else { Age::Old };
                if self.age(id) != age {
                    self.turn(id, age).await?;
                }
            }
            for leader in 1..=nodes {
                seen.extend(self.kill_leader(leader).await?);
            }
        }
        for id in self.shuffled() {
            self.turn(id, Age::New).await?;
        }
        if self.has_two_programs() && self.raise().await? {
            for leader in 1..=nodes {
                self.kill_leader(leader).await?;
            }
        }
        sleep(QUIET).await;
        let all = [Age::Old, Age::New].map(|from| [Age::Old, Age::New].map(|to| (from, to)));
        let missing: Vec<_> = all.iter().flatten().filter(|pair| !seen.contains(*pair)).collect();
        ensure!(missing.is_empty(), "no snapshot went from one leader to another node, as {missing:?}");
        Ok(())
    }

    /// Kills `id` while it leads, and starts it again when it needs a snapshot. Returns the program of the leader that sent it,
    /// and of the node, if the leader did not change meanwhile.
    async fn kill_leader(&mut self, id: u64) -> anyhow::Result<Option<(Age, Age)>> {
        self.field.lead(id).await?;
        let mix: Vec<String> = (1..=self.field.nodes()).map(|id| self.age(id).to_string()).collect();
        let begun = self.begun(id, format!("the leader, node {id} of {}, killed", mix.join(", ")));
        self.field.kill(id)?;
        let next = async || self.field.leader().await.filter(|leader| *leader != id);
        let before = until(LED_WITHIN, format!("another node leads than {id}"), next).await?;
        self.truncate_log().await?;
        let node = self.field.cluster().node(id);
        let logged = node.log().len();
        self.start(id, self.age(id)).await?;
        let what = format!("{}, and caught up by a snapshot of node {before}", begun.what);
        ensure!(node.log()[logged..].contains(INSTALLED), "{what}: its log tells of none");
        self.over(Fault { what, ..begun });
        let after = self.field.leader().await;
        Ok((after == Some(before)).then(|| (self.age(before), self.age(id))))
    }

    /// Fills the log until all running nodes have removed what they have now.
    async fn truncate_log(&self) -> anyhow::Result<()> {
        let running: Vec<&Node> = self.field.cluster().running().collect();
        let newest: BTreeMap<u64, _> =
            running.iter().map(|node| (node.id(), node.segments().pop())).collect();
        let client = running.first().context("no node runs")?.client();
        let is_past = async || {
            let is_past = |node: &&Node| node.segments().first() > newest[&node.id()].as_ref();
            if running.iter().all(is_past) {
                return Some(());
            }
            // Whether these are granted does not matter.
            let _ = client.acquire_batch((0..FILLERS).map(filler).collect()).await;
            None
        };
        Ok(until(PAST_WITHIN, "all nodes have truncated their logs", is_past).await?)
    }
}

/// An acquire that ends soon.
fn filler(number: u32) -> BatchAcquire {
    let metadata = BTreeMap::from([("filler".to_owned(), "x".repeat(FILLER_BYTES))]);
    let key = Key::new(&format!("filler/{number}")).expect("a name and a number are a key");
    BatchAcquire {
        lease_id: LeaseId::random(),
        keys: vec![WantedKey { key, mode: Mode::Shared { limit: None } }],
        ttl_ms: Ttl::from_ms(1_000).expect("a second may be asked for"),
        keep_place: false,
        holder: None,
        metadata: Metadata::new(metadata).expect("metadata may have 4,096 bytes"),
    }
}
