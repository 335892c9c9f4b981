//! What a node reports of itself.

use anyhow::{Context, Result};
use ringfence_harness::{Answered, Node, metric};
use ringfence_wire::ClusterStatus;

/// What a node has counted since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// Snapshots taken.
    pub(super) snapshots: u64,
    /// Their time in total.
    pub(super) snapshots_s: f64,
    /// How often its runtime was late by more than 50 ms.
    pub(super) delays: u64,
}

impl Counted {
    pub(super) async fn of(node: &Node) -> Result<Self> {
        let metrics = node.client().metrics().await.success();
        Ok(Self::read(&metrics.with_context(|| format!("node {}", node.id()))?))
    }

    fn read(metrics: &str) -> Self {
        // A series appears with its first event.
        let value = |series: &str| metric(metrics, series).unwrap_or(0.0);
        let delays = |end: &str| value(&format!("ringfence_loop_lag_seconds_bucket{{le=\"{end}\"}}"));
        Self {
            snapshots: value("ringfence_raft_snapshot_seconds_count") as u64,
            snapshots_s: value("ringfence_raft_snapshot_seconds_sum"),
            delays: (delays("+Inf") - delays("0.05")) as u64,
        }
    }
}

pub(super) async fn status(node: &Node) -> Result<ClusterStatus> {
    node.client().cluster().await.success().with_context(|| format!("node {}", node.id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read() {
        let metrics = "# TYPE ringfence_raft_snapshot_seconds histogram\n\
            ringfence_raft_snapshot_seconds_sum 0.25\n\
            ringfence_raft_snapshot_seconds_count 2\n\
            ringfence_loop_lag_seconds_bucket{le=\"0.05\"} 97\n\
            ringfence_loop_lag_seconds_bucket{le=\"+Inf\"} 100\n";
        assert_eq!(Counted::read(metrics), Counted { snapshots: 2, snapshots_s: 0.25, delays: 3 });
        assert_eq!(Counted::read(""), Counted::default());
    }
}
