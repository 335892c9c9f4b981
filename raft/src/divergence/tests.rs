use std::ffi::OsString;
use std::io;
use std::path::Path;

use futures_util::FutureExt;
use ringfence_wal::disk::{Disk, File, Mode};
use tokio::time::timeout;

use super::*;
use crate::consensus::log_id;
use crate::members::tests::{Cluster, acquire, grant, until};
use crate::storage::snapshots::store::{SnapshotStore, Storage};
use crate::{Handle, Node};

const SOON: Duration = Duration::from_secs(60);

/// Changes the table of a node behind the back of the others, each time in another way.
fn corrupt(handle: &Handle) {
    let mut state = handle.shared.applied.lock();
    let at_ms = state.table.at_ms();
    let lease = u128::from(state.table.revision().0) << 64 | 1;
    state.table.apply(at_ms, vec![acquire(lease)], &mut Vec::new());
    let revision = state.table.revision();
    state.history.start_after(revision);
}

fn comparison(handle: &Handle) -> Comparison {
    Comparison::new(Arc::clone(&handle.shared))
}

/// Waits until `count` others did the same as this node, in one entry at least.
async fn agrees(handle: &Handle, count: usize) {
    let (comparison, voters) = (comparison(handle), handle.shared.voters());
    until("they agree", async || {
        let (from, upto) = comparison.range();
        let compared = comparison.compare(&voters, from, upto).await;
        let covers = |theirs: &Difference| theirs.after < upto;
        compared.iter().filter(|(_, theirs, is_equal)| *is_equal && covers(theirs)).count() == count
    })
    .await;
}

/// Compares until `others` were found to differ.
async fn finds(comparison: &mut Comparison, others: &[NodeId]) {
    until("they differ", async || {
        comparison.run().await.unwrap();
        comparison.differing.iter().map(|(id, _)| id).eq(others)
    })
    .await;
}

/// Begins to remember after the last entry.
fn forget(handle: &Handle) {
    let mut state = handle.shared.applied.lock();
    let last = state.last_applied;
    state.witness.start_after(last);
}

/// Node 1 leads, and node `odd` is stopped.
async fn the_odd_one_stops(odd: NodeId) {
    let mut cluster = Box::pin(Cluster::start(3)).await;
    let other = cluster.handle(odd % 3 + 1);
    grant(&other, 1).await;
    for id in 1..=3 {
        agrees(&cluster.handle(id), 2).await;
    }
    corrupt(&cluster.handle(odd));
    grant(&other, 2).await;
    let reason = timeout(SOON, cluster.nodes[&odd].failed()).await.unwrap();
    let others: BTreeSet<NodeId> = [1, 2, 3].into_iter().filter(|id| *id != odd).collect();
    assert!(reason.contains("did not do the same") && reason.contains(&format!("{others:?}")), "{reason}");

    cluster.stop(odd).await;
    let settings = cluster.settings(odd, cluster.data(odd), cluster.listener(odd).await, false);
    let Err(error) = Node::start(settings).await else { panic!("it starts again") };
    assert!(
        error.to_string().contains("did not do the same") && error.to_string().contains("DIVERGED"),
        "{error}"
    );
    grant(&other, 3).await;
    for id in others {
        agrees(&cluster.handle(id), 1).await;
        assert!(timeout(Duration::ZERO, cluster.nodes[&id].failed()).await.is_err());
    }
}

#[tokio::test]
async fn a_follower_that_differs_from_the_others_stops_and_they_go_on() {
    the_odd_one_stops(2).await;
}

#[tokio::test]
async fn a_leader_that_differs_from_the_others_stops_and_they_go_on() {
    the_odd_one_stops(1).await;
}

fn all_go_on(cluster: &Cluster) -> bool {
    cluster.nodes.values().all(|node| node.failed().now_or_never().is_none())
}

/// Also when the entries after the first difference are the same everywhere.
#[tokio::test]
async fn without_a_majority_nobody_stops_and_all_say_who_differs_for_good() {
    let cluster = Box::pin(Cluster::start(2)).await;
    let (one, two) = (cluster.handle(1), cluster.handle(2));
    grant(&one, 1).await;
    agrees(&one, 1).await;
    corrupt(&two);
    grant(&one, 2).await;
    let (mut ones, mut twos) = (comparison(&one), comparison(&two));
    for _ in 0..2 {
        finds(&mut ones, &[2]).await;
        finds(&mut twos, &[1]).await;
        // The other begins to remember after what differed.
        forget(&one);
        forget(&two);
    }
    assert!(all_go_on(&cluster));
}

#[tokio::test]
async fn nodes_that_all_differ_from_each_other_do_not_stop() {
    let cluster = Box::pin(Cluster::start(3)).await;
    let [one, two, three] = [1, 2, 3].map(|id| cluster.handle(id));
    grant(&one, 1).await;
    agrees(&one, 2).await;
    corrupt(&two);
    corrupt(&three);
    corrupt(&three);
    grant(&one, 2).await;
    finds(&mut comparison(&one), &[2, 3]).await;
    finds(&mut comparison(&two), &[1, 3]).await;
    finds(&mut comparison(&three), &[1, 2]).await;
    assert!(all_go_on(&cluster));
}

/// It once asked from the first entry of the log on, where the others began and it did not.
#[tokio::test]
async fn a_node_that_began_last_compares_itself_with_those_that_know_more() {
    let cluster = Box::pin(Cluster::start(3)).await;
    let (one, two) = (cluster.handle(1), cluster.handle(2));
    grant(&one, 1).await;
    agrees(&two, 2).await;
    forget(&cluster.handle(3));
    grant(&one, 2).await;
    agrees(&cluster.handle(3), 2).await;
    forget(&two);
    grant(&one, 3).await;
    agrees(&two, 2).await;
    corrupt(&two);
    grant(&one, 4).await;
    let reason = timeout(SOON, cluster.nodes[&2].failed()).await.unwrap();
    assert!(reason.contains("{1, 3}"), "{reason}");
}

/// It once took a node that remembers nothing of them as a witness for its entries, and forgot the difference.
#[tokio::test]
async fn a_node_that_remembers_nothing_of_the_entries_settles_nothing() {
    let cluster = Box::pin(Cluster::start(3)).await;
    let two = cluster.handle(2);
    grant(&two, 1).await;
    for id in 1..=3 {
        agrees(&cluster.handle(id), 2).await;
    }
    forget(&cluster.handle(3));
    {
        // As if the last entry had done something else.
        let mut state = two.shared.applied.lock();
        let last = state.last_applied.unwrap();
        state.witness.start_after(Some(log_id(last.committed_leader_id().term, last.index() - 1)));
        state.witness.end_entry(last);
    }
    let mut comparison = comparison(&two);
    for _ in 0..3 {
        comparison.differing.clear();
        finds(&mut comparison, &[1]).await;
    }
    assert!(all_go_on(&cluster));
}

/// A disk that hangs when a node is about to record that it differs.
#[derive(Debug)]
struct Hangs;

impl Disk for Hangs {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Box<dyn File>> {
        while path.ends_with("DIVERGED") {
            std::thread::park();
        }
        crate::System.open(path, mode)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        crate::System.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        crate::System.create_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        crate::System.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        crate::System.remove(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        crate::System.exists(path)
    }
}

impl Storage for Hangs {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(Self)
    }

    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>> {
        crate::System.snapshots(dir)
    }
}

/// It once went on to grant for as long as its disk hung.
#[tokio::test(start_paused = true)]
async fn a_node_that_differs_stops_though_its_disk_hangs() {
    let temporary = tempfile::tempdir().unwrap();
    let (dir, _) = DataDir::open_on(Arc::new(Hangs), temporary.path(), 1, &crate::Random::system()).unwrap();
    let fault = watch::Sender::new(None);
    let mut stopped = fault.subscribe();
    let diverged = Diverged { majority: [2, 3].into(), first: 1, last: 7 };
    timeout(SOON, condemned::stop(diverged.to_string(), &Arc::new(dir), &fault)).await.unwrap();
    assert!(stopped.borrow_and_update().as_ref().unwrap().contains("did not do the same"));
}
