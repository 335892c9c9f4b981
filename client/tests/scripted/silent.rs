//! Nodes that hang: they take connections and requests, and answer nothing.

use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, LeaseId};
use tokio::time::timeout;

use crate::scripted::node::{Received, SOON, ScriptedNode};

/// Time is the subject: a waiter that notices nothing asks again after 30 s. Some two seconds are usual.
const UNNOTICED: Duration = Duration::from_secs(20);
/// The state of a key that is free.
const KEY: &str = r#"{"key":"b","fence":1,"holders":[],"waiters":[],"revision":1}"#;

/// Two nodes, and a client of them.
async fn two() -> ([ScriptedNode; 2], Client) {
    let nodes = [ScriptedNode::new().await, ScriptedNode::new().await];
    let client = Client::connect(nodes.iter().map(ScriptedNode::url)).unwrap();
    (nodes, client)
}

/// Which of them receives the next request, and the request.
async fn receive([one, two]: &[ScriptedNode; 2]) -> (usize, Received) {
    tokio::select! {
        request = one.receive() => (0, request),
        request = two.receive() => (1, request),
    }
}

fn grant(path: &str) -> String {
    let lease_id = path.strip_prefix("/v1/leases/").unwrap();
    format!(
        r#"{{"lease_id":"{lease_id}","state":"granted","token":7,"holder":null,"ttl_ms":60000,"expires_in_ms":60000,"keys":[]}}"#
    )
}

/// It once waited there for 32 s, and others overtook it.
#[tokio::test]
async fn a_waiter_leaves_a_node_that_hangs_and_asks_for_the_same_lease_elsewhere() {
    let (nodes, client) = two().await;
    let waiter = tokio::spawn(client.lock("a").no_renew().acquire());
    let (first, put) = receive(&nodes).await;
    let place = put.path.replace("/v1/leases/", r#"{"lease_id":""#) + r#"","state":"waiting","ahead":0}"#;
    put.respond("202 Accepted", &place).await;
    let put = nodes[first].receive().await;
    // It waits as long as the node answers probes, be it for longer than any silence.
    nodes[first].connections(5).await;
    nodes[first].hang();
    let again = nodes[1 - first].receive().await;
    assert_eq!((&again.method, &again.path), (&put.method, &put.path));
    let body = grant(&again.path);
    again.respond("201 Created", &body).await;
    timeout(SOON, waiter).await.unwrap().unwrap().unwrap().into_id();
}

/// It once waited for 26 s at one thread that hung, as long as another one answered whatever was asked beside.
#[tokio::test]
async fn a_waiter_leaves_a_node_of_which_one_thread_hangs_although_others_answer() {
    let (nodes, client) = two().await;
    let waiter = tokio::spawn(client.lock("a").no_renew().acquire());
    let (first, put) = receive(&nodes).await;
    let place = put.path.replace("/v1/leases/", r#"{"lease_id":""#) + r#"","state":"waiting","ahead":0}"#;
    put.respond("202 Accepted", &place).await;
    let put = nodes[first].receive().await;
    nodes[first].hang_in_part();
    let reads = tokio::spawn(async move {
        loop {
            // The node that the waiter has left answers these no more.
            let _ = client.key("b", Consistency::Linearizable).await;
        }
    });
    let put_again = async {
        loop {
            let (which, request) = receive(&nodes).await;
            match request.method.as_str() {
                "PUT" => return (which, request),
                _ => request.respond("200 OK", KEY).await,
            }
        }
    };
    let (which, again) = timeout(UNNOTICED, put_again).await.expect("it notices");
    reads.abort();
    assert_eq!((which, &again.path), (1 - first, &put.path));
    let body = grant(&again.path);
    again.respond("201 Created", &body).await;
    timeout(SOON, waiter).await.unwrap().unwrap().unwrap().into_id();
}

/// The first node would take its place away 2 s after the connection closed, and the second may be slow.
#[tokio::test]
async fn a_waiter_leaves_a_node_only_once_another_has_answered() {
    let (nodes, client) = two().await;
    let waiter = tokio::spawn(client.lock("a").no_renew().acquire());
    let (first, put) = receive(&nodes).await;
    let place = put.path.replace("/v1/leases/", r#"{"lease_id":""#) + r#"","state":"waiting","ahead":0}"#;
    put.respond("202 Accepted", &place).await;
    let waits = nodes[first].receive().await;
    nodes[first].hang();
    let again = nodes[1 - first].receive().await;
    assert!(!waits.is_closed());
    again.respond("202 Accepted", &place).await;
    let last = nodes[1 - first].receive().await;
    let closed = async {
        while !waits.is_closed() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, closed).await.expect("it leaves");
    let body = grant(&last.path);
    last.respond("201 Created", &body).await;
    timeout(SOON, waiter).await.unwrap().unwrap().unwrap().into_id();
}

/// A busy leader that was late by a second once sent all of its waiters to others, which made it later still.
#[tokio::test]
async fn no_waiter_leaves_a_node_that_is_late_for_a_moment() {
    const WAITERS: usize = 4;
    // On a busy machine the client may find both silent.
    for _ in 0..5 {
        let (nodes, client) = two().await;
        let acquire = |number| tokio::spawn(client.lock(format!("a/{number}")).no_renew().acquire());
        let mut waiters = vec![acquire(0)];
        let (first, put) = receive(&nodes).await;
        let place = put.path.replace("/v1/leases/", r#"{"lease_id":""#) + r#"","state":"waiting","ahead":0}"#;
        put.respond("202 Accepted", &place).await;
        let mut puts = vec![nodes[first].receive().await];
        while puts.len() < WAITERS {
            waiters.push(acquire(puts.len()));
            puts.push(nodes[first].receive().await);
        }
        nodes[first].hang_in_part_for_a_moment().await;
        let is_left = tokio::select! {
            _put = nodes[1 - first].receive() => true,
            () = nodes[first].answers(3) => false,
        };
        if is_left {
            continue;
        }
        for (put, waiter) in puts.into_iter().zip(waiters) {
            let body = grant(&put.path);
            put.respond("201 Created", &body).await;
            timeout(SOON, waiter).await.unwrap().unwrap().unwrap().into_id();
        }
        return;
    }
    panic!("waiters leave");
}

#[tokio::test]
async fn a_try_leaves_a_node_that_hangs() {
    let (nodes, client) = two().await;
    nodes.iter().for_each(ScriptedNode::hang);
    let tried = tokio::spawn(client.lock("a").no_renew().try_acquire());
    let (first, _hangs) = receive(&nodes).await;
    let put = nodes[1 - first].receive().await;
    let body = grant(&put.path);
    put.respond("201 Created", &body).await;
    timeout(SOON, tried).await.unwrap().unwrap().unwrap().into_id();
}

/// All of its time once went to the first node.
#[tokio::test]
async fn a_release_asks_a_second_node_if_the_first_hangs() {
    // A release fails after 5 s. A machine that stalls for that long is no failure of the client.
    for _ in 0..5 {
        let (nodes, client) = two().await;
        nodes.iter().for_each(ScriptedNode::hang);
        let release = tokio::spawn(async move { client.release(LeaseId::random()).await });
        let (first, _hangs) = receive(&nodes).await;
        nodes[1 - first].receive().await.respond("204 No Content", "").await;
        if timeout(SOON, release).await.unwrap().unwrap().is_ok() {
            return;
        }
    }
    panic!("the second node was never asked in time");
}

/// Its outcome would be unknown.
#[tokio::test]
async fn a_call_that_cannot_be_repeated_is_not_sent_to_a_node_that_hangs() {
    let (nodes, client) = two().await;
    nodes[0].hang();
    for _ in 0..4 {
        let remove = async {
            // On a busy machine the time may be over before the second node is asked.
            while let Err(refused) = client.remove_member(7).await {
                assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
            }
        };
        tokio::join!(remove, async {
            nodes[1].receive().await.respond("204 No Content", "").await;
        });
    }
}
