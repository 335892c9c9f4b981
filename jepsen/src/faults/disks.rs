//! Full disks, syncs that fail or are slow, and power cuts.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use ringfence_harness::Injection;
use ringfence_laws::history::Fault;
use ringfence_wire::{LeaseId, MAX_BATCH};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Scene, named};
use crate::nemesis::Nemesis;

/// Poll interval for nodes that are expected to end.
const LOOK: Duration = Duration::from_millis(50);
/// Bounds the time until a log has used up its preallocated space, and one request that makes it grow.
const GROWS_WITHIN: Duration = Duration::from_secs(40);
const PATIENCE: Duration = Duration::from_secs(2);

impl Scene<'_> {
    /// The log has preallocated space, so requests make it grow until that is used up.
    pub(super) async fn fill_disk(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let mut fault = self.begun(Nemesis::FullDisk, nodes, "");
        for id in nodes {
            self.field.disk(*id)?.fill()?;
        }
        let ended = tokio::select! {
            ended = self.some_end(nodes, lasts.max(GROWS_WITHIN)) => ended?,
            never = self.grow() => never,
        };
        for id in nodes {
            self.field.disk(*id)?.give_room()?;
        }
        self.restart(nodes)?;
        fault.what = format!("the disk of {} is full; {} stopped of itself", named(nodes), named(&ended));
        Ok(self.over(fault))
    }

    /// Makes the log grow without changing the table, through all nodes: renews leases that do not exist.
    async fn grow<T>(self) -> T {
        let through = (1..=self.field.nodes()).map(async |id| {
            let client = self.field.client(id).within(PATIENCE);
            loop {
                let leases = (0..MAX_BATCH).map(|_| LeaseId::random()).collect();
                if client.renew_many(leases).await.is_err() {
                    sleep(LOOK).await;
                }
            }
        });
        join_all(through).await.pop().expect("the loops never end")
    }

    /// Ends as soon as all nodes have stopped.
    pub(super) async fn fail_flush(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let mut fault = self.begun(Nemesis::FailingFlush, nodes, "");
        let mut failing = Vec::new();
        for id in nodes {
            let node = self.field.cluster().node(*id);
            failing.push(Injection::start(node, "fdatasync", "error=EIO:when=1").await?);
        }
        let ended = self.some_end(nodes, lasts).await?;
        drop(failing);
        self.restart(nodes)?;
        fault.what = format!("syncs of {} fail; {} stopped of itself", named(nodes), named(&ended));
        Ok(self.over(fault))
    }

    pub(super) async fn slow_flush(
        self,
        nodes: &[u64],
        by_ms: u64,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let mut fault = self.begun(Nemesis::SlowFlush, nodes, "");
        let (end, delay) = (Instant::now() + lasts, format!("delay_enter={}", 1_000 * by_ms));
        let mut slow = Vec::new();
        for id in nodes {
            slow.push(Injection::start(self.field.cluster().node(*id), "fdatasync", &delay).await?);
        }
        sleep_until(end).await;
        let syncs: usize = slow.iter().map(Injection::count).sum();
        drop(slow);
        fault.what = format!("syncs of {} take {by_ms} ms: {syncs} of them", named(nodes));
        Ok(self.over(fault))
    }

    /// The nodes are stopped while their disks are cut off: all lose power at one instant.
    pub(super) async fn cut_power(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let fault = self.begun(Nemesis::PowerCut, nodes, format!("the power of {} is cut", named(nodes)));
        let node = |id: &u64| self.field.cluster().node(*id);
        nodes.iter().try_for_each(|id| node(id).stop())?;
        for id in nodes {
            node(id).stands_still().await?;
            self.field.disk(*id)?.cut_power()?;
        }
        nodes.iter().try_for_each(|id| self.field.kill(*id))?;
        for id in nodes {
            self.field.disk(*id)?.restore_power().with_context(|| format!("the disk of node {id}"))?;
        }
        sleep(lasts).await;
        self.field.start_all(nodes)?;
        Ok(self.over(fault))
    }

    /// Kills nodes, which may have ended by themselves, and starts them.
    fn restart(self, nodes: &[u64]) -> anyhow::Result<()> {
        nodes.iter().try_for_each(|id| self.field.cluster().node(*id).kill())?;
        self.field.start_all(nodes)
    }

    /// The nodes of these that end by themselves within this time.
    async fn some_end(self, nodes: &[u64], within: Duration) -> anyhow::Result<Vec<u64>> {
        let (deadline, mut ended) = (Instant::now() + within, Vec::new());
        while ended.len() < nodes.len() {
            for id in nodes {
                if self.field.cluster().node(*id).take_ended()?.is_some() {
                    ended.push(*id);
                }
            }
            if Instant::now() > deadline {
                break;
            }
            sleep(LOOK).await;
        }
        Ok(ended)
    }
}
