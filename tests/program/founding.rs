//! A cluster is founded once, with all its members, whatever happens meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use ringfence_harness::{Acquired, Answered, Cluster, Node, granted, take, try_once, until};
use ringfence_wire::LeaseId;

use crate::support::{PROGRAM, SOON, cluster, script};

/// The id of its cluster that a node has on disk.
fn belongs_to(node: &Node) -> Option<String> {
    let identity = std::fs::read_to_string(node.data().join("NODE")).ok()?;
    identity.lines().find_map(|line| line.strip_prefix("cluster ")).map(str::to_owned)
}

/// Checks that all nodes belong to one cluster, and that it works.
async fn is_one_cluster(cluster: &Cluster) {
    cluster.ready().await.unwrap();
    let ids: BTreeSet<_> = cluster.nodes().iter().map(|node| belongs_to(node).unwrap()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let mut tokens = BTreeSet::new();
    for node in cluster.nodes() {
        let grant = take(&node.client(), &format!("founded/{}", node.id())).await;
        assert!(tokens.insert(grant.token), "{tokens:?}");
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_cluster_is_founded_once_however_often_its_nodes_are_killed_meanwhile() {
    // Founding takes some tens of milliseconds, and the first election up to a second.
    for step_ms in [3, 7, 15, 40] {
        let cluster = cluster().lay_out().await.unwrap();
        for kill in 1..=12u64 {
            cluster.start_all().unwrap();
            tokio::time::sleep(Duration::from_millis(step_ms * kill)).await;
            match kill % 4 {
                0 => cluster.kill_all().unwrap(),
                id => cluster.node(id).kill().unwrap(),
            }
        }
        cluster.start_all().unwrap();
        is_one_cluster(&cluster).await;
    }
}

#[tokio::test]
async fn no_cluster_is_founded_while_a_member_is_missing() {
    let cluster = cluster().lay_out().await.unwrap();
    cluster.node(1).start().unwrap();
    cluster.node(2).start().unwrap();
    let waits = || async { cluster.node(1).log().contains("missing=[3]").then_some(()) };
    until(SOON, "node 1 logs which member is missing", waits).await.unwrap();
    let client = cluster.node(1).client();
    assert_eq!(client.raw("GET", "/livez", "").await.unwrap().status, 200);
    assert!(!client.is_ready().await);
    let path = format!("/v1/leases/{}", LeaseId::random());
    assert_eq!(client.raw("PUT", &path, r#"{"keys":["k"]}"#).await.unwrap().status, 503);
    // It tries ten times a second, so a mistake would happen within this time.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(belongs_to(cluster.node(1)).as_deref(), Some("none"));
    assert_eq!(belongs_to(cluster.node(2)).as_deref(), Some("none"));
    assert!(cluster.node(2).terminate().await.unwrap().success(), "it stops cleanly while it waits");
    cluster.start_all().unwrap();
    is_one_cluster(&cluster).await;
}

/// Whoever forgets the list on three nodes gets three clusters.
#[tokio::test]
async fn a_node_without_a_list_of_members_says_that_it_is_a_cluster_of_its_own() {
    let cluster = cluster().nodes(1).lay_out().await.unwrap();
    let node = cluster.node(1);
    let dir = tempfile::tempdir().unwrap();
    let drops_it = "for it; do shift; case $it in --peers=*) ;; *) set -- \"$@\" \"$it\" ;; esac; done";
    node.use_program(script(dir.path(), &format!("{drops_it}\nexec '{PROGRAM}' \"$@\"")));
    node.start().unwrap();
    node.tells("--peers is not set").await.unwrap();
    node.use_program(PROGRAM);
    let told = node.log().len();
    node.restart().unwrap();
    node.ready().await.unwrap();
    assert!(node.terminate().await.unwrap().success());
    assert!(!node.log()[told..].contains("--peers is not set"));
}

#[tokio::test]
async fn nodes_that_are_all_terminated_at_once_stop_cleanly_and_start_again() {
    let cluster = cluster().start().await.unwrap();
    let (lease, request) = (LeaseId::random(), try_once("kept"));
    let grant = granted(&cluster.node(1).client(), lease, &request).await;
    let stopped = cluster.nodes().iter().map(|node| async { (node.id(), node.terminate().await.unwrap()) });
    for (id, status) in futures_util::future::join_all(stopped).await {
        assert!(status.success(), "node {id}: {status}");
    }
    cluster.start_all().unwrap();
    is_one_cluster(&cluster).await;
    let repeat = cluster.node(2).client().patient().acquire(lease, &request).await.done();
    assert!(matches!(repeat, Acquired::Standing(repeat) if repeat.token == grant.token));
}
