//! Failures of nodes: grants stay, and the queue keeps its order.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence_harness::{
    Acquired, Answered, Called, Client, Cluster, Consistency, Fate, LeaseView, Load, Node, Reply, definite,
    granted, key, queued, released, try_once, until, wait_for,
};
use ringfence_wire::{AcquireRequest, Grant, LeaseId, ProblemKind, Ttl};
use tokio::task::JoinHandle;

use crate::support::{SOON, cluster};

#[tokio::test]
#[ignore = "slow"]
async fn no_grant_and_no_place_is_lost_with_a_killed_leader() {
    let cluster = cluster().start().await.unwrap();
    for round in 0..2 {
        let leader = cluster.leader().await.unwrap();
        let others: Vec<&Node> = cluster.others(leader.id()).collect();
        let name = |held: usize| format!("held/{round}/{held}");
        let mut grants = Vec::new();
        for (held, node) in cluster.nodes().iter().cycle().take(6).enumerate() {
            let lease = LeaseId::random();
            grants.push((lease, name(held), granted(&node.client(), lease, &try_once(&name(held))).await));
        }
        let mut waiters = Vec::new();
        for place in 0..6 {
            let (lease, client) = (LeaseId::random(), cluster.nodes()[place % 3].client());
            // Sent once: only its place in the queue matters.
            let request = wait_for(&name(0), 60_000);
            tokio::spawn(async move { client.acquire(lease, &request).await });
            queued(&others[0].client(), &name(0), place + 1).await;
            waiters.push(lease);
        }

        leader.kill().unwrap();
        for (lease, name, grant) in &grants {
            for node in &others {
                let repeat = granted(&node.client(), *lease, &try_once(name)).await;
                assert_eq!((repeat.token, &repeat.keys), (grant.token, &grant.keys));
            }
        }
        // The waiters repeat their requests in reverse order, through other nodes.
        let mut again = Vec::new();
        for (place, lease) in waiters.iter().enumerate().rev() {
            again.push(wait_at(&others[place % 2].client(), *lease, &name(0)));
        }
        again.reverse();
        queued(&others[0].client(), &name(0), 6).await;
        let (mut held, mut last) = (grants[0].0, grants[0].2.token);
        for (lease, waiter) in waiters.into_iter().zip(again) {
            released(&others[1].client(), held).await;
            let grant =
                tokio::time::timeout(SOON, waiter).await.expect("the next waiter is granted").unwrap();
            assert!(grant.token > last, "tokens rise");
            (held, last) = (lease, grant.token);
        }
        leader.start().unwrap();
        cluster.ready().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_that_keeps_its_place_finds_it_under_the_next_leader() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let client = cluster.others(leader.id()).next().unwrap().client();
    let (held, kept, later) = (LeaseId::random(), LeaseId::random(), LeaseId::random());
    granted(&client, held, &try_once("kept")).await;
    let request = AcquireRequest { keep_place: true, ..wait_for("kept", 200) };
    assert!(matches!(leader.client().acquire(kept, &request).await.done(), Acquired::Waiting(_)));
    assert!(
        matches!(client.acquire(later, &request).await.done(), Acquired::Waiting(place) if place.ahead == 1)
    );
    leader.kill().unwrap();
    for (lease, ahead) in [(later, 1), (kept, 0)] {
        let repeat = definite(SOON, || client.acquire(lease, &request)).await.unwrap();
        let Reply::Done { body: Acquired::Waiting(place), .. } = repeat else { panic!("{repeat:?}") };
        assert_eq!(place.ahead, ahead);
    }
    released(&client, held).await;
    assert!(matches!(client.acquire(kept, &request).await.done(), Acquired::Standing(_)));
}

#[tokio::test]
async fn renewals_keep_a_lease_alive_while_the_leader_is_killed() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let client = cluster.others(leader.id()).next().unwrap().client();
    let lease = LeaseId::random();
    let ttl = Duration::from_secs(6);
    let ttl_ms = Ttl::from_ms(ttl.as_millis() as u32).unwrap();
    let request = AcquireRequest { ttl_ms, ..try_once("renewed") };
    let grant = granted(&client, lease, &request).await;
    let mut killed = false;
    let began = Instant::now();
    while began.elapsed() < 2 * ttl {
        if !killed && began.elapsed() > ttl / 6 {
            leader.kill().unwrap();
            killed = true;
        }
        let renewed = definite(SOON, || client.renew(lease, None)).await.unwrap();
        let Reply::Done { body, .. } = renewed else { panic!("{renewed:?}") };
        assert_eq!(body.token, grant.token);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_terminated_leader_hands_over_and_loses_nothing() {
    let cluster = cluster().start().await.unwrap();
    for round in 0..5 {
        if hands_over(&cluster, &format!("stopped/{round}")).await {
            return;
        }
    }
    panic!("no other node ever took over in time");
}

/// Terminates the leader, and checks that a holder and two waiters lose nothing. Returns `false` if no other node took over in
/// time, because this machine was too slow.
async fn hands_over(cluster: &Cluster, name: &str) -> bool {
    let leader = cluster.leader().await.unwrap();
    let other = cluster.others(leader.id()).next().unwrap().client();
    let (held, waits, keeps) = (LeaseId::random(), LeaseId::random(), LeaseId::random());
    let grant = granted(&leader.client(), held, &try_once(name)).await;
    let request = wait_for(name, 60_000);
    let keeping = AcquireRequest { keep_place: true, ..request.clone() };
    let asked = [(waits, request.clone()), (keeps, keeping.clone())].map(|(lease, request)| {
        let client = leader.client();
        tokio::spawn(async move { client.acquire(lease, &request).await })
    });
    queued(&other, name, 2).await;

    let stopping = Instant::now();
    let status = leader.terminate().await.unwrap();
    assert!(status.success(), "{status}");
    eprintln!("it stopped within {:?}", stopping.elapsed());
    assert!(leader.log().contains("handing over the leadership"));
    if leader.log().contains("not taken over in time") {
        leader.start().unwrap();
        cluster.ready().await.unwrap();
        return false;
    }
    let [waited, kept] = asked;
    let failure = waited.await.unwrap().failed();
    assert_eq!((failure.fate, failure.status()), (Fate::Unknown, Some(504)), "{failure}");
    assert!(matches!(kept.await.unwrap().done(), Acquired::Waiting(_)));

    let repeat = granted(&other, held, &try_once(name)).await;
    assert_eq!(repeat.token, grant.token);
    queued(&other, name, 2).await;
    let found = [waits, keeps].map(|lease| {
        let (client, request) = (other.clone(), request.clone());
        tokio::spawn(async move {
            let grant = granted(&client, lease, &request).await;
            released(&client, lease).await;
            grant
        })
    });
    released(&other, held).await;
    for waiter in found {
        let next = tokio::time::timeout(SOON, waiter).await.expect("it finds its place").unwrap();
        assert!(next.token > grant.token);
    }
    true
}

#[tokio::test]
async fn leaders_that_are_killed_stopped_and_terminated_under_load_lose_nothing_acknowledged() {
    let cluster = cluster().start().await.unwrap();
    let load = Load::start(&cluster, "load");
    for round in 0..3 {
        load.more(100).await.unwrap();
        let leader = cluster.leader().await.unwrap();
        match round {
            0 => leader.kill().unwrap(),
            1 => leader.stop().unwrap(),
            _ => assert!(leader.terminate().await.unwrap().success()),
        }
        load.more(50).await.unwrap();
        match round {
            // It does not know yet that it was replaced.
            1 => leader.resume().unwrap(),
            _ => leader.start().unwrap(),
        }
        cluster.ready().await.unwrap();
    }
    load.end().await.check(&cluster).await;
}

/// Checks that without a quorum every call soon fails. Returns the leases that were certainly not acquired.
async fn refuses_all(node: &Node, held: LeaseId, grant: &Grant) -> Vec<LeaseId> {
    let client = node.client();
    let key = key("minority");
    let asked = Instant::now();
    let tried: Vec<LeaseId> = (0..4).map(|_| LeaseId::random()).collect();
    let fail = |what: &'static str, answer: Called<()>| {
        let failure = answer.failed();
        assert!(matches!(failure.status(), Some(503 | 504)), "{what}: {failure}");
        assert!(asked.elapsed() < SOON, "{what} took {:?}", asked.elapsed());
        failure
    };
    let strong = Consistency::Linearizable;
    let reads = async {
        let (view, verdict, lease, list) = tokio::join!(
            client.key(&key, strong),
            client.validate(&key, grant.token, strong),
            client.lease(held, strong),
            client.keys("", None, strong),
        );
        for (what, answer) in
            [("key", unit(view)), ("validate", unit(verdict)), ("lease", unit(lease)), ("list", unit(list))]
        {
            assert_eq!(fail(what, answer).fate, Fate::NotDone, "{what}");
        }
    };
    let writes = async {
        let (renewed, released) = tokio::join!(client.renew(held, None), client.release(LeaseId::random()));
        fail("renew", unit(renewed));
        fail("release", released);
    };
    let acquires = join_all(tried.iter().enumerate().map(|(index, &lease)| {
        let client = &client;
        async move {
            let request = if index % 2 == 0 { try_once("free") } else { wait_for("free", 2_000) };
            (lease, client.acquire(lease, &request).await)
        }
    }));
    let ((), (), acquired) = tokio::join!(reads, writes, acquires);
    acquired
        .into_iter()
        .filter(|(_, answer)| fail("acquire", unit(answer.clone())).fate == Fate::NotDone)
        .map(|(lease, _)| lease)
        .collect()
}

/// A leader without a quorum, or a follower without a leader, soon names no leader.
async fn names_no_leader(node: &Node) {
    let named = || async { node.client().cluster().await.done().leader.is_none().then_some(()) };
    until(SOON, "no leader is named", named).await.unwrap();
}

/// Local reads still work.
async fn answers_locally(node: &Node, held: LeaseId, grant: &Grant) {
    let (client, key, local) = (node.client(), key("minority"), Consistency::Local);
    let view = client.key(&key, local).await.done();
    assert_eq!((view.holders[0].token, view.holders[0].expires_in_ms), (grant.token, None));
    let LeaseView::Granted(lease) = client.lease(held, local).await.done() else { panic!("not granted") };
    assert_eq!(lease.token, grant.token);
    assert_eq!(client.validate(&key, grant.token, local).await.done().fence, grant.token);
    assert!(client.keys("minority", None, local).await.done().keys.len() == 1);
    client.cluster().await.done();
}

/// Halts two of three nodes with `halt`, once the followers and once the leader and a follower; `back` undoes it.
async fn a_minority(halt: impl Fn(&Node), back: impl Fn(&Node)) {
    let cluster = cluster().start().await.unwrap();
    let held = LeaseId::random();
    let grant = granted(&cluster.node(1).client(), held, &try_once("minority")).await;
    for leader_is_left in [true, false] {
        let leader = cluster.leader().await.unwrap();
        let left = if leader_is_left { leader } else { cluster.others(leader.id()).next().unwrap() };
        // So that it has applied the grant.
        left.client().key(&key("minority"), Consistency::Linearizable).await.done();
        cluster.others(left.id()).for_each(&halt);
        answers_locally(left, held, &grant).await;
        let not_done = refuses_all(left, held, &grant).await;
        answers_locally(left, held, &grant).await;
        names_no_leader(left).await;
        cluster.others(left.id()).for_each(&back);
        cluster.ready().await.unwrap();
        for node in cluster.nodes() {
            assert_eq!(granted(&node.client(), held, &try_once("minority")).await.token, grant.token);
            for &lease in &not_done {
                node.client()
                    .lease(lease, Consistency::Linearizable)
                    .await
                    .refused(ProblemKind::UnknownLease);
            }
        }
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn one_of_three_nodes_refuses_while_the_others_are_killed() {
    a_minority(|node| node.kill().unwrap(), |node| node.start().unwrap()).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn one_of_three_nodes_refuses_while_the_others_are_stopped() {
    a_minority(|node| node.stop().unwrap(), |node| node.resume().unwrap()).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn five_nodes_go_on_without_two_but_not_without_three() {
    let cluster = cluster().nodes(5).start().await.unwrap();
    let held = LeaseId::random();
    let grant = granted(&cluster.node(1).client(), held, &try_once("minority")).await;
    let leader = cluster.leader().await.unwrap();
    let followers: Vec<&Node> = cluster.others(leader.id()).collect();
    leader.kill().unwrap();
    followers[0].kill().unwrap();
    for node in &followers[1..] {
        assert_eq!(granted(&node.client(), held, &try_once("minority")).await.token, grant.token);
        let name = format!("three/{}", node.id());
        let next = granted(&node.client(), LeaseId::random(), &try_once(&name)).await;
        assert!(next.token > grant.token);
    }
    followers[1].kill().unwrap();
    refuses_all(followers[2], held, &grant).await;
    answers_locally(followers[3], held, &grant).await;
    leader.start().unwrap();
    for node in cluster.running() {
        assert_eq!(granted(&node.client(), held, &try_once("minority")).await.token, grant.token);
        let name = format!("again/{}", node.id());
        granted(&node.client(), LeaseId::random(), &try_once(&name)).await;
    }
}

/// A waiter that repeats its request until it is granted.
fn wait_at(client: &Client, lease: LeaseId, name: &str) -> JoinHandle<Grant> {
    let (client, request) = (client.clone(), wait_for(name, 60_000));
    tokio::spawn(async move { granted(&client, lease, &request).await })
}

fn unit<T>(answer: Called<T>) -> Called<()> {
    answer.map(|reply| match reply {
        Reply::Done { status, .. } => Reply::Done { status, body: () },
        Reply::Refused(problem) => Reply::Refused(problem),
    })
}
