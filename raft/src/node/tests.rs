use std::future::pending;
use std::io;

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::peer::Connection;

/// Far more than anything here takes that goes well.
const SOON: Duration = Duration::from_secs(60);

/// TCP that never finishes connecting.
struct Unreachable {
    port: crate::Tcp,
    connecting: Arc<Notify>,
}

impl Transport for Unreachable {
    fn connect(&self, _: &str) -> BoxFuture<'static, io::Result<Connection>> {
        self.connecting.notify_one();
        Box::pin(pending())
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        self.port.accept()
    }
}

async fn start(dir: &tempfile::TempDir, transport: Arc<dyn Transport>) -> Node {
    let settings = Settings {
        id: 1,
        data: dir.path().to_owned(),
        transport,
        peers: BTreeMap::new(),
        join: false,
        url: "http://node-1".to_owned(),
        first_revision: None,
        wall_clock: WallClock::system(),
        elders: None,
        snapshot_after_bytes: SNAPSHOT_AFTER_BYTES,
        max_lease_bytes: MAX_LEASE_BYTES,
        random: Random::system(),
        quartz: Quartz::system(),
        rules: ringfence_lease::SUPPORTED,
        since: ringfence_lease::Command::since,
        storage: Arc::new(crate::System),
    };
    let node = Node::start(settings).await.unwrap();
    node.handle().linearize().await.unwrap();
    node
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A link that was connecting once kept the port for as long as that took.
#[tokio::test]
async fn a_stopped_node_frees_its_port_though_a_handle_and_a_link_outlive_it() {
    let dir = tempfile::tempdir().unwrap();
    let listener = listen().await;
    let address = listener.local_addr().unwrap();
    let connecting = Arc::<Notify>::default();
    let transport = Unreachable { port: crate::Tcp(listener), connecting: Arc::clone(&connecting) };
    let node = start(&dir, Arc::new(transport)).await;
    let handle = node.handle();
    let adding = handle.clone();
    tokio::spawn(async move { adding.add_member(2, "node-2".to_owned()).await });
    timeout(SOON, connecting.notified()).await.expect("it connects to nobody");
    node.stop().await;
    TcpListener::bind(address).await.unwrap();
    assert!(handle.linearize().await.is_err());
}

/// A node once went on without its task for proposals, and answered nobody.
#[tokio::test]
async fn a_node_fails_when_any_of_its_tasks_ends() {
    let mut reported = Vec::new();
    loop {
        let dir = tempfile::tempdir().unwrap();
        let node = start(&dir, Arc::new(crate::Tcp(listen().await))).await;
        // The task that founds the cluster has ended by then, or ends for good.
        let lasting = node.tasks.running.iter().filter(|task| !task.is_finished());
        let Some(task) = lasting.take(7).nth(reported.len()) else { break };
        task.abort();
        reported.push(timeout(SOON, node.failed()).await.unwrap());
        node.stop().await;
    }
    assert_eq!(reported.len(), 7);
    for task in ["connections of peers", "proposals", "linearizable reads", "the leadership", "snapshots"] {
        assert!(reported.contains(&format!("the task for {task} has ended")), "{task}: {reported:?}");
    }
}
