//! What a node tells of itself.

use anyhow::{Result, bail};
use ringfence_harness::{Called, Node, Reply};
use ringfence_wire::ClusterStatus;

/// What a node has counted since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// Snapshots taken.
    pub(super) snapshots: u64,
    /// How long all of them took.
    pub(super) snapshots_s: f64,
    /// How often what was due waited for its runtime for more than 50 ms.
    pub(super) delays: u64,
}

impl Counted {
    pub(super) async fn of(node: &Node) -> Result<Self> {
        Ok(Self::read(&body(node, node.client().metrics().await)?))
    }

    fn read(metrics: &str) -> Self {
        let value = |name: &str| {
            let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            // What has not happened yet is not listed.
            value.unwrap_or(0.0)
        };
        let delays = |end: &str| value(&format!("ringfence_loop_lag_seconds_bucket{{le=\"{end}\"}}"));
        Self {
            snapshots: value("ringfence_raft_snapshot_seconds_count") as u64,
            snapshots_s: value("ringfence_raft_snapshot_seconds_sum"),
            delays: (delays("+Inf") - delays("0.05")) as u64,
        }
    }
}

pub(super) async fn live_leases(node: &Node) -> Result<u64> {
    Ok(view(node).await?.live_leases)
}

pub(super) async fn view(node: &Node) -> Result<ClusterStatus> {
    body(node, node.client().cluster().await)
}

fn body<T>(node: &Node, called: Called<T>) -> Result<T> {
    match called? {
        Reply::Done { body, .. } => Ok(body),
        Reply::Refused(problem) => bail!("node {}: {}", node.id(), problem.detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read() {
        let metrics = "# TYPE ringfence_raft_snapshot_seconds histogram\n\
            ringfence_raft_snapshot_seconds_sum 0.25\n\
            ringfence_raft_snapshot_seconds_count 2\n\
            ringfence_loop_lag_seconds_bucket{le=\"0.05\"} 97\n\
            ringfence_loop_lag_seconds_bucket{le=\"+Inf\"} 100\n";
        assert_eq!(Counted::read(metrics), Counted { snapshots: 2, snapshots_s: 0.25, delays: 3 });
        assert_eq!(Counted::read(""), Counted::default());
    }
}
