//! What a node may believe of the others, when connections outlive what they were made for.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_raft::{Handle, Mirrored, Node, NodeId};
use ringfence_wire::{Key, Revision, Role};
use support::proxy::{APPENDS, Proxy, Way};
use support::stranger::{self, Name, Stranger};
use support::{Cluster, SOON, View, acquire, bind, grant, id, lead, settings, until};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

/// openraft's ReadIndex once took the late answer to an old append for the answer to a newer message.
#[tokio::test]
async fn a_leader_that_was_deposed_answers_no_linearizable_read() {
    let mut listeners = BTreeMap::new();
    for node in 1..=3u64 {
        listeners.insert(node, bind().await);
    }
    let real: View = listeners.iter().map(|(node, (_, address))| (*node, address.clone())).collect();
    let (to_2, to_3) = (Proxy::to(&real[&2]).await, Proxy::to(&real[&3]).await);
    let (from_2, from_3) = (Proxy::to(&real[&1]).await, Proxy::to(&real[&1]).await);
    let mut views: BTreeMap<NodeId, View> = (1..=3).map(|node| (node, real.clone())).collect();
    views
        .insert(1, View::from([(1, real[&1].clone()), (2, to_2.address.clone()), (3, to_3.address.clone())]));
    views.get_mut(&2).unwrap().insert(1, from_2.address.clone());
    views.get_mut(&3).unwrap().insert(1, from_3.address.clone());
    let cluster = Cluster::found(listeners, &views).await;
    let (old, new, third) = (cluster.handle(1), cluster.handle(2), cluster.handle(3));
    lead(&old, 1).await;
    grant(&old, 1, "warm").await;
    old.linearize().await.unwrap();

    // The others take an entry, and their answers stay on the way.
    to_2.hold([APPENDS], Way::Back);
    to_3.hold([APPENDS], Way::Back);
    let before = old.status().last_log_index;
    let asking = old.clone();
    let unanswered = tokio::spawn(async move { asking.propose(vec![acquire(2, "x", 0)]).await });
    until("the others have the entry", || {
        let last = old.status().last_log_index;
        last > before && [&new, &third].iter().all(|other| other.status().last_log_index == last)
    })
    .await;
    for proxy in [&to_2, &to_3, &from_2, &from_3] {
        proxy.cut();
    }
    until("another leads", || matches!(new.status().leader, Some(2 | 3))).await;
    grant(&new, 3, "w").await;

    // Now somebody reads from the old leader, and the answers of before arrive.
    let asking = old.clone();
    let read = tokio::spawn(async move { asking.linearize().await });
    turns().await;
    assert!(!read.is_finished());
    to_3.release(APPENDS, Way::Back);
    // It tells node 2, too, that the entry is committed. The answer of node 2 is older than that.
    until("it commits the entry", || old.status().committed_index > before).await;
    turns().await;
    to_2.release(APPENDS, Way::Back);
    let answered = read.await.unwrap();
    let sees = old.view(|table| table.lease(id(3), None).is_ok());
    assert!(answered.is_err() || sees, "a read that began after the grant does not see it");
    drop(unanswered);
}

/// All nodes run on this thread. After so many turns each has done what it could do without the network.
async fn turns() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// Connections once outlived the member that they were made to. An election asked the process that was removed.
#[tokio::test]
async fn a_removed_process_does_not_vote_for_the_member_that_has_its_id_now() {
    let mut listeners = BTreeMap::new();
    for node in 1..=2u64 {
        listeners.insert(node, bind().await);
    }
    let real: View = listeners.iter().map(|(node, (_, address))| (*node, address.clone())).collect();
    let (from_2, from_3) = (Proxy::to(&real[&1]).await, Proxy::to(&real[&1]).await);
    let to_2 = Proxy::to(&real[&2]).await;
    let views = BTreeMap::from([
        (1, View::from([(1, real[&1].clone()), (2, to_2.address.clone())])),
        (2, View::from([(1, from_2.address.clone()), (2, real[&2].clone())])),
    ]);
    let cluster = Cluster::found(listeners, &views).await;
    let (first, second) = (cluster.handle(1), cluster.handle(2));
    let old = join(&cluster, &first, "3", 3, View::new()).await;
    // Both have asked it for its vote.
    lead(&first, 2).await;
    lead(&first, 1).await;
    first.remove_member(3).await.unwrap();
    lead(&first, 2).await;
    let new = join(&cluster, &first, "3 again", 3, View::from([(1, from_3.address.clone())])).await;
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
    from_2.cut();
    from_3.cut();
    grant(&second, 2, "precious").await;
    let term = second.status().term;
    let asked = to_2.votes_asked();
    until("node 1 has campaigned, and again", || {
        let status = first.status();
        assert!(status.role != Role::Leader || status.term <= term, "elected by a process that is no member");
        to_2.votes_asked() >= asked + 5
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
        let address = &cluster.addresses[&1];
        let mut stranger = Stranger::call(address, 1, channel, name).await.unwrap();
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

/// What was checked when a connection was made once held for as long as the connection.
#[tokio::test]
async fn a_connection_of_a_member_ends_when_it_is_none_any_more() {
    let cluster = Cluster::start(3).await;
    let first = cluster.handle(1);
    let call = async |name: &Name| Stranger::call(&cluster.addresses[&1], 1, stranger::VOTES, name).await;
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
    // It may know better: that it was added again, say, of which this node has not heard yet.
    member.member_as_of = Some((u64::MAX, 0));
    assert!(call(&member).await.is_some(), "removed, and perhaps added again");
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
    let mut leader = Stranger::call(&cluster.addresses[&2], 2, stranger::VOTES, &name).await.unwrap();
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
    assert_eq!(says(stranger::vote(next, 3)).await[..5], [0, u8::try_from(next).unwrap(), 3, 0, 1]);
    assert_eq!(says(stranger::confirm(term, 1, true)).await, [stranger::CONFIRMED, 0]);
    assert_eq!(says(stranger::confirm(next, 3, true)).await, [stranger::CONFIRMED, 0]);
}

/// A mirror that keeps everybody waiting.
struct Waits {
    asked: Arc<AtomicU64>,
    over: watch::Receiver<bool>,
}

impl Mirrored for Waits {
    fn stands<'a>(&'a self, _: &'a [Key], _: Revision) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
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
    let call = async |channel| Stranger::call(&cluster.addresses[&1], 1, channel, &name).await.unwrap();
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

/// Starts a node that joins, and waits until it votes.
async fn join(cluster: &Cluster, through: &Handle, data: &str, node: NodeId, mut view: View) -> Node {
    let (listener, address) = bind().await;
    view.insert(node, address.clone());
    let mut settings = settings(node, cluster.dir.path().join(data), listener, view);
    settings.join = true;
    let starting = tokio::spawn(Node::start(settings));
    until("it listens", || std::net::TcpStream::connect(&address).is_ok()).await;
    through.add_member(node, address).await.unwrap();
    let joined = starting.await.unwrap().unwrap();
    until("it votes", || through.status().members.get(&node).is_some_and(|member| member.voter)).await;
    joined
}
