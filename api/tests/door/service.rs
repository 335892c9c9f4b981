//! A node with an HTTP listener.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_api::{Hang, Options, metrics_builder, routes};
use ringfence_http::{Connections, Threads, serve};
use ringfence_raft::{Handle, Node, Settings, WallClock};
use ringfence_wire::{Grant, LeaseId, Role, Waiting};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client::{Connection, Response, request};
use crate::document;

/// Far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The maximum number of connections of a node.
pub(crate) const MOST_CONNECTIONS: usize = 200;

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    pub(crate) connections: Arc<Connections>,
    pub(crate) draining: watch::Sender<bool>,
    /// For how long a thread seems to hang.
    pub(crate) hangs_for_ms: Arc<AtomicU64>,
    /// Only the handlers see draining here: the tests keep using their connections.
    _serving: watch::Sender<bool>,
    _node: Node,
    _data: TempDir,
    /// The runtime of a member of three nodes, as in a process of its own.
    runtime: Option<Runtime>,
}

impl Service {
    /// A cluster of one node.
    pub(crate) async fn start() -> Self {
        Self::start_as(None).await
    }

    /// The same, advertising `url`.
    pub(crate) async fn start_as(url: Option<&str>) -> Self {
        let peer_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_member(1, peer_listener, BTreeMap::new(), url).await
    }

    /// A cluster of three nodes.
    pub(crate) async fn start_three() -> Vec<Self> {
        let mut listeners = Vec::new();
        let mut peers = BTreeMap::new();
        for id in 1..=3 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            peers.insert(id, listener.local_addr().unwrap().to_string());
            listeners.push((id, listener));
        }
        let starting: Vec<_> = listeners
            .into_iter()
            .map(|(id, listener)| {
                let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                let listener = {
                    let _entered = runtime.enter();
                    TcpListener::from_std(listener).unwrap()
                };
                let service = runtime.spawn(Self::start_member(id, listener, peers.clone(), None));
                (runtime, service)
            })
            .collect();
        let mut services = Vec::new();
        for (runtime, service) in starting {
            services.push(service.await.unwrap().in_runtime(runtime));
        }
        services
    }

    fn in_runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Stops a member of three as if its process were killed: when this returns, its sockets are closed.
    pub(crate) fn kill(&mut self) {
        let runtime = self.runtime.take().expect("it has not been killed yet");
        // An async test must not block.
        let ended = std::thread::spawn(|| runtime.shutdown_timeout(PATIENCE)).join();
        ended.expect("a runtime ends without a panic");
    }

    async fn start_member(
        id: u64,
        peer_listener: TcpListener,
        peers: BTreeMap<u64, String>,
        url: Option<&str>,
    ) -> Self {
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings {
            id,
            data: data.path().join("node"),
            transport: std::sync::Arc::new(ringfence_raft::Tcp(peer_listener)),
            peers,
            join: false,
            url: url.map_or_else(|| format!("http://{address}"), str::to_owned),
            snapshot_after_bytes: ringfence_raft::SNAPSHOT_AFTER_BYTES,
            max_lease_bytes: ringfence_raft::MAX_LEASE_BYTES,
            first_revision: Some(ringfence_wire::Revision(1_000)),
            wall_clock: WallClock::system(),
            elders: None,
            random: ringfence_raft::Random::system(),
            quartz: ringfence_raft::Quartz::none(),
            rules: ringfence_lease::SUPPORTED,
            since: ringfence_lease::Command::since,
            storage: Arc::new(ringfence_raft::System),
        };
        let node = Node::start(settings).await.unwrap();
        let handle = node.handle();
        let (draining, is_draining) = watch::channel(false);
        let connections = Connections::new(MOST_CONNECTIONS);
        // The recorder comes first: counters are made once.
        let metrics = measurements();
        let service = ringfence_service::Service::new(
            handle.clone(),
            ringfence_service::Options {
                access: None,
                mirror_timeout: None,
                draining: is_draining,
                blocked: watch::channel(false).1,
                first_attachment: 0,
                slow_request: PATIENCE,
            },
        );
        let hangs_for_ms = Arc::<AtomicU64>::default();
        let ms = Arc::clone(&hangs_for_ms);
        let hangs = Arc::new(move || Hang {
            thread: "a thread".to_owned(),
            time: Duration::from_millis(ms.load(Ordering::SeqCst)),
        });
        let routes = routes(
            Arc::new(service),
            Options {
                metrics,
                connections: Arc::clone(&connections),
                hosts: Vec::new(),
                hangs,
                mirror_status: None,
                certificates: Arc::new(|_| ()),
            },
        );
        let answer = move |request, remote| routes.clone().answer(request, remote);
        let (serving, ending) = watch::channel(false);
        let threads = Arc::new(Threads::here());
        tokio::spawn(serve(listener, None, threads, Arc::clone(&connections), answer, ending, PATIENCE));
        let service = Self {
            address,
            handle,
            connections,
            draining,
            hangs_for_ms,
            _serving: serving,
            _node: node,
            _data: data,
            runtime: None,
        };
        eventually("the table is started", || service.handle.view(|table| table.started())).await;
        assert!(service.handle.is_ready().await, "a node that leads with a quorum is ready");
        eventually("it names the leader", || service.handle.leader_url().is_some()).await;
        service
    }

    pub(crate) fn leads(&self) -> bool {
        self.handle.status().role == Role::Leader
    }

    /// Sends a request on a new connection and checks the response against the document. `Value::Null` is no body.
    pub(crate) async fn call(&self, method: &str, target: &str, body: Value) -> Response {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send(method, target, &[], &body).await
    }

    /// The same with headers and a raw body.
    pub(crate) async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let mut connection = Connection::open(self.address).await;
        connection.send(&request(method, target, headers, body)).await;
        let response = connection.receive(method == "HEAD").await;
        document::check(method, target, &response);
        response
    }

    pub(crate) async fn get(&self, target: &str) -> Response {
        self.call("GET", target, Value::Null).await
    }

    pub(crate) async fn post(&self, target: &str, body: Value) -> Response {
        self.call("POST", target, body).await
    }

    pub(crate) async fn put(&self, lease_id: LeaseId, body: Value) -> Response {
        self.call("PUT", &format!("/v1/leases/{lease_id}"), body).await
    }

    pub(crate) async fn lease(&self, lease_id: LeaseId) -> Response {
        self.get(&format!("/v1/leases/{lease_id}")).await
    }

    pub(crate) async fn delete(&self, lease_id: LeaseId) {
        let response = self.call("DELETE", &format!("/v1/leases/{lease_id}"), Value::Null).await;
        assert_eq!(response.status, 204, "{response:?}");
    }

    /// A new lease on `key`, granted.
    pub(crate) async fn hold(&self, key: &str) -> Grant {
        self.put(LeaseId::random(), json!({ "keys": [key] })).await.expect(201)
    }

    /// A new lease in the queue of `key`, which keeps its place without an open request.
    pub(crate) async fn queue(&self, key: &str) -> Waiting {
        let body = json!({ "keys": [key], "keep_place": true, "wait_ms": 0 });
        self.put(LeaseId::random(), body).await.expect(202)
    }

    /// Sends a PUT and returns before its response.
    pub(crate) async fn put_later(&self, lease_id: LeaseId, body: Value) -> JoinHandle<Response> {
        let mut connection = Connection::open(self.address).await;
        let target = format!("/v1/leases/{lease_id}");
        connection.send(&request("PUT", &target, &[], body.to_string().as_bytes())).await;
        tokio::spawn(async move {
            let response = connection.receive(false).await;
            document::check("PUT", &target, &response);
            response
        })
    }

    /// Waits until `count` leases wait.
    pub(crate) async fn until_waiters(&self, count: usize) {
        eventually("the waiters", || self.handle.view(|table| table.waiters()) == count).await;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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

/// The metrics of this process, shared by its tests.
pub(crate) fn measurements() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || {
        let handle = metrics_builder().install_recorder().unwrap();
        let metrics = [
            ringfence_api::METRICS,
            ringfence_http::METRICS,
            ringfence_raft::METRICS,
            ringfence_service::METRICS,
        ];
        metrics.into_iter().flatten().for_each(|metric| metric.register());
        handle
    };
    HANDLE.get_or_init(install).clone()
}
