//! What a node tells systemd, by the protocol of sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ringfence_harness::Cluster;

use super::PROGRAM;
use crate::support::{SOON, file_of};

/// Receives what a node sends to the service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn new(address: &SocketAddr) -> Self {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self(socket)
    }

    fn next(&self) -> String {
        let mut message = [0; 1024];
        let length = self.0.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    }
}

#[tokio::test]
async fn a_node_notifies_the_service_manager_when_it_listens_starts_and_stops() {
    let cluster = Cluster::builder(PROGRAM).nodes(2).lay_out().await.unwrap();
    let (_dir, path) = file_of("notify");
    // systemd uses a path, and others a name that is not in the file system.
    let name = format!("ringfence-test-{}", std::process::id());
    let sockets = [
        (path.display().to_string(), SocketAddr::from_pathname(&path).unwrap()),
        (format!("@{name}"), SocketAddr::from_abstract_name(&name).unwrap()),
    ];
    let mut managers = Vec::new();
    for (node, (socket, address)) in cluster.nodes().iter().zip(&sockets) {
        let manager = Manager::new(address);
        node.start_with(|command| _ = command.env("NOTIFY_SOCKET", socket)).unwrap();
        assert_eq!(manager.next(), "READY=1\nSTATUS=starting", "node {}", node.id());
        // It listens, and does not wait for the other member, which may start only after it is ready.
        assert_eq!(node.client().raw("GET", "/livez", "").await.unwrap().status, 200);
        managers.push(manager);
    }
    for (node, manager) in cluster.nodes().iter().zip(&managers) {
        assert_eq!(manager.next(), "STATUS=started", "node {}", node.id());
    }
    cluster.ready().await.unwrap();
    let (node, manager) = (cluster.node(2), &managers[1]);
    assert!(node.terminate().await.unwrap().success());
    assert_eq!(manager.next(), "STOPPING=1\nSTATUS=stopping");
}

#[tokio::test]
async fn a_node_runs_without_the_service_manager_that_it_was_told() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap();
    let node = cluster.node(1);
    node.start_with(|command| _ = command.env("NOTIFY_SOCKET", "/nonexistent/notify")).unwrap();
    node.ready().await.unwrap();
    node.tells("cannot notify the service manager").await.unwrap();
}

#[tokio::test]
async fn a_node_runs_and_stops_although_the_service_manager_does_not_read() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap();
    let node = cluster.node(1);
    let (_dir, path) = file_of("notify");
    let _manager = UnixDatagram::bind(&path).unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.connect(&path).unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send(b"STATUS=another service").is_ok() {}
    node.start_with(|command| _ = command.env("NOTIFY_SOCKET", &path)).unwrap();
    node.ready().await.unwrap();
    assert!(node.terminate().await.unwrap().success());
    assert!(node.log().contains("cannot notify the service manager"), "{}", node.log());
}
