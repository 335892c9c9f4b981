//! Silent connections use up descriptors, but never those that the log, the snapshots and the peers of a node need.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use ringfence_harness::{Cluster, definite, key, try_once, until};
use ringfence_wire::{AcquireRequest, LeaseId, Mode, WantedKey};

use crate::support::{SOON, limited};

/// More connections to a node than its limit of open files.
const SILENT: usize = 540;
/// Enough for a second segment of the log and some snapshots.
const WRITES: u64 = 400;

/// A request with about 15 KB of keys, which do not compress.
fn large() -> AcquireRequest {
    let random = |_| LeaseId::random().to_string();
    let claim = |_| WantedKey { key: key(&(0..6).map(random).collect::<String>()), mode: Mode::Exclusive };
    AcquireRequest { keys: (0..64).map(claim).collect(), ..try_once("replaced") }
}

#[tokio::test]
#[ignore = "slow"]
async fn silent_connections_stop_no_node_however_low_its_limit_of_descriptors() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder =
        Cluster::builder(limited(dir.path(), 512)).argument("--snapshot-after-bytes").argument("1000000");
    let builder = builder.argument("--http-threads").argument("2");
    let cluster = builder.start().await.unwrap();
    cluster.node(1).tells("few connections").await.unwrap();
    let log = cluster.node(1).log();
    assert!(log.contains("connections=248"), "{log}");

    let connect = |_| cluster.nodes().iter().map(|node| TcpStream::connect(node.http()).unwrap());
    let mut silent: Vec<TcpStream> = (0..SILENT).flat_map(connect).collect();
    for number in 0..WRITES {
        let node = &cluster.nodes()[number as usize % 3];
        let (client, lease, request) = (node.client(), LeaseId::random(), large());
        definite(SOON, || client.acquire(lease, &request)).await.unwrap();
        definite(SOON, || client.release(lease)).await.unwrap();
        // Its connection was closed, and it connects again.
        silent.remove(0);
        silent.push(TcpStream::connect(node.http()).unwrap());
    }
    for node in cluster.nodes() {
        assert!(node.is_running(), "{}", node.log());
        let is_taken = || async { (!node.snapshots().is_empty()).then_some(()) };
        until(SOON, "a snapshot is taken", is_taken).await.unwrap();
        let value = async |series| node.metric(series).await.unwrap().expect(series);
        assert_eq!(value("ringfence_http_connections_most").await, 248.0);
        assert!(value("ringfence_http_connections").await <= 248.0);
        assert!(value("ringfence_http_connections_closed_total{reason=\"evicted\"}").await > 100.0);
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&node.data()), 0o700);
        assert_eq!(mode(&node.data().join("NODE")), 0o600);
    }
}
