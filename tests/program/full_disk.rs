//! A full disk: its node stops, or refuses to start, with a clear message; the others go on; with free space it comes back.

use ringfence_harness::{Acquired, Answered, Disk, definite, key, may_mount, noise, try_once, until};
use ringfence_wire::{AcquireRequest, LeaseId, Mode, WantedKey};
use tokio::process::Command;

use crate::support::{PROGRAM, SOON, cluster};

/// More than fits into the first 4 MiB of a log.
const MANY: u64 = 400;

/// A request with about 15 KB of keys.
fn large(number: u64) -> AcquireRequest {
    let claim =
        |part| WantedKey { key: key(&format!("full/{number}/{part}/{}", noise(220))), mode: Mode::Exclusive };
    AcquireRequest { keys: (0..64).map(claim).collect(), ..try_once("replaced") }
}

async fn it_stops_and_comes_back(victim_leads: bool) {
    if !may_mount() {
        return;
    }
    let cluster = cluster().lay_out().await.unwrap();
    let disks: Vec<Disk> =
        cluster.nodes().iter().map(|node| Disk::memory(node.data(), 64 << 20).unwrap()).collect();
    cluster.all_ready().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let full = if victim_leads { leader } else { cluster.others(leader.id()).next().unwrap() };
    let disk = &disks[full.id() as usize - 1];
    disk.fill().unwrap();

    let mut granted = Vec::new();
    for number in 0..MANY {
        let other = cluster.others(full.id()).nth(number as usize % 2).unwrap().client().patient();
        let (lease, request) = (LeaseId::random(), large(number));
        let reply = definite(SOON, || other.acquire(lease, &request)).await.unwrap();
        let (Acquired::Granted(grant) | Acquired::Standing(grant)) = Ok(reply).done() else {
            panic!("not granted")
        };
        granted.push((lease, request, grant.token));
    }
    assert!(granted.is_sorted_by_key(|(.., token)| *token));
    assert_eq!(full.ends().await.unwrap().code(), Some(1));
    let log = full.log();
    assert!(log.contains("the node failed") && log.contains("No space left on device"), "{log}");

    disk.give_room().unwrap();
    full.start().unwrap();
    cluster.ready().await.unwrap();
    for (lease, request, token) in granted {
        let repeat = full.client().patient().acquire(lease, &request).await.done();
        assert!(matches!(&repeat, Acquired::Standing(grant) if grant.token == token), "{repeat:?}");
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_leader_with_a_full_disk_stops_and_comes_back_with_room() {
    it_stops_and_comes_back(true).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_follower_with_a_full_disk_stops_and_comes_back_with_room() {
    it_stops_and_comes_back(false).await;
}

/// Regression: it reported that its snapshots were lost, and advised a new id.
#[tokio::test]
#[ignore = "slow"]
async fn a_node_whose_disk_is_full_when_it_starts_says_so() {
    if !may_mount() {
        return;
    }
    let cluster = cluster().nodes(1).argument("--snapshot-after-bytes=1048576").lay_out().await.unwrap();
    let node = cluster.node(1);
    let disk = Disk::memory(node.data(), 64 << 20).unwrap();
    cluster.all_ready().await.unwrap();
    let mut granted = Vec::new();
    for number in 0..300 {
        let (lease, request, client) = (LeaseId::random(), large(number), node.client().patient());
        definite(SOON, || client.acquire(lease, &request)).await.unwrap();
        granted.push((lease, request));
    }
    // The log is truncated behind the older of two snapshots, which are taken after 1 MiB each: how many commands go by while one
    // is taken depends on the machine.
    let (churned, client) = (large(MANY), node.client().patient());
    let first_segment = node.data().join("log/00000000000000000001.wal");
    let is_cut = || async {
        let lease = LeaseId::random();
        definite(SOON, || client.acquire(lease, &churned)).await.unwrap();
        definite(SOON, || client.release(lease)).await.unwrap();
        (!first_segment.exists()).then_some(())
    };
    until(SOON, "the log is cut", is_cut).await.unwrap();
    // What is left of other snapshots is removed at the next start, and that would give room.
    let snapshots = node.data().join("snapshots");
    let are_two = || async { (std::fs::read_dir(&snapshots).unwrap().count() == 2).then_some(()) };
    until(SOON, "two snapshots are left", are_two).await.unwrap();
    node.kill().unwrap();

    disk.fill().unwrap();
    let ended = node.start_in_vain().await.unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.output.contains("No space left on device"), "{}", ended.output);
    assert!(ended.output.contains("make room"), "{}", ended.output);
    assert!(!ended.output.contains("new id"), "{}", ended.output);

    disk.give_room().unwrap();
    node.start().unwrap();
    cluster.ready().await.unwrap();
    for (lease, request) in granted {
        let repeat = node.client().patient().acquire(lease, &request).await.done();
        assert!(matches!(repeat, Acquired::Standing(_)), "{repeat:?}");
    }
}

/// The leader sent the snapshot again and again, called the node slow, and `cluster add` succeeded; the node went on.
#[tokio::test]
async fn a_new_node_without_room_for_the_snapshot_stops_and_the_leader_knows_why() {
    if !may_mount() {
        return;
    }
    let cluster = cluster().joiners(1).argument("--snapshot-after-bytes=1048576").lay_out().await.unwrap();
    let new = cluster.node(4);
    let _disk = Disk::memory(new.data(), 3 << 20).unwrap();
    let founders = cluster.others(4);
    founders.for_each(|node| node.start().unwrap());
    cluster.ready().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    for number in 0..MANY {
        let (lease, request, client) = (LeaseId::random(), large(number), leader.client().patient());
        definite(SOON, || client.acquire(lease, &request)).await.unwrap();
    }
    new.start().unwrap();
    let run = async |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let command = command.env("RINGFENCE_URLS", leader.url()).args(words);
        let output = command.kill_on_drop(true).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let waits = async || new.log().contains("waiting to be added").then_some(());
    until(SOON, "it waits to be added", waits).await.unwrap();
    let (status, said) = run(&["cluster", "add", "4", &new.peer().to_string()]).await;
    let reason = "could not deliver a snapshot to node 4: the node refuses it: it cannot be stored";
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(reason) && said.contains("No space left on device"), "{said}");
    assert_eq!(new.ends().await.unwrap().code(), Some(1));
    let log = new.log();
    assert!(log.contains("the node failed: a snapshot cannot be stored in"), "{log}");
    let (status, said) = run(&["cluster", "status"]).await;
    assert!(status == Some(3) && said.contains(reason), "{said}");
    let log = leader.log();
    assert!(log.contains("a snapshot could not be delivered") && !log.contains("so slowly"), "{log}");
}
