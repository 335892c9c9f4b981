//! Large requests and responses, and the memory that all connections share.

use super::*;
use crate::dialog::incoming::MAX_REQUEST;
use crate::tenant::Tenant;

/// More than all connections may hold together.
const ALL: usize = 1 << 30;

#[tokio::test]
async fn a_request_that_is_too_long_closes_the_connection() {
    let server = Server::here(10).await;
    let text = "echo ".to_owned() + &"x".repeat(MAX_REQUEST - 6) + "\n";
    let mut client = server.sent(&text).await;
    reads(&mut client, &text["echo ".len()..]).await;
    client.write_all(&[b'x'; 2 * MAX_REQUEST]).await.unwrap();
    until("it closes", || server.connections.count().0 == 0).await;
    assert!(server.seen.received.load(Relaxed) <= MAX_REQUEST + PER_TURN);
}

#[tokio::test]
async fn an_unfinished_request_makes_room_for_those_of_others() {
    let server = Server::here(10).await;
    let mut small = server.sent(vec![b'x'; PER_TURN]).await;
    let mut large = server.sent(vec![b'x'; 4 * PER_TURN]).await;
    until("it arrives", || server.seen.received.load(Relaxed) == 4 * PER_TURN).await;
    // The request counts: less is left for others.
    let most = server.connections.admit(server.address).await;
    most.0.belongs_to(Some("other"));
    let mut portion = None;
    most.0.keep_request(&mut portion, (32 << 20) - 3 * PER_TURN);
    assert!(!most.0.is_body_shed());
    most.0.keep_request(&mut portion, 1);
    assert!(most.0.is_body_shed());
    // Another connection of the same tenant needs the memory.
    server.connections.admit(server.address).await.0.keep_request(&mut None, ALL);
    assert!(matches!(large.read(&mut [0]).await, Ok(0) | Err(_)));
    small.write_all(b"\n").await.unwrap();
    reads(&mut small, "\n").await;
    assert_eq!(server.seen.begun.load(Relaxed), 1);
}

#[tokio::test]
async fn a_large_request_waits_for_the_memory_of_others() {
    let server = Server::here(10).await;
    let text = "echo ".to_owned() + &"x".repeat(4 * PER_TURN) + "\n";
    let other = || Tenant::Principal("other".into());
    let memory = server.connections.memory.handled.wait(other(), ALL).await;
    let (mut waits, gone) = (server.sent(&text).await, server.sent(&text).await);
    let mut small = server.sent("echo a\n").await;
    reads(&mut small, "a\n").await;
    let arrived = || server.seen.received.load(Relaxed) == text.len();
    until("they arrive", arrived).await;
    assert_eq!(server.connections.count().0, 3);
    drop(gone);
    until("one goes away", || server.connections.count().0 == 2).await;
    assert_eq!(server.seen.begun.load(Relaxed), 1);
    drop(memory);
    reads(&mut waits, &text["echo ".len()..]).await;
    // The request holds no memory any more.
    assert!(server.connections.memory.handled.wait(other(), 0).await.grow(0) == 0);
    assert_eq!(server.seen.begun.load(Relaxed), 2);
}

#[tokio::test]
async fn a_response_that_is_not_read_makes_room_for_those_of_others() {
    let server = Server::here(10).await;
    let mut unread = server.sent("large 20000000\n").await;
    unread.readable().await.unwrap();
    server.connections.admit(server.address).await.0.keep_response(ALL);
    until("it is dropped", || server.seen.dropped.load(Relaxed) == 1).await;
    let mut bytes = Vec::new();
    let _ = unread.read_to_end(&mut bytes).await;
    assert!(bytes.len() < 20_000_000);
}
