//! Nodes and clients that know each other by name, where lookups are slow and some addresses lead nowhere.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Duration;

use ringfence_harness::{BlackHoles, Cluster, Lookups, Node, available, until};
use tokio::process::Command as Async;
use tokio::time::timeout;

use crate::support::PROGRAM;

const SOON: Duration = Duration::from_secs(120);
/// As of the C library whose first name server is dead.
const SLOW: Duration = Duration::from_secs(5);
const NAMES: [&str; 3] = ["node-1.test", "node-2.test", "node-3.test"];

/// A cluster whose nodes have names with these addresses, before their own.
async fn lay_out(before: impl Fn(&Node) -> Vec<IpAddr>, delay: Duration) -> Option<(Cluster, Lookups)> {
    let cluster = Cluster::builder(PROGRAM).host("node-{id}.test").lay_out().await.unwrap();
    let addresses: Vec<Vec<IpAddr>> =
        cluster.nodes().iter().map(|node| [before(node), vec![node.peer().ip()]].concat()).collect();
    let names: Vec<(&str, &[IpAddr])> = NAMES.into_iter().zip(addresses.iter().map(Vec::as_slice)).collect();
    let lookups = available(Lookups::new(&names, delay))?;
    Some((cluster, lookups))
}

fn start(node: &Node, lookups: &Lookups) {
    let with_names = |command: &mut Command| {
        command.envs(lookups.variables());
    };
    node.start_with(with_names).unwrap();
}

/// Runs `ringfence` with these words, and the URLs of the nodes by name.
async fn succeeds(cluster: &Cluster, lookups: &Lookups, words: &[&str]) {
    let url = |(node, name): (&Node, &str)| format!("http://{name}:{}", node.http().port());
    let urls: Vec<String> = cluster.nodes().iter().zip(NAMES).map(url).collect();
    let mut command = Async::new(PROGRAM);
    command.args(words).env("RINGFENCE_URLS", urls.join(",")).envs(lookups.variables()).kill_on_drop(true);
    let output = timeout(SOON, command.output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

async fn ready(node: &Node) {
    let client = node.client();
    let look = async || client.is_ready().await.then_some(());
    until(SOON, format!("node {} is ready", node.id()), look).await.unwrap();
}

/// The time to connect once included the lookup: the cluster was never founded, and no command succeeded.
#[tokio::test]
#[ignore = "slow"]
async fn a_cluster_with_slow_lookups_is_founded_and_takes_a_restarted_node_back() {
    let Some((cluster, lookups)) = lay_out(|_| Vec::new(), SLOW).await else { return };
    cluster.nodes().iter().for_each(|node| start(node, &lookups));
    for node in cluster.nodes() {
        ready(node).await;
    }
    succeeds(&cluster, &lookups, &["lock", "a", "--", "true"]).await;
    succeeds(&cluster, &lookups, &["ls"]).await;
    let leader = cluster.leader().await.unwrap().id();
    for id in [leader, leader % 3 + 1] {
        cluster.node(id).kill().unwrap();
        start(cluster.node(id), &lookups);
        ready(cluster.node(id)).await;
    }
    succeeds(&cluster, &lookups, &["lock", "a", "--try", "--", "true"]).await;
}

/// Where nothing of a node is.
fn other_address(node: &Node) -> IpAddr {
    let IpAddr::V4(ip) = node.peer().ip() else { unreachable!("loopback addresses are IPv4") };
    let [a, b, c, d] = ip.octets();
    Ipv4Addr::new(a, b, c.wrapping_add(1), d).into()
}

/// Each address once had to answer before the next one was tried, all within the time of one.
#[tokio::test]
async fn nodes_and_clients_go_past_an_address_that_does_not_answer() {
    let Some((cluster, lookups)) = lay_out(|node| vec![other_address(node)], Duration::ZERO).await else {
        return;
    };
    let ports = |node: &Node| {
        let elsewhere = other_address(node);
        [node.http(), node.peer()].map(|address| (elsewhere, address.port()).into())
    };
    let _silent = BlackHoles::dig(cluster.nodes().iter().flat_map(ports)).await.unwrap();
    cluster.nodes().iter().for_each(|node| start(node, &lookups));
    for node in cluster.nodes() {
        ready(node).await;
    }
    succeeds(&cluster, &lookups, &["lock", "a", "--", "true"]).await;
}
