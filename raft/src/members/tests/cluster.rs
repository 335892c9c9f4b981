//! Nodes in one process, for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_lease::{Acquire, Attachment, Command, Outcome, Request};
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Revision, RulesRange, Ttl, Wait};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::consensus::NodeId;
use crate::gate::Since;
use crate::handle::Handle;
use crate::node::{MAX_LEASE_BYTES, Node, SNAPSHOT_AFTER_BYTES, Settings, StartError};
use crate::peer::Tcp;
use crate::storage::identity::DirError;
use crate::time::wall::WallClock;
use crate::unanswered::RETRY;

/// Far more than anything here takes that goes well.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Nodes in this process, each at an address that stays its own.
pub(crate) struct Cluster {
    pub(super) dir: TempDir,
    pub(super) peers: BTreeMap<NodeId, String>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// The rules that the programs of nodes support which are started from now on.
    pub(crate) rules: RulesRange,
    /// The first rules that have a command, for these nodes.
    pub(crate) since: Since,
}

impl Cluster {
    pub(crate) async fn start(size: NodeId) -> Self {
        Self::start_with(size, |_| ringfence_lease::SUPPORTED).await
    }

    /// The programs of the nodes support these `rules`.
    pub(crate) async fn start_with(size: NodeId, rules: impl Fn(NodeId) -> RulesRange) -> Self {
        let mut listeners = BTreeMap::new();
        let mut peers = BTreeMap::new();
        for id in 1..=size {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            peers.insert(id, listener.local_addr().unwrap().to_string());
            listeners.insert(id, listener);
        }
        let mut cluster = Self {
            dir: TempDir::new().unwrap(),
            peers,
            nodes: BTreeMap::new(),
            rules: rules(1),
            since: Command::since,
        };
        let starts = listeners.into_iter().map(|(id, listener)| {
            let settings = cluster.settings(id, cluster.data(id), listener, false);
            let settings = Settings { rules: rules(id), ..settings };
            async move { (id, Node::start(settings).await.unwrap()) }
        });
        cluster.nodes = futures_util::future::join_all(starts).await.into_iter().collect();
        cluster.lead(1).await;
        cluster
    }

    pub(crate) fn data(&self, id: NodeId) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    pub(crate) fn settings(
        &self,
        id: NodeId,
        data: impl AsRef<Path>,
        listener: TcpListener,
        join: bool,
    ) -> Settings {
        Settings {
            id,
            data: data.as_ref().to_owned(),
            transport: Arc::new(Tcp(listener)),
            peers: self.peers.clone(),
            join,
            url: format!("http://node-{id}"),
            first_revision: Some(Revision(1_000)),
            wall_clock: WallClock::simulated(|| 0),
            elders: None,
            snapshot_after_bytes: SNAPSHOT_AFTER_BYTES,
            max_lease_bytes: MAX_LEASE_BYTES,
            random: crate::Random::system(),
            quartz: crate::Quartz::none(),
            rules: self.rules,
            since: self.since,
            storage: Arc::new(crate::System),
        }
    }

    pub(crate) fn handle(&self, id: NodeId) -> Handle {
        self.nodes[&id].handle()
    }

    pub(crate) async fn lead(&self, id: NodeId) {
        let handle = self.handle(id);
        until("it leads", async || {
            let _ = handle.transfer_leadership(Some(id)).await;
            handle.leads().borrow().is_some()
        })
        .await;
    }

    pub(crate) async fn stop(&mut self, id: NodeId) {
        self.nodes.remove(&id).unwrap().stop().await;
    }

    /// At the address of `id`, once it is free.
    pub(crate) async fn listener(&self, id: NodeId) -> TcpListener {
        loop {
            match TcpListener::bind(&self.peers[&id]).await {
                Ok(listener) => return listener,
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    pub(crate) async fn restart(&mut self, id: NodeId) {
        let node = loop {
            let settings = self.settings(id, self.data(id), self.listener(id).await, false);
            match Node::start(settings).await {
                // Until a snapshot is read or written.
                Err(StartError::Dir(DirError::InUse(_))) => sleep(RETRY).await,
                started => break started.unwrap(),
            }
        };
        self.nodes.insert(id, node);
    }

    pub(super) async fn grants(&self) {
        timeout(SOON, self.handle(1).propose(Request::default())).await.unwrap().unwrap();
    }
}

pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let looked = timeout(SOON, async {
        while !is().await {
            sleep(RETRY).await;
        }
    });
    assert!(looked.await.is_ok(), "not in time: {what}");
}

/// Acquires a key that no other lease has.
pub(crate) fn acquire(lease: u128) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: LeaseId::from_u128(lease).unwrap(),
        claims: vec![(Key::new(&format!("key-{lease}")).unwrap(), Mode::Exclusive)],
        ttl: Ttl::from_ms(600_000).unwrap(),
        wait: Wait::from_ms(0).unwrap(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(1),
    }))
}

/// Repeats the acquire until it is granted, as a client would.
pub(crate) async fn grant(handle: &Handle, lease: u128) {
    until("it is granted", async || match Box::pin(handle.propose(vec![acquire(lease)])).await {
        Ok(outcomes) => matches!(outcomes[..], [Outcome::Granted(_) | Outcome::Standing(_)]),
        Err(_) => false,
    })
    .await;
}
