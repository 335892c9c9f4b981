use ringfence_lease::{Acquire, Attachment, Command, Outcome};
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Ttl, Wait};
use tokio::time::timeout;

use super::*;
use crate::members::tests::{Cluster, until};
use crate::{Handle, Node};

const SOON: Duration = Duration::from_secs(60);

fn acquire(lease: u128) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: LeaseId::from_u128(lease).unwrap(),
        claims: vec![(Key::new(&format!("key-{lease}")).unwrap(), Mode::Exclusive)],
        ttl: Ttl::from_ms(60_000).unwrap(),
        wait: Wait::from_ms(0).unwrap(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(1),
    }))
}

/// Repeated until it is granted: the leader may be stopping.
async fn grant(handle: &Handle, lease: u128) {
    until("it is granted", async || match Box::pin(handle.propose(vec![acquire(lease)])).await {
        Ok(outcomes) => matches!(outcomes[..], [Outcome::Granted(_) | Outcome::Standing(_)]),
        Err(_) => false,
    })
    .await;
}

/// Changes the table of a node behind the back of the others.
fn corrupt(handle: &Handle) {
    let mut state = handle.shared.applied.lock();
    let at_ms = state.table.at_ms();
    state.table.apply(at_ms, vec![acquire(1 << 100)], &mut Vec::new());
    let revision = state.table.revision();
    state.history.start_after(revision);
}

fn comparison(handle: &Handle) -> Comparison {
    Comparison { replica: Arc::clone(&handle.shared), after: 0, differing: Gauge::noop() }
}

/// Compares until all that was applied when this began is agreed on.
async fn agrees(comparison: &mut Comparison) {
    let upto = comparison.replica.applied.lock().witness.applied();
    while comparison.after < upto {
        comparison.run().await.unwrap();
    }
}

/// Node 1 leads, and node `odd` is stopped.
async fn the_odd_one_stops(odd: NodeId) {
    let mut cluster = Box::pin(Cluster::start(3)).await;
    let other = cluster.handle(odd % 3 + 1);
    grant(&other, 1).await;
    for id in 1..=3 {
        agrees(&mut comparison(&cluster.handle(id))).await;
    }
    corrupt(&cluster.handle(odd));
    grant(&other, 2).await;
    let reason = timeout(SOON, cluster.nodes[&odd].failed()).await.unwrap();
    let others: BTreeSet<NodeId> = [1, 2, 3].into_iter().filter(|id| *id != odd).collect();
    assert!(reason.contains("did not do the same") && reason.contains(&format!("{others:?}")), "{reason}");

    cluster.stop(odd).await;
    let settings = cluster.settings(odd, cluster.data(odd), cluster.listener(odd).await, false);
    let Err(error) = Node::start(settings).await else { panic!("it starts again") };
    assert!(
        error.to_string().contains("did not do the same") && error.to_string().contains("DIVERGED"),
        "{error}"
    );
    grant(&other, 3).await;
    for id in others {
        let mut comparison = comparison(&cluster.handle(id));
        // It was alone in what it did.
        comparison.after = comparison.replica.applied.lock().witness.applied() - 1;
        agrees(&mut comparison).await;
        assert!(timeout(Duration::ZERO, cluster.nodes[&id].failed()).await.is_err());
    }
}

#[tokio::test]
async fn a_follower_that_differs_from_the_others_stops_and_they_go_on() {
    the_odd_one_stops(2).await;
}

#[tokio::test]
async fn a_leader_that_differs_from_the_others_stops_and_they_go_on() {
    the_odd_one_stops(1).await;
}

#[tokio::test]
async fn without_a_majority_nobody_stops() {
    let cluster = Box::pin(Cluster::start(2)).await;
    let handle = cluster.handle(1);
    grant(&handle, 1).await;
    let mut comparisons = [1, 2].map(|id| comparison(&cluster.handle(id)));
    for comparison in &mut comparisons {
        agrees(comparison).await;
    }
    corrupt(&cluster.handle(2));
    grant(&handle, 2).await;
    for comparison in &mut comparisons {
        let agreed = comparison.after;
        until("both have applied it", async || {
            let upto = comparison.replica.applied.lock().witness.applied();
            let [_, others] = comparison.compare(&BTreeSet::from([1, 2]), upto).await;
            !others.is_empty()
        })
        .await;
        comparison.run().await.unwrap();
        assert_eq!(comparison.after, agreed);
    }
    for node in cluster.nodes.values() {
        assert!(timeout(Duration::ZERO, node.failed()).await.is_err());
    }
}
