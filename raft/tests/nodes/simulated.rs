//! Nodes in virtual time on one thread: tokio's clock is paused and advanced by the test, and network and disks are in memory.

use std::array;
use std::sync::Arc;
use std::time::Duration;

use ringfence_disk::MemoryDisk;
use ringfence_raft::{MembersError, Node, Random, Settings, Unanswered};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::support::network::{FOUNDING, Network, Way};
use crate::support::{Cluster, Stored, address, grant, id, lead, settings, simulate, until};

const LATENCY: Duration = Duration::from_millis(20);

#[tokio::test(start_paused = true)]
async fn a_cluster_replaces_a_leader_that_is_cut_off_and_takes_it_back() {
    let disks: [MemoryDisk; 3] = array::from_fn(|_| MemoryDisk::default());
    simulate(&disks, async {
        let provide = |id| (Arc::new(Stored(disks[id as usize - 1].clone())) as _, Random::seeded(id));
        let cluster = Cluster::found(3, Network::new(LATENCY), provide).await;
        let (old, new) = (cluster.handle(1), cluster.handle(2));
        lead(&old, 1).await;
        let first = grant(&old, 1, "a").await;

        for other in ["node-2", "node-3"] {
            cluster.network.cut("node-1", other);
            cluster.network.cut(other, "node-1");
        }
        let cut = Instant::now();
        until("another leads", || matches!(new.status().leader, Some(2 | 3))).await;
        assert!(grant(&new, 2, "b").await > first);
        assert_eq!(old.linearize().await, Err(Unanswered::Unavailable));
        assert!(old.view(|table| table.lease(None, id(2), None).is_err()));
        assert!(cut.elapsed() >= Duration::from_secs(5), "it gave up after {:?}", cut.elapsed());

        cluster.network.heal();
        until("the old leader has caught up", || old.view(|table| table.lease(None, id(2), None).is_ok()))
            .await;
        assert!(grant(&old, 3, "c").await > first);
        old.linearize().await.unwrap();
    })
    .await;
}

/// The answer tells of a membership that this node is in. It once took that for the one of an earlier data directory.
#[tokio::test(start_paused = true)]
async fn a_late_answer_to_a_probe_does_not_stop_a_node_that_was_taken_in_meanwhile() {
    let disks: [MemoryDisk; 3] = array::from_fn(|_| MemoryDisk::default());
    simulate(&disks, async {
        let (network, dir) = (Network::new(LATENCY), TempDir::new().unwrap());
        let start = |id: u64| {
            let given = settings(id, dir.path().join(id.to_string()), network.port(&address(id)), 3);
            let (storage, random) = (Arc::new(Stored(disks[id as usize - 1].clone())), Random::seeded(id));
            tokio::spawn(Node::start(Settings { storage, random, ..given }))
        };
        let (first, second) = (start(1), start(2));
        let answers = || network.delivered("node-2", "node-1", FOUNDING, Way::Back);
        until("node 2 is welcome, and answered", || answers() >= 2).await;
        // Its next question arrives only when it is a member.
        network.hold("node-2", "node-1", [FOUNDING], Way::There);
        let third = start(3);
        let first = first.await.unwrap().unwrap();
        until("node 2 is a member", || first.handle().status().members.contains_key(&2)).await;
        let before = answers();
        assert!(!second.is_finished(), "it waits for no answer");
        network.release("node-2", "node-1", FOUNDING, Way::There);
        until("node 2 is answered", || answers() > before).await;
        let second = second.await.unwrap().unwrap();
        let _third = third.await.unwrap().unwrap();
        second.handle().linearize().await.unwrap();
    })
    .await;
}

/// The directory that was there first became the member, and the other believed that it was.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_emptied_while_it_is_added_is_not_added_and_the_operator_learns_why() {
    const OTHER: &str = "node-2";
    let disks: [MemoryDisk; 3] = array::from_fn(|_| MemoryDisk::default());
    simulate(&disks, async {
        let network = Network::new(LATENCY);
        let provide = |_| (Arc::new(Stored(disks[0].clone())) as _, Random::seeded(0));
        let cluster = Cluster::found(1, network.clone(), provide).await;
        let leader = cluster.handle(1);
        let join = |seed| {
            let waiting = settings(2, cluster.dir.path().join("2"), network.port(OTHER), 2);
            let storage = Arc::new(Stored(disks[seed as usize].clone()));
            let random = Random::seeded(seed);
            tokio::spawn(Node::start(Settings { join: true, storage, random, ..waiting }))
        };
        let add = || {
            let leader = leader.clone();
            tokio::spawn(async move { leader.add_member(2, OTHER.to_owned()).await })
        };

        let first = join(1);
        let adding = add();
        let delivered = |way| network.delivered("node-1", OTHER, FOUNDING, way);
        until("it is welcome", || delivered(Way::Back) == 1).await;
        network.hold("node-1", OTHER, [FOUNDING], Way::Back);
        until("it is probed", || delivered(Way::There) == 1).await;
        // Its answer is on its way.
        sleep(2 * LATENCY).await;
        first.abort();
        let second = join(2);
        network.release("node-1", OTHER, FOUNDING, Way::Back);
        let Err(MembersError::Refused(reason)) = adding.await.unwrap() else { panic!("it is added") };
        assert!(reason.contains("was emptied or exchanged"), "{reason}");

        add().await.unwrap().unwrap();
        let node = second.await.unwrap().unwrap();
        until("it votes", || leader.status().members.get(&2).is_some_and(|member| member.voter)).await;
        drop(node);
    })
    .await;
}
