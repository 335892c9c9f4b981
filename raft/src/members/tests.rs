mod cluster;
mod moves;

use futures_util::future::BoxFuture;
use openraft::RaftMetrics;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub(crate) use self::cluster::{Cluster, SOON, acquire, grant, until};
use super::*;
use crate::node::{Node, Settings};
use crate::peer::{Connection, Tcp, Transport};

/// As many connections of others as there are permits.
struct Few {
    port: Tcp,
    permits: Semaphore,
}

impl Transport for Few {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        self.port.connect(address)
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            self.permits.acquire().await.unwrap().forget();
            self.port.accept().await
        })
    }
}

fn is_joint(metrics: &RaftMetrics<Consensus>) -> bool {
    metrics.membership_config.membership().get_joint_config().len() > 1
}

fn reason(result: Result<(), MembersError>) -> String {
    match result {
        Err(Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// The member was removed, and those that were left were no majority.
#[tokio::test]
async fn a_removal_that_would_stop_the_cluster_is_refused_unless_it_is_forced() {
    let mut cluster = Cluster::start(3).await;
    cluster.stop(3).await;
    for id in [2, 1] {
        let reason = reason(cluster.handle(1).remove_member(id).await);
        assert!(reason.contains("does not hear 3") && reason.contains("Start 3 again"), "{reason}");
        cluster.grants().await;
        assert!(cluster.handle(1).leads().borrow().is_some());
    }
    let handle = cluster.handle(1);
    let forced = tokio::spawn(async move { handle.force_remove_member(2).await });
    let shared = cluster.handle(1).shared;
    shared.raft.wait(Some(SOON)).metrics(is_joint, "the change is begun").await.unwrap();
    cluster.restart(3).await;
    forced.await.unwrap().unwrap();
    assert_eq!(shared.voters(), BTreeSet::from([1, 3]));
    cluster.grants().await;
}

#[tokio::test]
async fn a_member_that_is_down_can_be_removed() {
    let mut cluster = Cluster::start(3).await;
    cluster.stop(3).await;
    cluster.handle(2).remove_member(3).await.unwrap();
    assert_eq!(cluster.handle(1).shared.voters(), BTreeSet::from([1, 2]));
    cluster.grants().await;
}

/// Each was checked against the voters that were there before the other.
#[tokio::test]
async fn of_two_removals_at_once_that_together_would_stop_the_cluster_one_is_refused() {
    let mut cluster = Cluster::start(4).await;
    cluster.stop(4).await;
    let handle = cluster.handle(1);
    let (two, three) = tokio::join!(handle.remove_member(2), handle.remove_member(3));
    let (refused, left) = match (&two, &three) {
        (Ok(()), Err(_)) => (three, BTreeSet::from([1, 3, 4])),
        (Err(_), Ok(())) => (two, BTreeSet::from([1, 2, 4])),
        both => panic!("{both:?}"),
    };
    let reason = reason(refused);
    assert!(reason.contains("does not hear 4"), "{reason}");
    assert_eq!(handle.shared.voters(), left);
    cluster.grants().await;
}

/// It was said to be certainly not done.
#[tokio::test]
async fn a_change_that_is_half_done_is_indeterminate_and_its_repeat_finishes_it() {
    let cluster = Cluster::start(3).await;
    let shared = cluster.handle(1).shared;
    let deadline = Instant::now() + TIMEOUT;
    let leader = Arc::clone(&shared);
    let removed = tokio::spawn(async move { leader.order_here(Order::Remove { id: 3 }, deadline).await });
    shared.raft.wait(Some(SOON)).metrics(is_joint, "the first entry is written").await.unwrap();
    // A leader that hands over takes no further entry.
    shared.raft.trigger().transfer_leader(2).await.unwrap();
    assert_eq!(removed.await.unwrap(), Err(Unanswered::Indeterminate.into()));
    until("the repeat is done", async || cluster.handle(1).remove_member(3).await.is_ok()).await;
    assert_eq!(cluster.handle(2).shared.voters(), BTreeSet::from([1, 2]));
    cluster.grants().await;
}

/// It had as much of the log as any, and the leadership went to nobody until an election.
#[tokio::test]
async fn a_voter_that_is_not_heard_takes_over_no_leadership() {
    let mut cluster = Cluster::start(3).await;
    cluster.grants().await;
    let shared = cluster.handle(1).shared;
    let has_all = |id| shared.metrics(|metrics| metrics.replication.as_ref()?.get(&id)?.map(|at| at.index()));
    until("the others have the same", async || has_all(2).is_some() && has_all(2) == has_all(3)).await;
    for (dead, other) in [(3, 2), (2, 3)] {
        cluster.stop(dead).await;
        until("it is not heard", async || !shared.heard(HEARD).contains(&dead)).await;
        until("the other is heard", async || shared.successor() == Some(other)).await;
        cluster.restart(dead).await;
        until("it may take over again", async || shared.heard(HEARD).contains(&dead)).await;
    }
}

/// It finished the change, and went on to change the members, though it was none.
#[tokio::test]
async fn a_leader_that_an_inherited_change_removes_leaves_it_to_others() {
    let cluster = Cluster::start(3).await;
    cluster.lead(2).await;
    let (first, second) = (cluster.handle(1).shared, cluster.handle(2).shared);
    let leader = Arc::clone(&second);
    let deadline = Instant::now() + TIMEOUT;
    let removed = tokio::spawn(async move { leader.order_here(Order::Remove { id: 1 }, deadline).await });
    second.raft.wait(Some(SOON)).metrics(is_joint, "the change is begun").await.unwrap();
    second.raft.trigger().transfer_leader(1).await.unwrap();
    let leads =
        first.raft.wait(Some(SOON)).metrics(|metrics| metrics.state.is_leader(), "it leads").await.unwrap();
    assert!(is_joint(&leads), "the change was finished before");
    let _ = removed.await.unwrap();
    let membership = || second.metrics(|metrics| metrics.membership_config.clone());
    until("the change is finished", async || membership().membership().get_joint_config().len() == 1).await;
    assert_eq!(second.voters(), BTreeSet::from([2, 3]));
    let finished = membership().log_id().unwrap().committed_leader_id().term;
    assert!(finished > leads.current_term, "node 1 finished it in term {finished}");
    until("the others go on", async || cluster.handle(2).propose(Request::default()).await.is_ok()).await;
}

/// It was answered as if all were well, and the node waited for ever.
#[tokio::test]
async fn a_member_that_lost_its_data_is_not_added_before_it_is_removed() {
    let mut cluster = Cluster::start(3).await;
    let peer = cluster.peers[&3].clone();
    let add = async |cluster: &Cluster| cluster.handle(2).add_member(3, peer.clone()).await;
    add(&cluster).await.unwrap();
    cluster.stop(3).await;
    let down = reason(add(&cluster).await);
    assert!(down.contains("does not answer"), "{down}");
    let anew = cluster.settings(3, cluster.dir.path().join("anew"), cluster.listener(3).await, true);
    let anew = tokio::spawn(Node::start(anew));
    until("its data directory is seen to be another", async || {
        reason(add(&cluster).await).contains("Remove node 3 first")
    })
    .await;
    // On a busy machine, the leader may not hear the other one in time.
    until("it is removed", async || cluster.handle(1).remove_member(3).await.is_ok()).await;
    until("it is added", async || add(&cluster).await.is_ok()).await;
    cluster.nodes.insert(3, timeout(SOON, anew).await.unwrap().unwrap().unwrap());
    until("it votes", async || cluster.handle(1).shared.voters().contains(&3)).await;
    add(&cluster).await.unwrap();
}

/// An entry, a task and a queue for each id once stayed.
#[tokio::test]
async fn a_node_that_is_not_added_leaves_nothing_behind() {
    let cluster = Cluster::start(1).await;
    let handle = cluster.handle(1);
    let peers = Arc::clone(&handle.shared.peers);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // It hangs up on everybody.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let deaf = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let before = (peers.known(), tasks());
    for id in 2..=1_001 {
        // Nobody listens on port 1, one hangs up, and at the leader's own address another node answers than was asked for.
        let elsewhere = match id % 3 {
            0 => "127.0.0.1:1".to_owned(),
            1 => deaf.clone(),
            _ => cluster.peers[&1].replace("127.0.0.1", "localhost"),
        };
        let reason = reason(handle.add_member(id, elsewhere).await);
        assert!(reason.contains("does not answer"), "{reason}");
        assert!(id % 3 < 2 || reason.contains("this is node 1"), "{reason}");
    }
    until("nothing is left", async || (peers.known(), tasks()) == before).await;

    // Nor if the caller gives up.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let adding = tokio::spawn(async move { handle.add_member(2, address).await });
    let connected = timeout(SOON, silent.accept()).await.unwrap().unwrap();
    adding.abort();
    until("nothing is left", async || (peers.known(), tasks()) == before).await;
    drop(connected);
}

/// The leader reached the new node, which voted, and the next leader could not.
#[tokio::test]
async fn a_node_that_cannot_reach_the_members_is_not_added() {
    let mut cluster = Cluster::start(1).await;
    let elsewhere = reason(cluster.handle(1).add_member(2, "10.0.0.2:7500".to_owned()).await);
    assert!(elsewhere.contains("loopback") && elsewhere.contains(&cluster.peers[&1]), "{elsewhere}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    cluster.peers = BTreeMap::from([(1, "0.0.0.0:7500".to_owned())]);
    let settings = cluster.settings(1, cluster.dir.path().join("any"), listener, false);
    let node = Node::start(settings).await.unwrap();
    node.handle().linearize().await.unwrap();
    let any = reason(node.handle().add_member(2, "10.0.0.2:7500".to_owned()).await);
    assert!(any.contains("0.0.0.0:7500") && any.contains("--peers of all nodes"), "{any}");
}

/// A node that was started alone without options is a member at an address that nobody else reaches.
#[tokio::test]
async fn a_member_is_reached_at_the_address_that_the_operator_lists() {
    let mut cluster = Cluster::start(1).await;
    let dir = cluster.dir.path().join("alone");
    let true_peers = cluster.peers.clone();
    cluster.stop(1).await;
    let listener = cluster.listener(1).await;
    cluster.peers = BTreeMap::from([(1, "0.0.0.0:7500".to_owned())]);
    let alone = Node::start(cluster.settings(1, &dir, listener, false)).await.unwrap();
    alone.handle().linearize().await.unwrap();
    alone.stop().await;

    cluster.peers = true_peers;
    let listener = cluster.listener(1).await;
    cluster.nodes.insert(1, Node::start(cluster.settings(1, &dir, listener, false)).await.unwrap());
    cluster.lead(1).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    // Its list does not name itself.
    let joining = tokio::spawn(Node::start(cluster.settings(2, cluster.data(2), listener, true)));
    until("it is added", async || cluster.handle(1).add_member(2, peer.clone()).await.is_ok()).await;
    let joined = timeout(SOON, joining).await.unwrap().unwrap().unwrap();
    until("it votes", async || cluster.handle(1).shared.voters().contains(&2)).await;
    cluster.nodes.insert(2, joined);
    cluster.lead(2).await;
    cluster.grants().await;
}

#[tokio::test]
async fn a_learner_that_does_not_answer_does_not_vote_and_can_be_removed() {
    let cluster = Cluster::start(3).await;
    let handle = cluster.handle(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let transport = Arc::new(Few { port: Tcp(listener), permits: Semaphore::new(0) });
    let settings = Settings {
        transport: Arc::clone(&transport) as Arc<dyn Transport>,
        peers: BTreeMap::new(),
        ..cluster.settings(4, cluster.data(4), elsewhere, true)
    };
    let joining = tokio::spawn(Node::start(settings));
    until("it is added", async || {
        // One for the probe, and one to take it in.
        transport.permits.add_permits(2 - transport.permits.available_permits());
        handle.add_member(4, peer.clone()).await.is_ok()
    })
    .await;
    timeout(SOON, joining).await.unwrap().unwrap().unwrap().stop().await;
    let down = reason(handle.add_member(4, peer.clone()).await);
    assert!(down.contains("does not answer"), "{down}");
    assert!(handle.shared.members().contains_key(&4) && !handle.shared.voters().contains(&4));
    assert_eq!(handle.shared.caught_up_learner(), None);
    cluster.grants().await;
    handle.remove_member(4).await.unwrap();
    assert!(!handle.shared.members().contains_key(&4));
}
