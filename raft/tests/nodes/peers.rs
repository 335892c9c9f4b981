//! What a node may believe of the others, when connections outlive what they were made for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_raft::{Handle, MirrorView, Node, Settings};
use ringfence_wire::{Key, Revision, Role};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::network::{APPENDS, Network, Way};
use crate::support::stranger::{self, Name, Stranger};
use crate::support::{Cluster, SOON, acquire, address, grant, id, lead, settings, until};

/// openraft's ReadIndex once took the late answer to an old append for the answer to a newer message.
#[tokio::test]
async fn a_deposed_leader_answers_no_linearizable_read() {
    let cluster = Cluster::start(3).await;
    let network = &cluster.network;
    let (old, new, third) = (cluster.handle(1), cluster.handle(2), cluster.handle(3));
    lead(&old, 1).await;
    grant(&old, 1, "warm").await;
    old.linearize().await.unwrap();

    // The others take an entry, and their answers are held.
    network.hold("node-1", "node-2", [APPENDS], Way::Back);
    network.hold("node-1", "node-3", [APPENDS], Way::Back);
    let before = old.status().last_log_index;
    let asking = old.clone();
    let unanswered = tokio::spawn(async move { asking.propose(vec![acquire(2, "x", 0)]).await });
    until("the others have the entry", || {
        let last = old.status().last_log_index;
        last > before && [&new, &third].iter().all(|other| other.status().last_log_index == last)
    })
    .await;
    for other in ["node-2", "node-3"] {
        network.cut("node-1", other);
        network.cut(other, "node-1");
    }
    until("another leads", || matches!(new.status().leader, Some(2 | 3))).await;
    grant(&new, 3, "w").await;

    // Now a client reads from the old leader, and the held answers arrive.
    let asking = old.clone();
    let read = tokio::spawn(async move { asking.linearize().await });
    turns().await;
    assert!(!read.is_finished());
    network.release("node-1", "node-3", APPENDS, Way::Back);
    // It announces to node 2, too, that the entry is committed. The answer of node 2 is older than that.
    until("it commits the entry", || old.status().committed_index > before).await;
    turns().await;
    network.release("node-1", "node-2", APPENDS, Way::Back);
    let answered = read.await.unwrap();
    let sees = old.view(|table| table.lease(None, id(3), None).is_ok());
    assert!(answered.is_err() || sees, "a read that began after the grant does not see it");
    drop(unanswered);
}

/// All nodes run on this thread. After so many turns each has done what it could do without the network.
async fn turns() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// Connections once outlived the member that they were made to: an election asked the process that was removed.
#[tokio::test]
#[ignore = "slow"]
async fn a_removed_process_does_not_vote_for_the_member_that_has_its_id_now() {
    let cluster = Cluster::start(2).await;
    let (first, second) = (cluster.handle(1), cluster.handle(2));
    let old = join(&cluster, &first, "3").await;
    // Both have asked it for its vote.
    lead(&first, 2).await;
    lead(&first, 1).await;
    first.remove_member(3).await.unwrap();
    lead(&first, 2).await;
    let new = join(&cluster, &first, "3-again").await;
    let third = new.handle();
    lead(&first, 2).await;
    until("it follows", || third.status().leader == Some(2)).await;
    grant(&second, 1, "some").await;
    until("all have the same", || {
        let applied = second.status().applied_index;
        first.status().applied_index == applied && third.status().applied_index == applied
    })
    .await;

    // The others do not reach node 1 any more. It reaches them.
    cluster.network.cut("node-2", "node-1");
    cluster.network.cut("node-3-again", "node-1");
    grant(&second, 2, "precious").await;
    let term = second.status().term;
    let asked = || cluster.network.votes_asked("node-1", "node-2");
    let before = asked();
    until("node 1 has campaigned, and again", || {
        let status = first.status();
        assert!(status.role != Role::Leader || status.term <= term, "elected by a process that is no member");
        asked() >= before + 5
    })
    .await;
    assert_eq!(old.handle().status().members.keys().count(), 3);
}

/// A leader that was started again once led by itself, by the vote that it had been elected with.
#[tokio::test]
async fn a_leader_that_is_started_again_does_not_lead_before_it_is_elected() {
    let mut cluster = Cluster::start(3).await;
    let first = cluster.handle(1);
    lead(&first, 1).await;
    grant(&first, 1, "a").await;
    // With this it is written down that the first is committed.
    grant(&first, 2, "b").await;
    let (term, last) = (first.status().term, first.status().last_log_index);
    for (_, node) in std::mem::take(&mut cluster.nodes) {
        node.stop().await;
    }
    cluster.restart(1).await;
    let first = cluster.handle(1);
    let mut leads = first.leads();
    let begins = tokio::spawn(async move { *leads.wait_for(Option::is_some).await.unwrap() });
    until("it has its log", || first.status().last_log_index == last).await;
    cluster.restart(2).await;
    lead(&cluster.handle(2), 1).await;
    let begun = begins.await.unwrap();
    assert!(begun > Some(term), "it led in term {begun:?}; it was elected in {term} before it stopped");
}

/// A caller that names no cluster may found one. It once could depose a leader, too.
#[tokio::test]
async fn a_channel_takes_no_calls_but_its_own() {
    let cluster = Cluster::start(3).await;
    let first = cluster.handle(1);
    let term = first.status().term;
    let nobody = Name { cluster: None, from: 9, incarnation: Uuid::from_u128(7), member_as_of: None };
    let call = async |channel, name: &Name, call: &[u8]| {
        let mut stranger = Stranger::call(&cluster.network, 1, channel, name).await.unwrap();
        stranger.ask(call, 1).await;
        stranger.answer().await
    };
    assert_eq!(call(stranger::FOUNDING, &nobody, stranger::PROBE).await.unwrap()[0], stranger::PROBED);
    assert_eq!(call(stranger::FOUNDING, &nobody, &stranger::vote(term + 100, 9)).await, None);
    assert_eq!(call(stranger::FOUNDING, &nobody, stranger::READ_INDEX).await, None);
    let member = Name::of(&cluster.dir.path().join("2"), 2);
    assert_eq!(call(stranger::FORWARDS, &member, &stranger::vote(term + 100, 2)).await, None);
    assert_eq!(call(stranger::VOTES, &member, stranger::STANDS).await, None);
    assert!(first.status().term < term + 100);
}

/// A node that waits to join, whose port is open to anybody, and a name that nobody there knows.
fn open_port(dir: &TempDir) -> (JoinHandle<()>, Network, Name) {
    let network = Network::new(Duration::ZERO);
    let settings = settings(1, dir.path().join("1"), network.port(&address(1)), 1);
    let starting = tokio::spawn(async move { drop(Node::start(Settings { join: true, ..settings }).await) });
    let nobody = Name { cluster: None, from: 9, incarnation: Uuid::from_u128(9), member_as_of: None };
    (starting, network, nobody)
}

/// They once stayed for as long as the stranger wanted.
#[tokio::test]
async fn one_founding_connection_too_many_ends_the_oldest() {
    const MAX_UNNAMED: usize = 64;
    let dir = TempDir::new().unwrap();
    let (starting, network, nobody) = open_port(&dir);
    let mut strangers = Vec::new();
    for _ in 0..=MAX_UNNAMED {
        strangers.push(Stranger::call(&network, 1, stranger::FOUNDING, &nobody).await.unwrap());
    }
    assert_eq!(timeout(SOON, strangers[0].next()).await.unwrap(), None);
    for other in &mut strangers[1..] {
        other.ask(stranger::PROBE, 1).await;
        assert_eq!(timeout(SOON, other.answer()).await.unwrap().unwrap()[0], stranger::PROBED);
    }
    starting.abort();
}

/// A stranger could once have 8 MiB kept for each connection.
#[tokio::test]
async fn a_founding_call_is_short() {
    let dir = TempDir::new().unwrap();
    let (starting, network, nobody) = open_port(&dir);
    let mut stranger = Stranger::call(&network, 1, stranger::FOUNDING, &nobody).await.unwrap();
    stranger.ask(stranger::PROBE, 1).await;
    assert!(timeout(SOON, stranger.answer()).await.unwrap().is_some());
    // A frame of 2 KiB, with no checksum.
    stranger.send_bytes(&[&[0, 8, 0, 0, 0, 0, 0, 0][..], &[0; 2_048]].concat()).await;
    assert_eq!(timeout(SOON, stranger.next()).await.unwrap(), None);
    starting.abort();
}

/// Each once took a thread.
#[tokio::test]
async fn a_snapshot_with_an_empty_chunk_is_refused() {
    let cluster = Cluster::start(2).await;
    let data = cluster.dir.path();
    let member = Name::of(&data.join("2"), 2);
    let mut sender = Stranger::call(&cluster.network, 1, stranger::SNAPSHOTS, &member).await.unwrap();
    // The vote of a newer leader, a length, and that it covers no entry and no members.
    let (vote, length, covers) =
        ([1_000, 2, 1].map(u64::to_le_bytes).concat(), 10_u64.to_le_bytes(), [0, 0, 2, 0, 0, 0, 0, 0]);
    sender.send_frame(stranger::SNAPSHOT_BEGIN, &[&vote[..17], &length, &covers].concat()).await;
    until("the snapshot is being received", || {
        let mut names = data.join("1/snapshots").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_str().unwrap().starts_with("new-"))
    })
    .await;
    sender.send_frame(stranger::SNAPSHOT_CHUNK, &[]).await;
    let answer = timeout(SOON, sender.next()).await.expect("the chunk is taken");
    assert_eq!(answer, Some((stranger::SNAPSHOT_REFUSED, b"a snapshot with an empty chunk".to_vec())));
    // It does not wait for a sender that does not close.
    assert_eq!(timeout(SOON, sender.next()).await.expect("the connection is kept"), None);
}

/// What was checked when a connection was made once held for as long as the connection.
#[tokio::test]
async fn a_connection_of_a_member_ends_when_it_is_none_any_more() {
    let cluster = Cluster::start(3).await;
    let first = cluster.handle(1);
    let call = async |name: &Name| Stranger::call(&cluster.network, 1, stranger::VOTES, name).await;
    let mut member = Name::of(&cluster.dir.path().join("3"), 3);
    let mut connection = call(&member).await.unwrap();
    connection.ask(&stranger::confirm(0, 3, true), 1).await;
    assert_eq!(connection.answer().await.unwrap(), [stranger::CONFIRMED, 0]);
    first.remove_member(3).await.unwrap();
    let closed = async {
        loop {
            connection.ask(&stranger::confirm(0, 3, true), 1).await;
            // Another node may lead, and this one hears later that the removal is committed.
            let Some(answer) = connection.answer().await else { break };
            assert_eq!(answer, [stranger::CONFIRMED, 0]);
        }
    };
    timeout(SOON, closed).await.expect("it is still answered");
    assert!(call(&member).await.is_none(), "removed");
    // It may know better: that it was added again, say, of which this node has not heard yet, because it has no leader.
    member.member_as_of = Some((u64::MAX, 0));
    lead(&first, 2).await;
    cluster.network.cut(&address(2), &address(1));
    cluster.network.cut(&address(1), &address(2));
    let admitted = async {
        while call(&member).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, admitted).await.expect("removed, and perhaps added again");
    // Nobody has ever heard of this one.
    let cluster_id = Some(first.cluster_id());
    let other = Name { cluster: cluster_id, from: 9, incarnation: Uuid::from_u128(7), member_as_of: None };
    assert!(call(&other).await.is_none(), "never a member");
}

#[tokio::test]
async fn a_follower_confirms_the_leader_that_it_follows_and_no_other() {
    let cluster = Cluster::start(3).await;
    let second = cluster.handle(2);
    let name = Name::of(&cluster.dir.path().join("1"), 1);
    let mut leader = Stranger::call(&cluster.network, 2, stranger::VOTES, &name).await.unwrap();
    let mut says = async |call: Vec<u8>| {
        leader.ask(&call, 1).await;
        leader.answer().await.unwrap()
    };
    let confirmed = async {
        loop {
            lead(&second, 1).await;
            let term = second.status().term;
            if says(stranger::confirm(term, 1, true)).await == [stranger::CONFIRMED, 1] {
                break term;
            }
        }
    };
    let term = timeout(SOON, confirmed).await.expect("it confirms nobody");
    assert_eq!(says(stranger::confirm(term, 1, false)).await, [stranger::CONFIRMED, 0]);
    assert_eq!(says(stranger::confirm(term, 3, true)).await, [stranger::CONFIRMED, 0]);
    assert_eq!(says(stranger::confirm(term + 1, 1, true)).await, [stranger::CONFIRMED, 0]);
    assert_eq!(says(stranger::confirm(term - 1, 1, true)).await, [stranger::CONFIRMED, 0]);
    // It votes for another leader, and follows none until it hears of it.
    let next = term + 100;
    let other = Name::of(&cluster.dir.path().join("3"), 3);
    let mut other = Stranger::call(&cluster.network, 2, stranger::VOTES, &other).await.unwrap();
    other.ask(&stranger::vote(next, 3), 1).await;
    assert_eq!(other.answer().await.unwrap()[..5], [0, u8::try_from(next).unwrap(), 3, 0, 1]);
    assert_eq!(says(stranger::confirm(term, 1, true)).await, [stranger::CONFIRMED, 0]);
    assert_eq!(says(stranger::confirm(next, 3, true)).await, [stranger::CONFIRMED, 0]);
}

/// It is answered before anything is on disk.
#[tokio::test]
async fn a_heartbeat_with_an_entry_is_refused() {
    let cluster = Cluster::start(3).await;
    let second = cluster.handle(2);
    lead(&second, 1).await;
    let term = second.status().term;
    // A vote, that of a leader; no entry before it, and none that is committed.
    let heartbeat = [&term.to_le_bytes()[..], &1_u64.to_le_bytes(), &[1, 0, 0]].concat();
    let blank = [&[1, 16, 0, 0, 0][..], &term.to_le_bytes(), &0_u64.to_le_bytes()].concat();
    let name = Name::of(&cluster.dir.path().join("1"), 1);
    let mut leader = Stranger::call(&cluster.network, 2, stranger::HEARTBEATS, &name).await.unwrap();
    leader.send_frame(stranger::APPEND, &heartbeat).await;
    let answer = timeout(SOON, leader.next()).await.unwrap();
    assert_eq!(answer.map(|(kind, _)| kind), Some(stranger::APPENDED));
    leader.send_frame(stranger::APPEND, &[heartbeat, blank].concat()).await;
    assert_eq!(timeout(SOON, leader.next()).await.unwrap(), None);
}

/// A mirror that keeps everybody waiting.
struct Waits {
    asked: Arc<AtomicU64>,
    over: watch::Receiver<bool>,
}

impl MirrorView for Waits {
    fn has<'a>(&'a self, _: &'a [Key], _: Revision) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        let mut over = self.over.clone();
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { over.wait_for(|over| *over).await.is_ok() })
    }
}

/// Each call was once a task of its own, without bound.
#[tokio::test]
async fn calls_that_wait_are_bounded_and_hold_up_no_other_channel() {
    const MAX_CALLS: u64 = 4_096;
    let cluster = Cluster::start(1).await;
    let first = cluster.handle(1);
    let asked = Arc::new(AtomicU64::new(0));
    let (release, over) = watch::channel(false);
    first.set_mirror(Box::new(Waits { asked: Arc::clone(&asked), over }));
    let name = Name::of(&cluster.dir.path().join("1"), 1);
    let call = async |channel| Stranger::call(&cluster.network, 1, channel, &name).await.unwrap();
    let mut waiting = call(stranger::MIRROR).await;
    waiting.ask(stranger::STANDS, 2 * MAX_CALLS).await;
    until("all that may wait do", || asked.load(Ordering::Relaxed) >= MAX_CALLS).await;
    let mut others = [call(stranger::VOTES).await, call(stranger::FORWARDS).await];
    for _ in 0..100 {
        others[0].ask(&stranger::confirm(0, 1, true), 1).await;
        assert_eq!(others[0].answer().await.unwrap(), [stranger::CONFIRMED, 0]);
        others[1].ask(stranger::READ_INDEX, 1).await;
        assert_eq!(others[1].answer().await.unwrap()[0], stranger::READ_POINT);
    }
    assert_eq!(asked.load(Ordering::Relaxed), MAX_CALLS);
    release.send_replace(true);
    for _ in 0..2 * MAX_CALLS {
        assert_eq!(waiting.answer().await.unwrap(), [stranger::STANDING, 1]);
    }
}

/// Has the node 3 join, at the address `node-NAME`, and waits until it votes.
async fn join(cluster: &Cluster, through: &Handle, name: &str) -> Node {
    let address = format!("node-{name}");
    let data = cluster.dir.path().join(name);
    let settings = settings(3, data, cluster.network.port(&address), 0);
    let peers = [(3, address.clone())].into();
    let starting = tokio::spawn(Node::start(Settings { join: true, peers, ..settings }));
    through.add_member(3, address).await.unwrap();
    let joined = starting.await.unwrap().unwrap();
    until("it votes", || through.status().members.get(&3).is_some_and(|member| member.voter)).await;
    joined
}
