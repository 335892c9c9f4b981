//! Partitions that heal, and may come again.

use std::future::ready;
use std::time::{Duration, Instant};

use ringfence_harness::{Answered, Consistency, Load, Network, Node, Reply, definite, key, try_once, until};
use ringfence_wire::LeaseId;

use super::{keeps_pace, network, on};
use crate::support::SOON;

/// How often a link flaps, and for how long it is down and up: down for longer than any election timeout, and less than it
/// takes until a connection is given up.
const FLAPS: usize = 4;
const AWAY: Duration = Duration::from_millis(2_200);
const BACK: Duration = Duration::from_millis(1_000);

#[tokio::test]
#[ignore = "slow"]
async fn a_follower_that_was_cut_off_for_long_deposes_nobody_when_it_returns() {
    let Some(network) = network(3) else { return };
    let rounds = |node: &Node| node.log().matches("raft_core: trigger ").count();
    let logs = "--log=info,openraft=error,openraft::core::raft_core=info";
    let cluster = on(&network, 3).argument(logs).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let term = leader.client().cluster().await.done().term;
    let cut_off = cluster.others(leader.id()).next().unwrap();

    network.isolate(cut_off.id()).unwrap();
    let before = rounds(cut_off);
    let look = || ready((rounds(cut_off) >= before + 8).then_some(()));
    until(SOON, "it has campaigned 8 times", look).await.unwrap();
    assert!(!cut_off.client().is_ready().await);
    assert_eq!(cut_off.client().cluster().await.done().term, term);
    let metrics = cut_off.client().metrics().await.done();
    assert!(metrics.contains(&format!("\nringfence_raft_term {term}\n")), "{metrics}");

    network.heal().unwrap();
    cluster.ready().await.unwrap();
    if !keeps_pace(&cluster).await {
        return;
    }
    for node in cluster.nodes() {
        let view = node.client().cluster().await.done();
        assert_eq!((view.leader, view.term), (Some(leader.id()), term));
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn silent_connections_are_given_up_in_seconds_and_opened_again() {
    let Some(network) = network(3) else { return };
    let cluster = on(&network, 3).start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let follower = cluster.others(leader).next().unwrap().id();
    let load = Load::gentle(&cluster, "load", &[]);
    load.next(&[follower]).await.unwrap();

    network.isolate(follower).unwrap();
    let cut = Instant::now();
    let open =
        || network.connections(leader, follower).unwrap() + network.connections(follower, leader).unwrap();
    until(SOON, "all connections are given up", || ready((open() == 0).then_some(()))).await.unwrap();
    eprintln!("all connections were given up after {:?}", cut.elapsed());
    // By then TCP would hardly retry any more.
    tokio::time::sleep(Duration::from_secs(12).saturating_sub(cut.elapsed())).await;

    network.heal().unwrap();
    let healed = Instant::now();
    cluster.caught_up(SOON).await.unwrap();
    eprintln!("it has caught up {:?} after the network has healed", healed.elapsed());
    load.next(&[follower]).await.unwrap();
    assert!(open() > 0);
    load.end().await.check(&cluster).await;
}

/// Cuts and heals repeatedly under load. Returns the number of new leaders.
async fn flaps(cut: impl Fn(&Network, u64, u64)) -> Option<usize> {
    let network = network(3)?;
    let cluster = on(&network, 3).start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let follower = cluster.others(leader).next().unwrap().id();
    let leaders =
        || cluster.nodes().iter().map(|node| node.log().matches("this node leads").count()).sum::<usize>();
    let before = leaders();
    let load = Load::gentle(&cluster, "load", &[]);
    for _ in 0..FLAPS {
        cut(&network, leader, follower);
        tokio::time::sleep(AWAY).await;
        network.heal().unwrap();
        tokio::time::sleep(BACK).await;
    }
    for node in cluster.nodes() {
        load.next(&[node.id()]).await.unwrap();
    }
    let mut record = load.end().await;
    let new = leaders() - before;
    eprintln!("{} grants while the network came and went, and {new} new leaders", record.grants().len());
    record.check(&cluster).await;
    keeps_pace(&cluster).await.then_some(new)
}

#[tokio::test]
#[ignore = "slow"]
async fn a_link_between_leader_and_follower_that_comes_and_goes_deposes_nobody() {
    let cut = |network: &Network, leader, follower| network.part(&[leader], &[follower]).unwrap();
    if let Some(new) = flaps(cut).await {
        assert_eq!(new, 0);
    }
}

/// As a follower it disturbs nobody.
#[tokio::test]
#[ignore = "slow"]
async fn a_leader_whose_links_come_and_go_is_deposed_once() {
    let cut = |network: &Network, leader, _| network.isolate(leader).unwrap();
    if let Some(new) = flaps(cut).await {
        assert!(new <= 1, "{new} new leaders");
    }
}

/// The times are printed, not checked.
#[tokio::test]
#[ignore = "slow"]
async fn each_leader_that_is_cut_off_is_replaced() {
    let Some(network) = network(3) else { return };
    let cluster = on(&network, 3).start().await.unwrap();
    let (mut grants, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let leader = cluster.leader().await.unwrap();
        network.isolate(leader.id()).unwrap();
        let cut = Instant::now();
        let reader = cluster.others(leader.id()).next().unwrap().client();
        let reader = tokio::spawn(async move {
            let key = key("next");
            let read = || reader.key(&key, Consistency::Linearizable);
            Ok(definite(SOON, read).await.unwrap()).done();
            cut.elapsed()
        });
        // One request after the other, none of which waits for another.
        let (granted, mut first) = tokio::sync::mpsc::unbounded_channel();
        for node in cluster.others(leader.id()).collect::<Vec<_>>().into_iter().cycle() {
            let (client, granted) = (node.client(), granted.clone());
            tokio::spawn(async move {
                let lease = LeaseId::random();
                if let Ok(Reply::Done { .. }) =
                    client.acquire(lease, &try_once(&format!("next/{lease}"))).await
                {
                    let _ = granted.send(cut.elapsed());
                }
            });
            match tokio::time::timeout(Duration::from_millis(50), first.recv()).await {
                Ok(time) => {
                    grants.push(time.unwrap());
                    break;
                }
                Err(_) => assert!(cut.elapsed() < SOON, "no grant in {SOON:?}"),
            }
        }
        reads.push(reader.await.unwrap());
        network.heal().unwrap();
        cluster.ready().await.unwrap();
    }
    eprintln!("from the cut of the leader until the next grant: {grants:?}");
    eprintln!("until a read that was begun at once has its answer: {reads:?}");
}
