//! A sync that fails is final for its node and for nobody else; and nothing is acknowledged before its sync.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::DirEntry;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_harness::{Answered, Cluster, Injection, Load, Node, definite, may_inject, try_once};
use ringfence_wire::LeaseId;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// How long every sync takes that is made to take long.
const SLOW: Duration = Duration::from_millis(300);
/// Of the flags of an open file.
const DIRECT: u32 = 0o40000;

async fn it_stops_and_comes_back(victim_leads: bool) {
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).start().await.unwrap();
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
async fn a_leader_whose_sync_fails_once_stops_and_comes_back() {
    it_stops_and_comes_back(true).await;
}

#[tokio::test]
async fn a_follower_whose_sync_fails_once_stops_and_comes_back() {
    it_stops_and_comes_back(false).await;
}

/// Whether the node has its log open to write past the page cache.
fn writes_past_the_page_cache(node: &Node) -> bool {
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

/// What is written past the page cache is at the disk without any sync, and may be in no more than its cache.
#[tokio::test]
async fn nothing_is_acknowledged_before_its_sync_though_it_was_written_past_the_page_cache() {
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).start().await.unwrap();
    if !cluster.nodes().iter().all(writes_past_the_page_cache) {
        return eprintln!("skipped: this file system cannot write past the page cache");
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
