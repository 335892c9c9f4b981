//! A node that speaks the Redis protocol.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfence_access::Watched;
use ringfence_http::{Connections, Threads, serve_dialogs};
use ringfence_lease::SUPPORTED;
use ringfence_raft::{Handle, Node as RaftNode, Quartz, Random, Settings, System, Tcp, WallClock};
use ringfence_resp::Resp;
use ringfence_service::{Caller, Options, Proof, Service};
use ringfence_tls::Reload;
use ringfence_wire::{Key, Revision, RulesRange};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::client::{Client, PATIENCE};

/// The file with the access rules, in the data directory of a test.
const RULES: &str = "rules";

pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) service: Arc<Service>,
    pub(crate) handle: Handle,
    access: Option<Arc<Watched>>,
    _draining: watch::Sender<bool>,
    _node: RaftNode,
    data: TempDir,
}

impl Node {
    /// A cluster of one node.
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// A cluster of one node, whose program supports no rules of the table after `newest`.
    pub(crate) async fn start_under(newest: u8) -> Self {
        Self::start_of(None, RulesRange { newest, ..SUPPORTED }).await
    }

    /// A cluster of one node with access rules.
    pub(crate) async fn start_with(rules: Option<&str>) -> Self {
        Self::start_of(rules, SUPPORTED).await
    }

    async fn start_of(access: Option<&str>, rules: RulesRange) -> Self {
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let settings = Settings {
            id: 1,
            data: data.path().join("node"),
            transport: Arc::new(Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap())),
            peers: BTreeMap::new(),
            join: false,
            url: "http://localhost".to_owned(),
            snapshot_after_bytes: ringfence_raft::SNAPSHOT_AFTER_BYTES,
            max_lease_bytes: ringfence_raft::MAX_LEASE_BYTES,
            first_revision: Some(Revision(1_000)),
            wall_clock: WallClock::system(),
            elders: None,
            random: Random::system(),
            quartz: Quartz::none(),
            rules,
            since: ringfence_lease::Command::since,
            storage: Arc::new(System),
        };
        let node = RaftNode::start(settings).await.unwrap();
        let (draining, is_draining) = watch::channel(false);
        let access = access.map(|rules| {
            let file = data.path().join(RULES);
            std::fs::write(&file, rules).unwrap();
            Arc::new(ringfence_access::watch(file).unwrap())
        });
        let options = Options {
            access: access.clone(),
            mirror_timeout: None,
            draining: is_draining.clone(),
            blocked: watch::channel(false).1,
            first_attachment: 0,
            slow_request: PATIENCE,
        };
        let handle = node.handle();
        let service = Arc::new(Service::new(handle.clone(), options));
        eventually("the table is started", || handle.view(|table| table.started())).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let resp = Resp::new(Arc::clone(&service));
        let begin = move |remote| resp.dialog(remote);
        let (threads, connections) = (Arc::new(Threads::here()), Connections::new(200));
        tokio::spawn(serve_dialogs(listener, None, threads, connections, begin, is_draining, PATIENCE));
        Self { address, service, handle, access, _draining: draining, _node: node, data }
    }

    /// Replaces the access rules. The node uses the new ones at once.
    pub(crate) fn replace_rules(&self, rules: &str) {
        std::fs::write(self.data.path().join(RULES), rules).unwrap();
        let access = self.access.as_ref().unwrap();
        let before = access.version();
        access.look(true);
        assert!(access.version() > before);
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// The label of the lease on `key`, as HTTP shows it.
    pub(crate) fn holder(&self, key: &str) -> Option<String> {
        let view = self.handle.view(|table| table.key(&Key::new(key).unwrap(), None));
        view.holders[0].holder.as_ref().map(|holder| holder.as_str().to_owned())
    }

    /// A client without a credential.
    pub(crate) fn anonymous(&self) -> Caller {
        self.service.caller(Proof::default()).unwrap()
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
