use std::sync::{Mutex, OnceLock};

use openraft::storage::RaftLogStorage;
use ringfence_lease::{Command, SUPPORTED};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::*;
use crate::consensus::Vote;
use crate::lines::Lines;
use crate::peer::{Directory, Program, Server, Tcp, Transport};
use crate::service::NodeService;
use crate::storage::snapshots::Generations;

/// A node that listens and has not started Raft yet, as one that still reads its log, and where it listens.
async fn starting(
    dir: &TempDir,
    id: NodeId,
    cluster: Option<Uuid>,
    has_voted: bool,
    addresses: BTreeMap<NodeId, String>,
) -> (Arc<Server<NodeService>>, String) {
    let (dir, identity) = DataDir::open(&dir.path().join(id.to_string()), id).unwrap();
    let (dir, identity) = (Arc::new(dir), Identity { cluster, ..identity });
    let mut log = LogStore::open(&dir, ringfence_wal::Options::default()).unwrap();
    if has_voted {
        let leader_id = openraft::vote::RaftLeaderId::new(1, 1);
        log.save_vote(&Vote { leader_id, committed: true }).await.unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let transport: Arc<dyn Transport> = Arc::new(Tcp(listener));
    let directory = Arc::new(Directory::new(
        identity.clone(),
        String::new(),
        addresses,
        &transport,
        Program::of_this(SUPPORTED),
    ));
    let founding = Founding::new(Arc::clone(&dir), log.clone(), identity, Random::system());
    let server = Arc::new(Server {
        directory: Arc::clone(&directory),
        log,
        generations: Arc::new(Generations::open(dir, SUPPORTED).unwrap()),
        raft: OnceLock::new(),
        service: NodeService { directory, founding, handle: OnceLock::new() },
        named: Mutex::default(),
        lines: Lines::default(),
        turn: Default::default(),
        fault: watch::Sender::default(),
    });
    tokio::spawn(Arc::clone(&server).run(transport));
    (server, address)
}

/// How a founder with an empty data directory joins two others, which belong to a cluster; `None` if not within this time.
async fn join_as_founder(voted: [bool; 2], within: Duration) -> Option<Result<Uuid, JoinError>> {
    let dir = TempDir::new().unwrap();
    let cluster = Some(Uuid::from_u128(7));
    let (_two, two) = starting(&dir, 2, cluster, voted[0], BTreeMap::new()).await;
    let (_three, three) = starting(&dir, 3, cluster, voted[1], BTreeMap::new()).await;
    let addresses = BTreeMap::from([(1, String::new()), (2, two), (3, three)]);
    let (one, _) = starting(&dir, 1, None, false, addresses).await;
    let peers = Peers::new(Arc::clone(&one.directory), Command::since);
    timeout(within, one.service.founding.join(&peers, &[1, 2, 3])).await.ok()
}

/// It told the operator to empty the data directory of a node that was reading its log.
#[tokio::test]
async fn a_founder_that_lost_its_data_waits_until_members_with_data_have_read_their_logs() {
    for voted in [[true, true], [false, true], [true, false]] {
        // It asks ten times a second: this is long enough for it to make a mistake.
        let joined = join_as_founder(voted, Duration::from_secs(1)).await;
        assert!(joined.is_none(), "{voted:?}: {joined:?}");
    }
}

#[tokio::test]
async fn a_founding_that_left_no_data_behind_is_orphaned() {
    let joined = join_as_founder([false, false], Duration::from_secs(60)).await;
    assert!(matches!(joined, Some(Err(JoinError::Orphaned { .. }))), "{joined:?}");
}
