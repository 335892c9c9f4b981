//! Three servers of ZooKeeper, each behind a proxy.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::{ZooKeeperCluster, until};
use zookeeper_client::{Acls, Client, CreateMode};

use super::{LOCKS, class_path};
use crate::clock::Clock;
use crate::fault::Fault;
use crate::front::{Front, Trap};
use crate::rung::{Ground, Stage};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);

pub(in crate::rung) struct Ensemble {
    cluster: ZooKeeperCluster,
    fronts: Vec<Front>,
    clock: Option<Clock>,
}

impl Ensemble {
    pub(in crate::rung) async fn start(fault: Fault, ground: &Ground) -> anyhow::Result<Self> {
        let clock = Clock::of_servers(fault, &ground.folder)?;
        let variables: Vec<_> = clock.iter().flat_map(Clock::variables).collect();
        let cluster = ZooKeeperCluster::start_with(class_path()?, &variables).await?;
        let fronts = Front::open_all(cluster.addresses(), &Trap::new(is_answer)).await?;
        Ok(Self { cluster, fronts, clock })
    }

    async fn leader(&self) -> anyhow::Result<usize> {
        Ok(until(SOON, "a server leads", async || self.cluster.leader().await).await?)
    }

    async fn leader_address(&self) -> anyhow::Result<String> {
        Ok(self.cluster.addresses()[self.leader().await?].to_string())
    }

    /// A session of its own.
    async fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.leader_address().await?).await?)
    }

    async fn lose_leader(&self) -> anyhow::Result<String> {
        let before = self.leader().await?;
        self.cluster.servers().kill(before)?;
        let after = self.leader().await?;
        ensure!(before != after, "a dead server leads");
        Ok("the leader was killed; another one leads".to_owned())
    }

    /// The leader's time of day, by which it notes when a node was made; and that node, whose session ends soon.
    async fn unix_s(&self) -> anyhow::Result<(i64, String)> {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(1)).with_detached();
        let session = connector.connect(&self.leader_address().await?).await?;
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (stat, sequence) = session.create("/time-", b"", &options).await?;
        Ok((stat.ctime / 1_000, format!("/time-{sequence}")))
    }

    async fn throw(&self, hours: i64) -> anyhow::Result<String> {
        let (before, _) = self.unix_s().await?;
        self.clock.as_ref().context("there is no clock to throw")?.throw(3_600 * hours)?;
        let (after, node) = self.unix_s().await?;
        let moved = after - before;
        ensure!((moved - 3_600 * hours).abs() < 600, "the clock of the leader has moved by {moved} s");
        if hours > 0 {
            // The leader looks once a tick which sessions have ended: by now it has.
            let session = self.connect().await?;
            let look = async || session.check_stat(&node).await.ok()?.is_none().then_some(());
            until(SOON, "a session has ended since", look).await?;
        }
        Ok(format!("the clock of the leader, and so those of the others, has moved by {moved} s"))
    }
}

/// Whether this answers a request, other than one that keeps the session alive. After its length each answer has the number of
/// its request, from 1 on; a watch that fires has -1, an answer to a ping -2, and to a connect 0.
fn is_answer(mut bytes: &[u8]) -> bool {
    while let Some((head, _)) = bytes.split_first_chunk::<8>() {
        let [length @ .., a, b, c, d] = *head;
        if i32::from_be_bytes([a, b, c, d]) > 0 {
            return true;
        }
        let length = u32::from_be_bytes(length) as usize;
        bytes = bytes.get(4 + length..).unwrap_or_default();
    }
    false
}

impl Stage for Ensemble {
    fn fronts(&self) -> Vec<&Front> {
        self.fronts.iter().collect()
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move {
            match fault.server_clock_h() {
                Some(hours) => self.throw(hours).await,
                None if fault == Fault::Failover => self.lose_leader().await,
                None => bail!("{} is no fault of ZooKeeper's servers", fault.name()),
            }
        })
    }

    fn state(&self, key: &str) -> BoxFuture<'_, anyhow::Result<String>> {
        let lock = format!("{LOCKS}/{key}");
        Box::pin(async move {
            let session = self.connect().await?;
            let mut nodes = session.list_children(&lock).await?;
            nodes.sort_by_key(|node| node.get(node.len().saturating_sub(10)..).map(str::to_owned));
            let lowest = nodes.first().context("it is stuck with no node in line")?;
            let stat = session.check_stat(&format!("{lock}/{lowest}")).await?.context("the node is gone")?;
            ensure!(stat.ephemeral_owner != 0, "the node {lowest} is not ephemeral");
            Ok(format!(
                "the node {lowest} stays until session {:#x}, which is alive, ends",
                stat.ephemeral_owner
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_session_alive_is_no_answer() {
        let frame = |number: i32| [&12_u32.to_be_bytes()[..], &number.to_be_bytes(), &[0; 8]].concat();
        let [connected, fired, pong, answer] = [0, -1, -2, 7].map(frame);
        assert!(!is_answer(&[connected, fired, pong.clone()].concat()));
        assert!(is_answer(&[pong, answer].concat()));
    }
}
