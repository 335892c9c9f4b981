//! A node that offers the service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_access::Watched;
use ringfence_raft::{Handle, Node as RaftNode, NodeId, Quartz, Random, Settings, System, Tcp, WallClock};
use ringfence_service::{Acquired, Caller, Failure, Options, Proof, Service, Visit};
use ringfence_tls::Reload;
use ringfence_wire::{
    AcquireRequest, Grant, Key, LeaseId, Metadata, Mode, Revision, Ttl, Wait, Waiting, WantedKey,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The file with the access rules, in the data directory of a test.
const RULES: &str = "rules";

pub(crate) struct Node {
    pub(crate) service: Arc<Service>,
    pub(crate) caller: Caller,
    pub(crate) handle: Handle,
    access: Option<Arc<Watched>>,
    /// Whether its Raft thread seems to hang.
    pub(crate) blocked: watch::Sender<bool>,
    _draining: watch::Sender<bool>,
    node: RaftNode,
    data: TempDir,
}

impl Node {
    /// A cluster of one node.
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// The same, with access rules.
    pub(crate) async fn start_with(rules: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_of(1, listener, BTreeMap::new(), rules).await
    }

    /// A cluster of two nodes.
    pub(crate) async fn start_two() -> [Self; 2] {
        let mut listeners = Vec::new();
        for _ in 0..2 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let peers: BTreeMap<_, _> = (1..).zip(listeners.iter().map(address)).collect();
        let [second, first] = [listeners.pop().unwrap(), listeners.pop().unwrap()];
        let (first, second) = tokio::join!(
            Self::start_of(1, first, peers.clone(), None),
            Self::start_of(2, second, peers.clone(), None)
        );
        [first, second]
    }

    async fn start_of(
        id: NodeId,
        listener: TcpListener,
        peers: BTreeMap<NodeId, String>,
        rules: Option<&str>,
    ) -> Self {
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let settings = Settings {
            id,
            data: data.path().join("node"),
            transport: Arc::new(Tcp(listener)),
            peers,
            join: false,
            url: "http://localhost".to_owned(),
            snapshot_after_bytes: ringfence_raft::SNAPSHOT_AFTER_BYTES,
            max_lease_bytes: ringfence_raft::MAX_LEASE_BYTES,
            first_revision: Some(Revision(1_000)),
            wall_clock: WallClock::system(),
            elders: None,
            random: Random::system(),
            quartz: Quartz::none(),
            rules: ringfence_lease::SUPPORTED,
            since: ringfence_lease::Command::since,
            storage: Arc::new(System),
        };
        let node = RaftNode::start(settings).await.unwrap();
        let (draining, is_draining) = watch::channel(false);
        let (blocked, is_blocked) = watch::channel(false);
        let access = rules.map(|rules| {
            let file = data.path().join(RULES);
            std::fs::write(&file, rules).unwrap();
            Arc::new(ringfence_access::watch(file).unwrap())
        });
        let options = Options {
            access: access.clone(),
            mirror_timeout: None,
            draining: is_draining,
            blocked: is_blocked,
            first_attachment: (id - 1) << 50,
            slow_request: PATIENCE,
        };
        let handle = node.handle();
        let service = Arc::new(Service::new(handle.clone(), options));
        eventually("the table is started", || handle.view(|table| table.started())).await;
        let caller = service.caller(Proof::default()).unwrap();
        Self { service, caller, handle, access, blocked, _draining: draining, node, data }
    }

    pub(crate) async fn stop(self) {
        self.node.stop().await;
    }

    /// Replaces the access rules, and uses the new ones at once.
    pub(crate) fn replace_rules(&self, rules: &str) {
        std::fs::write(self.data.path().join(RULES), rules).unwrap();
        let access = self.access.as_ref().unwrap();
        let before = access.version();
        access.look(true);
        assert!(access.version() > before);
    }

    /// A request of `caller`, which was admitted.
    pub(crate) fn visit_of(&self, caller: &Caller) -> Visit<Arc<Service>> {
        Visit::of(Arc::clone(&self.service), caller.clone())
    }

    pub(crate) fn visit(&self) -> Visit<Arc<Service>> {
        self.visit_of(&self.caller)
    }

    pub(crate) async fn acquire(
        &self,
        lease_id: LeaseId,
        request: AcquireRequest,
    ) -> Result<Acquired, Failure> {
        self.service.acquire(&self.caller, lease_id, request, Instant::now(), || ()).await.answered().0
    }

    /// Begins an acquire. Aborting the task is what a door does whose client goes away.
    pub(crate) fn acquire_later(
        &self,
        lease_id: LeaseId,
        request: AcquireRequest,
    ) -> JoinHandle<Result<Acquired, Failure>> {
        let (service, caller) = (Arc::clone(&self.service), self.caller.clone());
        tokio::spawn(async move {
            service.acquire(&caller, lease_id, request, Instant::now(), || ()).await.answered().0
        })
    }

    /// A new lease on `key`, granted.
    pub(crate) async fn hold(&self, key: &str) -> Grant {
        granted(self.acquire(LeaseId::random(), request(key)).await)
    }

    /// A new lease in the queue of `key`, which keeps its place without an open request.
    pub(crate) async fn queue(&self, key: &str) -> Waiting {
        let request = AcquireRequest { keep_place: true, ..request(key) };
        waits(self.acquire(LeaseId::random(), request).await)
    }

    pub(crate) async fn release(&self, lease_id: LeaseId) {
        self.service.release(&self.caller, lease_id).await.unwrap();
    }

    /// Waits until `count` leases wait.
    pub(crate) async fn until_waiters(&self, count: usize) {
        eventually("the waiters", || self.handle.view(|table| table.waiters()) == count).await;
    }
}

/// An acquire of `key` that tries once.
pub(crate) fn request(key: &str) -> AcquireRequest {
    request_of([key])
}

pub(crate) fn request_of<'a>(keys: impl IntoIterator<Item = &'a str>) -> AcquireRequest {
    let claim = |key: &str| WantedKey { key: Key::new(key).unwrap(), mode: Mode::Exclusive };
    AcquireRequest {
        keys: keys.into_iter().map(claim).collect(),
        ttl_ms: Ttl::default(),
        wait_ms: Wait::default(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
    }
}

/// An acquire of `key` that waits.
pub(crate) fn waiting(key: &str, wait_ms: u32) -> AcquireRequest {
    AcquireRequest { wait_ms: Wait::from_ms(wait_ms).unwrap(), ..request(key) }
}

pub(crate) fn granted(acquired: Result<Acquired, Failure>) -> Grant {
    match acquired {
        Ok(Acquired::Granted { grant, .. }) => *grant,
        other => panic!("no grant: {other:?}"),
    }
}

pub(crate) fn waits(acquired: Result<Acquired, Failure>) -> Waiting {
    match acquired {
        Ok(Acquired::Waiting(place)) => place,
        other => panic!("no place: {other:?}"),
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
