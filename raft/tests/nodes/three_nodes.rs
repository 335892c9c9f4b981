//! Three nodes in one process: what a handle promises, on the leader and on its followers.

use std::sync::Arc;
use std::time::Duration;

use ringfence_lease::{Command, Outcome, Refusal};
use ringfence_raft::{Handle, NodeId, Random, Settled, System};
use ringfence_wire::{EndReason, Mode, Role, Token, Ttl};

use crate::support::network::Network;
use crate::support::{Cluster, FIRST, SOON, acquire, id, lead, one, until};

#[tokio::test]
async fn every_node_grants_and_reads_what_any_node_granted() {
    let cluster = Cluster::start(3).await;
    for node in 1..=3 {
        let outcome = one(&cluster.handle(node), acquire(u128::from(node), &format!("key-{node}"), 0)).await;
        let Outcome::Granted(grant) = outcome else { panic!("{outcome:?}") };
        assert_eq!(grant.token, Token(FIRST + node));
    }
    for node in 1..=3 {
        let handle = cluster.handle(node);
        handle.linearize().await.unwrap();
        assert_eq!(handle.view(|table| table.live()), 3);
        assert_eq!(handle.status().members.len(), 3);
        until("it knows where the leader is", || {
            let leader = handle.status().leader.map(|id| format!("http://node-{id}"));
            leader.is_some() && handle.leader_url().as_deref() == leader.as_ref()
        })
        .await;
    }
}

/// Nothing once said that a node was down, and the last one of three said that it led while it knew of no leader.
#[tokio::test]
async fn each_node_knows_for_how_long_another_has_not_answered() {
    const LONG_MS: u64 = 2_500;
    let mut cluster = Cluster::start(3).await;
    lead(&cluster.handle(1), 1).await;
    let silent_ms = |at: &Handle, of| at.status().members[&of].silent_ms;
    let (leader, follower) = (cluster.handle(1), cluster.handle(2));
    assert_eq!((silent_ms(&leader, 1), silent_ms(&follower, 2)), (None, None));
    cluster.nodes.remove(&3).unwrap().stop().await;
    for (node, other) in [(&leader, 2), (&follower, 1)] {
        until("it hears one and not the other", || {
            let (live, gone) = (silent_ms(node, other), silent_ms(node, 3));
            gone.is_some_and(|ms| ms > LONG_MS) && live.is_some_and(|ms| ms < LONG_MS)
        })
        .await;
    }
    cluster.restart(3).await;
    until("it answers again", || {
        [&leader, &follower].iter().all(|node| silent_ms(node, 3).is_some_and(|ms| ms < LONG_MS))
    })
    .await;

    for gone in [2, 3] {
        cluster.nodes.remove(&gone).unwrap().stop().await;
    }
    let last = cluster.handle(1);
    until("it knows of no leader", || last.status().leader.is_none()).await;
    until("it does not call itself one", || last.status().role != Role::Leader).await;
    until("the last but one has not answered, either", || {
        [2, 3].iter().all(|gone| silent_ms(&last, *gone).is_some_and(|ms| ms > LONG_MS))
    })
    .await;
    assert_eq!((last.status().leader, last.status().role == Role::Leader), (None, false));
}

#[tokio::test]
async fn a_waiter_on_any_node_is_told_of_its_grant() {
    let cluster = Cluster::start(3).await;
    assert!(matches!(one(&cluster.handle(1), acquire(1, "a", 0)).await, Outcome::Granted(_)));
    let mut waits = Vec::new();
    for node in 1..=3u64 {
        let handle = cluster.handle(node);
        let lease = 10 + u128::from(node);
        assert!(matches!(one(&handle, acquire(lease, "a", 60_000)).await, Outcome::Waiting(_)));
        let mut wait = handle.wait_for(None, id(lease)).unwrap();
        waits.push(tokio::spawn(async move { wait.settled().await }));
    }
    let mut held = id(1);
    for (wait, node) in waits.into_iter().zip(1u64..) {
        assert_eq!(one(&cluster.handle(2), Command::Release { lease_id: held }).await, Outcome::Done);
        let settled = tokio::time::timeout(SOON, wait).await.unwrap().unwrap();
        let Some(Settled::Granted(grant)) = settled else { panic!("{settled:?}") };
        held = id(10 + u128::from(node));
        assert_eq!(grant.lease_id, held);
    }
    // A wait that begins only now gets the outcome of the lease.
    for node in 1..=3 {
        let handle = cluster.handle(node);
        handle.linearize().await.unwrap();
        let settled = async |lease| {
            tokio::time::timeout(SOON, handle.wait_for(None, lease).unwrap().settled()).await.unwrap()
        };
        assert!(matches!(settled(held).await, Some(Settled::Granted(grant)) if grant.lease_id == held));
        assert_eq!(settled(id(1)).await, Some(Settled::Ended(EndReason::Released)));
    }
}

/// The time of a lone node, which nobody acknowledges, once stood still after 400 ms.
#[tokio::test]
async fn a_lease_ends_by_itself_when_nothing_else_happens() {
    let cluster = Cluster::start(1).await;
    let handle = cluster.handle(1);
    let Command::Acquire(mut short) = acquire(1, "a", 0) else { unreachable!() };
    short.ttl = Ttl::from_ms(1_000).unwrap();
    assert!(matches!(one(&handle, Command::Acquire(short)).await, Outcome::Granted(_)));
    assert!(matches!(one(&handle, acquire(2, "a", 60_000)).await, Outcome::Waiting(_)));
    let settled = tokio::time::timeout(SOON, handle.wait_for(None, id(2)).unwrap().settled()).await.unwrap();
    assert!(matches!(settled, Some(Settled::Granted(_))), "{settled:?}");
    assert_eq!(handle.view(|table| table.lease(None, id(1), None)), Err(Refusal::Gone(EndReason::Expired)));
}

/// One entry grants so many and no more: nothing else happens that would bring the others theirs.
#[tokio::test]
async fn all_whom_a_release_lets_in_are_granted_though_nothing_else_happens() {
    let cluster = Cluster::start(1).await;
    let handle = cluster.handle(1);
    assert!(matches!(one(&handle, acquire(1, "a", 0)).await, Outcome::Granted(_)));
    let reader = |lease| {
        let Command::Acquire(mut acquire) = acquire(lease, "a", 60_000) else { unreachable!() };
        acquire.claims[0].1 = Mode::Shared { limit: None };
        acquire.ttl = Ttl::from_ms(3_600_000).unwrap();
        Command::Acquire(acquire)
    };
    for thousand in 1..=9 {
        handle.propose((0..1_000).map(|n| reader(thousand * 1_000 + n)).collect::<Vec<_>>()).await.unwrap();
    }
    let mut last = handle.wait_for(None, id(9_999)).unwrap();
    assert_eq!(one(&handle, Command::Release { lease_id: id(1) }).await, Outcome::Done);
    let settled = tokio::time::timeout(SOON, last.settled()).await.unwrap();
    assert!(matches!(settled, Some(Settled::Granted(_))), "{settled:?}");
    assert_eq!(handle.view(|table| (table.live(), table.waiters())), (9_000, 0));
}

/// Commands that waited for the first leader of a new cluster once came before what starts its numbering.
#[tokio::test]
async fn the_first_commands_of_a_cluster_do_not_come_before_its_first_revision() {
    let provide = |_| (Arc::new(System) as _, Random::system());
    let cluster = Cluster::start_nodes(3, Network::new(Duration::from_millis(20)), provide).await;
    let mut proposals = Vec::new();
    // Some arrive in the moment when the leader is elected, but has applied nothing of its own yet.
    while !cluster.handle(1).view(|table| table.started()) {
        for _ in 0..10 {
            let lease = proposals.len() as u128 + 1;
            let handle = cluster.handle(1 + (lease % 3) as NodeId);
            proposals.push(tokio::spawn(async move {
                handle.propose(vec![acquire(lease, &format!("k{lease}"), 0)]).await
            }));
        }
        // Spread over the election, rather than all before it.
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    let mut granted = 0;
    for proposal in proposals {
        // The others were on their way through a leader that was deposed.
        let Ok(outcomes) = proposal.await.unwrap() else { continue };
        let [Outcome::Granted(grant)] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert!(grant.token > Token(FIRST), "token {}", grant.token);
        granted += 1;
    }
    assert!(granted > 0, "the cluster had started before the first command");
}
