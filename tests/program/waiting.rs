//! The queue: first come, first served, through any node; and a client that is gone keeps no key.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::{Duration, Instant};

use ringfence_harness::{
    Acquired, Answered, Consistency, LeaseView, Reply, granted, key, queued, send_acquire, try_once, until,
    wait_for,
};
use ringfence_wire::{AcquireRequest, EndReason, Holder, LeaseId, ProblemKind};

use crate::support::{SOON, cluster};

/// How long a waiter whose connection closed keeps its place.
const FORGIVEN: Duration = Duration::from_secs(2);

#[tokio::test]
async fn waiters_at_three_nodes_are_granted_in_the_order_they_came() {
    let cluster = cluster().start().await.unwrap();
    let mut held = LeaseId::random();
    let first = granted(&cluster.node(1).client().patient(), held, &try_once("line")).await;
    let mut waiters = Vec::new();
    for place in 1..=7u64 {
        let (lease, client) = (LeaseId::random(), cluster.node(place % 3 + 1).client().patient());
        let request = AcquireRequest { holder: Holder::new(&place.to_string()), ..wait_for("line", 60_000) };
        waiters.push((lease, tokio::spawn(async move { granted(&client, lease, &request).await })));
        queued(&cluster.node(1).client().patient(), "line", place as usize).await;
    }
    let mut last = first.token;
    for (turn, (lease, waiter)) in waiters.into_iter().enumerate() {
        // A try does not overtake.
        cluster
            .node(2)
            .client()
            .patient()
            .acquire(LeaseId::random(), &try_once("line"))
            .await
            .refused(ProblemKind::Held);
        let view =
            cluster.node(3).client().patient().key(&key("line"), Consistency::Linearizable).await.done();
        let line: Vec<_> = view.waiters.iter().map(|waiter| waiter.holder.clone().unwrap()).collect();
        let expected: Vec<_> = (turn + 1..=7).map(|place| Holder::new(&place.to_string()).unwrap()).collect();
        assert_eq!(line, expected);
        cluster.node(turn as u64 % 3 + 1).client().patient().release(held).await.done();
        let grant = tokio::time::timeout(SOON, waiter).await.expect("the next is granted").unwrap();
        assert!(grant.token > last, "tokens rise");
        assert_eq!(grant.keys[0].fence, grant.token);
        (last, held) = (grant.token, lease);
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn two_hundred_contenders_hold_a_key_one_after_the_other() {
    const CONTENDERS: u64 = 200;
    let cluster = cluster().start().await.unwrap();
    let contenders = (0..CONTENDERS).map(|number| {
        let client = cluster.node(number % 3 + 1).client().patient();
        tokio::spawn(async move {
            let request = wait_for("contended", 60_000);
            let (lease, grant) = loop {
                let lease = LeaseId::random();
                match client.acquire(lease, &request).await.unwrap() {
                    Reply::Done { body, .. } => break (lease, body.grant().unwrap()),
                    // On a slow machine, it may wait for more than a minute.
                    Reply::Refused(problem) => assert_eq!(problem.kind, ProblemKind::WaitTimeout),
                }
            };
            let from = Instant::now();
            // It still holds after a moment, and is the only one.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let view = client.key(&key("contended"), Consistency::Linearizable).await.done();
            assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [grant.token]);
            let until = Instant::now();
            client.release(lease).await.done();
            (grant.token, from, until)
        })
    });
    let mut held = Vec::new();
    for contender in contenders.collect::<Vec<_>>() {
        held.push(contender.await.unwrap());
    }
    held.sort();
    assert_eq!(held.iter().map(|(token, ..)| token).collect::<BTreeSet<_>>().len(), CONTENDERS as usize);
    for pair in held.windows(2) {
        let [(earlier, _, until), (later, from, _)] = pair else { unreachable!() };
        assert!(until <= from, "while {earlier} was held, {later} was granted");
    }
    let view =
        cluster.node(1).client().patient().key(&key("contended"), Consistency::Linearizable).await.done();
    assert!(view.holders.is_empty() && view.waiters.is_empty(), "{view:?}");
}

/// Repeats of one request took all connections of a node.
#[tokio::test]
async fn few_requests_of_a_node_wait_for_one_lease() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let (held, waits) = (LeaseId::random(), LeaseId::random());
    granted(&client, held, &try_once("few")).await;
    let mut first = send_acquire(cluster.node(1).http(), waits, &wait_for("few", 60_000));
    queued(&client, "few", 1).await;
    let _others = [0; 2].map(|_| send_acquire(cluster.node(1).http(), waits, &wait_for("few", 60_000)));
    let mut status = [0; 12];
    first.set_read_timeout(Some(SOON)).unwrap();
    first.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 504");
    queued(&client, "few", 1).await;
}

#[tokio::test]
async fn a_waiter_whose_connection_closed_is_removed() {
    let cluster = cluster().start().await.unwrap();
    for node in cluster.nodes() {
        let name = format!("closed/{}", node.id());
        let client = node.client().patient();
        let held = LeaseId::random();
        granted(&client, held, &try_once(&name)).await;
        let gone = LeaseId::random();
        let connection = send_acquire(node.http(), gone, &wait_for(&name, 60_000));
        queued(&client, &name, 1).await;
        drop(connection);
        queued(&client, &name, 0).await;
        let problem = client.acquire(gone, &wait_for(&name, 60_000)).await.refused(ProblemKind::LeaseGone);
        assert_eq!(problem.reason, Some(EndReason::Abandoned));
        client.release(held).await.done();
        granted(&client, LeaseId::random(), &try_once(&name)).await;
    }
}

/// The connection closes after the grant is proposed and before it is committed: without followers no leader commits.
#[tokio::test]
async fn a_grant_whose_client_closed_before_the_answer_is_taken_back() {
    let cluster = cluster().start().await.unwrap();
    // If another leader is elected meanwhile, the grant may be lost: then try again.
    for round in 0..20 {
        let leader = cluster.leader().await.unwrap();
        let client = leader.client().patient();
        let name = format!("unanswered/{round}");
        let (lease, request) = (LeaseId::random(), try_once(&name));
        let last = async || client.cluster().await.done().last_log_index;
        let before = last().await;
        cluster.others(leader.id()).for_each(|node| node.stop().unwrap());
        let connection = send_acquire(leader.http(), lease, &request);
        let proposed = || async { (last().await > before).then_some(()) };
        until(SOON, "the grant is proposed", proposed).await.unwrap();
        drop(connection);
        cluster.others(leader.id()).for_each(|node| node.resume().unwrap());
        let is_gone = || async {
            match client.lease(lease, Consistency::Linearizable).await {
                Ok(Reply::Refused(problem)) => Some(problem),
                _ => None,
            }
        };
        let problem = until(SOON, "the lease is taken back", is_gone).await.unwrap();
        if problem.kind == ProblemKind::LeaseGone {
            assert_eq!(problem.reason, Some(EndReason::Abandoned));
            granted(&client, LeaseId::random(), &request).await;
            return;
        }
    }
    panic!("no grant was committed after its connection had closed: nothing was tested");
}

#[tokio::test]
async fn a_waiter_that_is_granted_after_its_client_closed_does_not_keep_the_key() {
    let cluster = cluster().start().await.unwrap();
    for node in cluster.nodes() {
        let name = format!("late/{}", node.id());
        let client = node.client().patient();
        let (held, gone, next) = (LeaseId::random(), LeaseId::random(), LeaseId::random());
        granted(&client, held, &try_once(&name)).await;
        let connection = send_acquire(node.http(), gone, &wait_for(&name, 60_000));
        queued(&client, &name, 1).await;
        let waits = client.clone();
        let request = wait_for(&name, 60_000);
        let waiter = tokio::spawn(async move { granted(&waits, next, &request).await });
        queued(&client, &name, 2).await;
        drop(connection);
        // It is granted to a closed connection, and revoked 2 s later.
        client.release(held).await.done();
        tokio::time::timeout(SOON, waiter).await.expect("the key goes to the next").unwrap();
        let problem = client.lease(gone, Consistency::Linearizable).await.refused(ProblemKind::LeaseGone);
        assert_eq!(problem.reason, Some(EndReason::Abandoned));
    }
}

#[tokio::test]
async fn a_client_that_asks_again_in_time_keeps_its_place() {
    let cluster = cluster().start().await.unwrap();
    let client = cluster.node(1).client().patient();
    // On a slow machine it may ask again too late: then try again.
    for round in 0..10 {
        let name = format!("again/{round}");
        let request = wait_for(&name, 60_000);
        let (held, lease, later) = (LeaseId::random(), LeaseId::random(), LeaseId::random());
        granted(&client, held, &try_once(&name)).await;
        let connection = send_acquire(cluster.node(2).http(), lease, &request);
        queued(&client, &name, 1).await;
        let _rival = send_acquire(cluster.node(3).http(), later, &request);
        queued(&client, &name, 2).await;
        let closed = Instant::now();
        drop(connection);
        let _again = send_acquire(cluster.node(3).http(), lease, &request);
        queued(&cluster.node(3).client(), &name, 2).await;
        if closed.elapsed() > FORGIVEN / 2 {
            continue;
        }
        tokio::time::sleep(FORGIVEN + Duration::from_secs(1)).await;
        client.release(held).await.done();
        let is_granted = async || match client.lease(lease, Consistency::Linearizable).await.done() {
            LeaseView::Granted(grant) => Some(grant.token),
            LeaseView::Waiting(_) => None,
        };
        let token = until(SOON, "the first in line is granted", is_granted).await.unwrap();
        let view = client.key(&key(&name), Consistency::Linearizable).await.done();
        assert_eq!(view.holders[0].token, token);
        return;
    }
    panic!("it never asked again in time: nothing was tested");
}

#[tokio::test]
async fn a_wait_ends_with_409_or_with_a_place_that_is_kept() {
    let cluster = cluster().start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let held = LeaseId::random();
    granted(&client, held, &try_once("kept")).await;
    let (lost, kept) = (LeaseId::random(), LeaseId::random());
    let (short, other) = (wait_for("kept", 300), cluster.node(2).client().patient());
    let sent = Instant::now();
    other.acquire(lost, &short).await.refused(ProblemKind::WaitTimeout);
    assert!(sent.elapsed() >= Duration::from_millis(300), "waited only {:?}", sent.elapsed());
    other.acquire(lost, &short).await.refused(ProblemKind::WaitTimeout);
    let short = AcquireRequest { keep_place: true, ..short };
    for node in [1, 2, 3, 2, 1] {
        let sent = Instant::now();
        let Reply::Done { status: 202, body: Acquired::Waiting(place) } =
            cluster.node(node).client().patient().acquire(kept, &short).await.unwrap()
        else {
            panic!("the place is not kept")
        };
        assert_eq!(place.ahead, 0);
        assert!(sent.elapsed() >= Duration::from_millis(300), "waited only {:?}", sent.elapsed());
    }
    // It is granted while no request is open: the next request finds it.
    client.release(held).await.done();
    assert!(matches!(client.acquire(kept, &short).await.done(), Acquired::Standing(_)));
}

/// They once waited to the end, though others knew that their leases were granted.
#[tokio::test]
async fn those_who_keep_their_place_leave_a_node_that_is_cut_off_and_nobody_waits_there() {
    let cluster = cluster().start().await.unwrap();
    let held = LeaseId::random();
    granted(&cluster.node(1).client().patient(), held, &try_once("cut")).await;
    let (keeps, waits) = (LeaseId::random(), LeaseId::random());
    // Time is the subject: else the first would wait for all of it.
    let request = wait_for("cut", 60_000);
    let ask = |lease, keep_place| {
        let request = AcquireRequest { keep_place, ..request.clone() };
        let client = cluster.node(1).client();
        tokio::spawn(async move { client.acquire(lease, &request).await })
    };
    let observer = cluster.node(2).client().patient();
    let first = ask(keeps, true);
    queued(&observer, "cut", 1).await;
    let second = ask(waits, false);
    queued(&observer, "cut", 2).await;
    let cut = Instant::now();
    for other in cluster.others(1) {
        other.stop().unwrap();
    }
    assert!(matches!(first.await.unwrap(), Ok(Reply::Done { status: 202, body: Acquired::Waiting(_) })));
    assert!(cut.elapsed() < Duration::from_secs(50), "{:?}", cut.elapsed());
    let refused = ask(LeaseId::random(), true).await.unwrap().unwrap_err();
    assert!(refused.problem.unwrap().detail.contains("this node may learn late of a grant"));
    for other in cluster.others(1) {
        other.resume().unwrap();
    }
    observer.release(held).await.done();
    granted(&observer, keeps, &request).await;
    observer.release(keeps).await.done();
    assert!(matches!(second.await.unwrap(), Ok(Reply::Done { status: 201, body: Acquired::Granted(_) })));
}
