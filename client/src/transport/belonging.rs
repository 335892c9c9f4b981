//! Which cluster a client belongs to.
//!
//! A client gets addresses from its configuration and from responses, and what answers there may be another cluster: a tunnel
//! or a port mapping leads elsewhere, or three nodes have founded three clusters. Two clusters grant the same key at once. So a
//! client belongs to the cluster that the first response names, and the response of another cluster is none.
//!
//! A cluster may be replaced by a new one at the same URLs, after a disaster. Then no node answers for the old cluster any more.
//! When that has lasted for [`REPLACED_AFTER`], and most of the configured nodes answer for one other cluster, the client belongs
//! to that. Its old leases are unknown there: they are lost, if their time has not run out before.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

/// How long no node has answered for a cluster that was replaced.
const REPLACED_AFTER: Duration = Duration::from_secs(60);

/// The cluster that a client belongs to. Nodes are numbers, the configured ones first.
#[derive(Debug, Default)]
pub(super) struct Belonging {
    /// Its id, and when a node last answered for it.
    own: Option<(HeaderValue, Instant)>,
    /// The configured nodes that last answered for another one.
    strangers: BTreeMap<usize, HeaderValue>,
}

impl Belonging {
    /// Learns for which cluster `node` has answered; `None`: an older node does not say. Of all nodes, the first `configured` are
    /// configured. An error with the client's own cluster if it is another one.
    pub(super) fn check(
        &mut self,
        node: usize,
        configured: usize,
        cluster: Option<&HeaderValue>,
    ) -> Result<(), HeaderValue> {
        let Some(cluster) = cluster else { return Ok(()) };
        let now = Instant::now();
        let Some((own, heard)) = &mut self.own else {
            self.own = Some((cluster.clone(), now));
            return Ok(());
        };
        if own == cluster {
            *heard = now;
            self.strangers.remove(&node);
            return Ok(());
        }
        if node < configured {
            self.strangers.insert(node, cluster.clone());
        }
        let agreeing = self.strangers.values().filter(|other| *other == cluster).count();
        if heard.elapsed() < REPLACED_AFTER || 2 * agreeing <= configured {
            return Err(own.clone());
        }
        tracing::warn!(old = ?own, new = ?cluster, "the cluster was replaced by a new one");
        self.own = Some((cluster.clone(), now));
        self.strangers.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const CONFIGURED: usize = 3;
    const A: HeaderValue = HeaderValue::from_static("a");
    const B: HeaderValue = HeaderValue::from_static("b");
    const C: HeaderValue = HeaderValue::from_static("c");

    fn of_a() -> Belonging {
        let mut belonging = Belonging::default();
        belonging.check(0, CONFIGURED, Some(&A)).unwrap();
        belonging
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_belongs_to_the_first_cluster_and_an_older_node_to_any() {
        let mut belonging = Belonging::default();
        belonging.check(0, CONFIGURED, None).unwrap();
        belonging.check(1, CONFIGURED, Some(&A)).unwrap();
        for _ in 0..10 {
            belonging.check(0, CONFIGURED, None).unwrap();
            assert_eq!(belonging.check(2, CONFIGURED, Some(&B)), Err(A));
            belonging.check(1, CONFIGURED, Some(&A)).unwrap();
            assert_eq!(belonging.check(0, CONFIGURED, Some(&B)), Err(A));
            advance(REPLACED_AFTER / 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_replaced_once_it_is_silent_and_most_nodes_answer_for_one_other() {
        let mut belonging = of_a();
        for node in 0..CONFIGURED {
            assert_eq!(belonging.check(node, CONFIGURED, Some(&B)), Err(A), "too early");
        }
        let mut belonging = of_a();
        advance(REPLACED_AFTER).await;
        assert_eq!(belonging.check(0, CONFIGURED, Some(&B)), Err(A), "one of three");
        assert_eq!(belonging.check(1, CONFIGURED, Some(&C)), Err(A), "another one");
        assert_eq!(belonging.check(7, CONFIGURED, Some(&B)), Err(A), "not configured");
        belonging.check(2, CONFIGURED, Some(&B)).unwrap();
        assert_eq!(belonging.check(1, CONFIGURED, Some(&A)), Err(B));
    }
}
