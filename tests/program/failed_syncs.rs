//! A failed sync stops its node and no other; and nothing is acknowledged before its sync.

use std::fs::DirEntry;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_harness::{Answered, Cluster, Injection, Load, Node, definite, may_inject, try_once};
use ringfence_wire::LeaseId;

use crate::support::{PROGRAM, SOON};

/// The delay of slow syncs.
const SLOW: Duration = Duration::from_millis(300);
/// `O_DIRECT`, a flag of an open file.
const DIRECT: u32 = 0o40000;

async fn it_stops_and_comes_back(victim_leads: bool) {
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let load = Load::start(&cluster, "load");
    for _ in 0..2 {
        load.more(100).await.unwrap();
        let leader = cluster.leader().await.unwrap();
        let victim = if victim_leads { leader } else { cluster.others(leader.id()).next().unwrap() };
        let before = victim.log().len();
        let _failing = Injection::start(victim, "fdatasync", "error=EIO:when=1").await.unwrap();
        assert_eq!(victim.ends().await.unwrap().code(), Some(1));
        let log = victim.log().split_off(before);
        let why = log.lines().find(|line| line.starts_with("ringfence: the node failed"));
        let (why, file) =
            (why.unwrap_or_else(|| panic!("{log}")), format!("{}/log/", victim.data().display()));
        assert!(why.contains(&file) && why.ends_with(".wal: Input/output error (os error 5)"), "{why}");
        load.more(200).await.unwrap();
        victim.start().unwrap();
        cluster.ready().await.unwrap();
    }
    load.more(100).await.unwrap();
    load.end().await.check(&cluster).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_leader_whose_sync_fails_once_stops_and_comes_back() {
    it_stops_and_comes_back(true).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_follower_whose_sync_fails_once_stops_and_comes_back() {
    it_stops_and_comes_back(false).await;
}

/// Whether the node has opened its log with `O_DIRECT`.
fn writes_directly(node: &Node) -> bool {
    let process = PathBuf::from(format!("/proc/{}", node.pid().unwrap()));
    let is_direct = |file: std::io::Result<DirEntry>| {
        let name = file.unwrap().file_name();
        let target = std::fs::read_link(process.join("fd").join(&name)).ok()?;
        let info = std::fs::read_to_string(process.join("fdinfo").join(&name)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        (target.extension()? == "wal").then_some(flags & DIRECT != 0)
    };
    std::fs::read_dir(process.join("fd")).unwrap().filter_map(is_direct).any(|is_direct| is_direct)
}

/// A direct write reaches the disk without a sync, but may be in its write cache only.
#[tokio::test]
async fn nothing_is_acknowledged_before_its_sync_even_if_it_was_written_directly() {
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    if !cluster.nodes().iter().all(writes_directly) {
        return eprintln!("skipped: this file system has no direct writes");
    }
    let delay = format!("delay_enter={}", SLOW.as_micros());
    let mut slow = Vec::new();
    for node in cluster.nodes() {
        slow.push(Injection::start(node, "fdatasync", &delay).await.unwrap());
    }
    for node in cluster.nodes() {
        let (client, lease) = (node.client(), LeaseId::random());
        let request = try_once(&format!("slow/{}", node.id()));
        let asked = Instant::now();
        let acquired = Ok(definite(SOON, || client.acquire(lease, &request)).await.unwrap()).done();
        assert!(asked.elapsed() >= SLOW, "acquired after {:?}", asked.elapsed());
        assert!(acquired.grant().is_some());
        let asked = Instant::now();
        Ok(definite(SOON, || client.renew(lease, None)).await.unwrap()).done();
        assert!(asked.elapsed() >= SLOW, "renewed after {:?}", asked.elapsed());
        let asked = Instant::now();
        Ok(definite(SOON, || client.release(lease)).await.unwrap()).done();
        assert!(asked.elapsed() >= SLOW, "released after {:?}", asked.elapsed());
    }
    assert!(slow.iter().all(|slow| slow.count() > 0));
}
