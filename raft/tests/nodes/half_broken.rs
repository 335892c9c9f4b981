//! What is neither dead nor alive: links that lose what is large, links that are slow. In virtual time, as in `simulated.rs`.

use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_disk::MemoryDisk;
use ringfence_lease::Command;
use ringfence_raft::{Handle, Node, Random, Settings, Unanswered};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::network::{APPENDS, Network, Way};
use crate::support::{Cluster, SOON, Stored, acquire, address, grant, id, lead, settings, simulate, until};

const LATENCY: Duration = Duration::from_millis(20);
/// What a packet carries.
const SMALL: usize = 1_400;

fn disks() -> [MemoryDisk; 3] {
    array::from_fn(|_| MemoryDisk::default())
}

/// Three nodes, of which the first leads. They take a snapshot after so many bytes of log.
async fn start(disks: &[MemoryDisk; 3], snapshot_after_bytes: u64) -> Cluster {
    let (dir, network) = (TempDir::new().unwrap(), Network::new(LATENCY));
    let starts = (1..).zip(disks).map(|(id, disk)| {
        let given = settings(id, dir.path().join(id.to_string()), network.port(&address(id)), 3);
        let (storage, random) = (Arc::new(Stored(disk.clone())), Random::seeded(id));
        let settings = Settings { storage, random, snapshot_after_bytes, ..given };
        async move { (id, Node::start(settings).await.unwrap()) }
    });
    let nodes: BTreeMap<_, _> = join_all(starts).await.into_iter().collect();
    let cluster = Cluster { dir, nodes, network };
    let first = cluster.handle(1);
    until("the cluster has started", || first.view(|table| table.started())).await;
    lead(&first, 1).await;
    until("it takes commands", || first.leads().borrow().is_some()).await;
    cluster
}

/// The true member was condemned, and the copy ran on, where nobody could call it.
#[tokio::test(start_paused = true)]
async fn a_copy_that_starts_while_its_member_stands_still_does_no_harm() {
    let disks: [MemoryDisk; 4] = array::from_fn(|_| MemoryDisk::default());
    let [first, second, third, copied] = disks.clone();
    simulate(&disks, async {
        let cluster = start(&[first, second.clone(), third], ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        grant(&cluster.handle(2), 1, "a").await;
        for other in ["node-1", "node-3"] {
            cluster.network.cut(other, "node-2");
            cluster.network.cut("node-2", other);
        }
        sleep(Duration::from_secs(17)).await;
        copied.turn_back(&second.copy());
        let port = cluster.network.port("elsewhere:7500");
        let mut given = settings(2, cluster.dir.path().join("2"), port, 3);
        given.peers.insert(2, "elsewhere:7500".to_owned());
        let copy = Node::start(Settings { storage: Arc::new(Stored(copied)), ..given }).await.unwrap();
        for _ in 0..30 {
            sleep(Duration::from_secs(1)).await;
            assert!(!copy.handle().is_ready().await, "the copy was let in");
            assert_eq!(cluster.handle(1).status().members[&2].peer, "node-2");
        }
        cluster.network.heal();
        let why = timeout(SOON, copy.failed()).await.expect("the copy goes on");
        assert!(why.contains("this one is a copy"), "{why}");
        let member = cluster.handle(2);
        let begun = Instant::now();
        while !member.is_ready().await {
            assert!(begun.elapsed() < SOON, "the member does not go on");
            sleep(LATENCY).await;
        }
        grant(&member, 2, "b").await;
        for node in cluster.nodes.values() {
            assert!(timeout(Duration::ZERO, node.failed()).await.is_err());
        }
    })
    .await;
}

/// About 5 KB in one entry.
fn large(lease: u128) -> Vec<Command> {
    (0..50).map(|n| acquire(lease + n, &format!("{:0100}", lease + n), 0)).collect()
}

fn propose(handle: &Handle, commands: Vec<Command>) -> JoinHandle<Result<(), Unanswered>> {
    let handle = handle.clone();
    tokio::spawn(async move { handle.propose(commands).await.map(drop) })
}

async fn until_not_ready(handle: &Handle) {
    let begun = Instant::now();
    while handle.is_ready().await {
        assert!(begun.elapsed() < SOON, "it is ready");
        sleep(LATENCY).await;
    }
}

/// It led for ever, nothing was committed, and all nodes said that they were ready.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn a_leader_whose_large_entries_are_lost_gives_up_the_leadership_and_does_not_take_it_back() {
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let (old, other) = (cluster.handle(1), cluster.handle(2));
        let term = old.status().term;
        for to in ["node-2", "node-3"] {
            cluster.network.lose_large("node-1", to, SMALL);
        }
        let begun = Instant::now();
        let lost = propose(&old, large(1_000));
        until_not_ready(&old).await;
        assert!(begun.elapsed() < Duration::from_secs(3), "it was ready for {:?}", begun.elapsed());
        until("another leads", || matches!(other.status().leader, Some(2 | 3))).await;
        assert!(begun.elapsed() < Duration::from_secs(6), "another leads after {:?}", begun.elapsed());
        assert_eq!(lost.await.unwrap(), Err(Unanswered::Indeterminate));
        grant(&other, 1, "a").await;
        grant(&old, 2, "b").await;
        propose(&other, large(1_000)).await.unwrap().unwrap();
        until("the old leader has what it could not send", || {
            old.view(|table| table.lease(None, id(1_049), None).is_ok())
        })
        .await;
        assert!(old.is_ready().await && other.is_ready().await);

        let status = other.status();
        assert!(status.term <= term + 3, "{} terms", status.term - term);
        sleep(Duration::from_secs(30)).await;
        assert_eq!((other.status().term, other.status().leader), (status.term, status.leader));
    })
    .await;
}

/// It led for ever: its own connections worked, and nobody told it that none could be opened to it. All that was asked of the
/// others failed, while the leader said that it was ready.
#[tokio::test(start_paused = true)]
async fn a_leader_that_no_majority_can_call_gives_up_the_leadership() {
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let (old, second, third) = (cluster.handle(1), cluster.handle(2), cluster.handle(3));
        let term = old.status().term;
        // One that cannot call it is no reason: the others are a majority.
        cluster.network.cut("node-2", "node-1");
        sleep(Duration::from_secs(20)).await;
        assert!(old.is_ready().await && third.is_ready().await && !second.is_ready().await);
        assert_eq!(old.status().term, term);
        let cannot_call = |at: &Handle| {
            let members = at.status().members.into_iter();
            members.filter(|(_, member)| member.cannot_call).map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!((cannot_call(&old), cannot_call(&third)), (vec![2], vec![]));

        cluster.network.cut("node-3", "node-1");
        let begun = Instant::now();
        until_not_ready(&old).await;
        until("another leads", || matches!(second.status().leader, Some(2 | 3))).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "another leads after {:?}", begun.elapsed());
        grant(&second, 1, "a").await;
        grant(&third, 2, "b").await;
        assert!(second.is_ready().await && third.is_ready().await);
        let term = second.status().term;
        sleep(Duration::from_secs(30)).await;
        assert!(!old.is_ready().await, "it hears no leader");
        assert_eq!(second.status().term, term);

        cluster.network.heal();
        until("the old leader has caught up", || old.view(|table| table.lease(None, id(2), None).is_ok()))
            .await;
        assert!(old.is_ready().await);
    })
    .await;
}

/// It serves whoever asks it, and without it nobody leads.
#[tokio::test(start_paused = true)]
async fn a_leader_that_nobody_can_call_goes_on_if_the_others_are_no_majority() {
    let disks = disks();
    simulate(&disks, async {
        let mut cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let leader = cluster.handle(1);
        cluster.network.cut("node-2", "node-1");
        cluster.nodes.remove(&3).unwrap().stop().await;
        let term = leader.status().term;
        sleep(Duration::from_secs(30)).await;
        assert_eq!(leader.status().term, term);
        assert!(leader.is_ready().await);
        grant(&leader, 1, "a").await;
    })
    .await;
}

/// It had a leader all the while, and those who waited at it learned of no grant.
#[tokio::test(start_paused = true)]
async fn a_follower_that_gets_only_heartbeats_is_cut_off_until_it_has_caught_up() {
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let (leader, follower) = (cluster.handle(1), cluster.handle(3));
        let applied = |handle: &Handle| handle.status().applied_index;
        until("it has all", || applied(&follower) == applied(&leader)).await;
        cluster.network.hold("node-1", "node-3", [APPENDS], Way::There);
        sleep(Duration::from_secs(10)).await;
        assert!(!follower.is_cut_off(), "it lacks nothing");
        grant(&leader, 1, "a").await;
        until("it is cut off", || follower.is_cut_off()).await;
        assert_eq!(follower.status().leader, Some(1));
        assert!(!leader.is_cut_off() && !cluster.handle(2).is_cut_off());
        cluster.network.heal();
        until("it is not", || !follower.is_cut_off()).await;
        assert!(follower.view(|table| table.lease(None, id(1), None).is_ok()));
    })
    .await;
}

/// A leader without a quorum falls silent for a while, again and again: it was heard between.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn a_follower_that_only_a_deposed_leader_reaches_is_cut_off() {
    let disks: [MemoryDisk; 5] = array::from_fn(|_| MemoryDisk::default());
    simulate(&disks, async {
        let provide = |id| (Arc::new(Stored(disks[id as usize - 1].clone())) as _, Random::seeded(id));
        let cluster = Cluster::found(5, Network::new(LATENCY), provide).await;
        let (old, follower, other) = (cluster.handle(1), cluster.handle(2), cluster.handle(3));
        lead(&old, 1).await;
        grant(&old, 1, "a").await;
        for (one, other) in [1, 2].into_iter().flat_map(|one| [3, 4, 5].map(|other| (one, other))) {
            cluster.network.cut(&address(one), &address(other));
            cluster.network.cut(&address(other), &address(one));
        }
        until("they are cut off", || old.is_cut_off() && follower.is_cut_off()).await;
        grant(&other, 2, "b").await;
        sleep(Duration::from_secs(30)).await;
        assert!(follower.is_cut_off() && !other.is_cut_off());
    })
    .await;
}

/// It took the node that it had asked to lead for the leader.
#[tokio::test(start_paused = true)]
async fn a_leader_that_gave_up_and_learned_of_no_other_is_cut_off() {
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let old = cluster.handle(1);
        for to in ["node-2", "node-3"] {
            cluster.network.lose_large("node-1", to, SMALL);
        }
        let lost = propose(&old, large(1_000));
        until("it has given up", || old.leads().borrow().is_none()).await;
        for other in ["node-2", "node-3"] {
            cluster.network.cut("node-1", other);
            cluster.network.cut(other, "node-1");
        }
        until("it is cut off", || old.is_cut_off()).await;
        cluster.network.heal();
        until("it is not", || !old.is_cut_off()).await;
        assert_eq!(lost.await.unwrap(), Err(Unanswered::Indeterminate));
    })
    .await;
}

/// The other node alone is no majority, and lacks what is stuck.
#[tokio::test(start_paused = true)]
async fn a_leader_that_the_others_cannot_replace_stays() {
    let disks = disks();
    simulate(&disks, async {
        let mut cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let leader = cluster.handle(1);
        let term = leader.status().term;
        cluster.nodes.remove(&3).unwrap().stop().await;
        cluster.network.lose_large("node-1", "node-2", SMALL);
        let stuck = propose(&leader, large(1_000));
        until_not_ready(&leader).await;
        sleep(Duration::from_secs(30)).await;
        assert!(!leader.is_ready().await);
        // It answers what needs no entry.
        leader.linearize().await.unwrap();
        assert_eq!((leader.status().term, leader.status().leader), (term, Some(1)));
        cluster.network.heal();
        until("what was stuck is applied", || {
            leader.view(|table| table.lease(None, id(1_000), None).is_ok())
        })
        .await;
        assert_eq!(stuck.await.unwrap(), Err(Unanswered::Indeterminate));
        until("it is settled", || leader.unfinished().proposal == 0.0).await;
        assert!(leader.is_ready().await);
    })
    .await;
}

/// Another leader is no better: it may only come without the entry that is stuck.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn leaders_that_all_commit_nothing_give_up_ever_more_slowly() {
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, ringfence_raft::SNAPSHOT_AFTER_BYTES).await;
        let leader = cluster.handle(1);
        for (from, to) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
            cluster.network.lose_large(&address(from), &address(to), SMALL);
        }
        let mut terms = Vec::new();
        for _ in 0..3 {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(40) {
                assert_eq!(propose(&leader, large(1_000)).await.unwrap(), Err(Unanswered::Indeterminate));
            }
            terms.push(leader.status().term);
        }
        let changes = terms.windows(2).map(|terms| terms[1] - terms[0]).collect::<Vec<_>>();
        assert!((1..=5).contains(&changes[1]), "terms {terms:?}");
    })
    .await;
}

/// The leader kept all that a slow node had not got yet in memory, and never sent it a snapshot.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn a_leader_keeps_no_more_of_its_log_in_memory_for_a_node_behind_a_slow_link() {
    const AFTER: u64 = 64 << 10;
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, AFTER).await;
        let (leader, slow) = (cluster.handle(1), cluster.handle(3));
        propose(&leader, large(1_000)).await.unwrap().unwrap();
        cluster.network.throttle("node-1", "node-3", 10_000.0);
        let (mut most, mut written) = (0, 0);
        while written < 20 * AFTER {
            // The table stays as it is: a snapshot of it is small.
            propose(&leader, large(1_000)).await.unwrap().unwrap();
            written += 5_000;
            most = most.max(leader.log_bytes_in_memory());
        }
        assert!(most < 8 * AFTER, "{most} bytes of {written}");
        grant(&leader, 1, "a").await;
        until("the slow node has it", || slow.view(|table| table.lease(None, id(1), None).is_ok())).await;
        assert_eq!(leader.status().leader, Some(1));
    })
    .await;
}
