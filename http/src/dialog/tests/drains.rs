//! Stopping the server.

use super::*;

#[tokio::test]
async fn what_arrived_before_a_stop_is_answered() {
    let server = Server::apart().await;
    let mut old = server.sent("as app\n").await;
    reads(&mut old, "app\n").await;
    let go_on = server.hang();
    let text = "echo a\n".repeat(10_000);
    let mut new = server.sent(&text).await;
    until("it is accepted", || server.connections.count().0 == 2).await;
    old.write_all(text.as_bytes()).await.unwrap();
    server.stop.send_replace(true);
    // The stop is under way once the listener is closed.
    while TcpStream::connect(server.address).await.is_ok() {
        yield_now().await;
    }
    drop(go_on);
    for client in [&mut old, &mut new] {
        assert_eq!(rest(client).await, text.replace("echo ", ""));
    }
    server.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_requests_and_closes_idle_connections() {
    let server = Server::here(10).await;
    let mut idle = server.sent("as app\n").await;
    reads(&mut idle, "app\n").await;
    let mut waits = server.sent("wait a\necho b\n").await;
    until("it begins", || server.seen.begun.load(Relaxed) == 2).await;
    server.seen.received.store(0, Relaxed);
    let mut begins = server.sent("ec").await;
    until("it has begun", || server.seen.received.load(Relaxed) > 0).await;
    let begun = Instant::now();
    server.stop.send_replace(true);
    assert_eq!(rest(&mut idle).await, "");
    assert!(!server.serving.is_finished());
    server.gate.send_replace(true);
    assert_eq!(rest(&mut waits).await, "a\nb\n");
    assert!(!server.serving.is_finished());
    begins.write_all(b"ho c\n").await.unwrap();
    assert_eq!(rest(&mut begins).await, "c\n");
    server.serving.await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_request_that_does_not_end() {
    let server = Server::here(10).await;
    let _waits = server.sent("wait a\n").await;
    until("it begins", || server.seen.begun.load(Relaxed) == 1).await;
    server.stop.send_replace(true);
    server.serving.await.unwrap();
}
