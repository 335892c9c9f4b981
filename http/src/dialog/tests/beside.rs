//! Requests that are answered beside others.

use super::*;
use crate::connections::MOST_IN_FLIGHT;

#[tokio::test]
async fn requests_do_not_wait_for_each_other_and_are_answered_in_order() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait a\n+echo b\n").await;
    until("both are done", || server.seen.begun.load(Relaxed) == 2).await;
    client.write_all(b"+echo c\nif-there d\n+echo e\n").await.unwrap();
    until("a later one is done", || server.seen.ended.load(Relaxed) == 2).await;
    for _ in 0..1_000 {
        yield_now().await;
    }
    assert_eq!(
        server.seen.begun.load(Relaxed),
        3,
        "one that is done alone waits, and so does what is behind it"
    );
    assert_eq!(server.seen.responded.load(Relaxed), 0, "a lock counts from its response, and may end before");
    server.gate.send_replace(true);
    reads(&mut client, "a\nb\nc\nd\ne\n").await;
    until("all are sent", || server.seen.sent.load(Relaxed) == 5).await;
    assert_eq!(server.seen.dropped.load(Relaxed), 0);
}

#[tokio::test]
async fn a_request_that_holds_its_connection_back_is_the_last_that_begins() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait a\n+hold b\n+echo c\n").await;
    until("two begin", || server.seen.begun.load(Relaxed) == 2).await;
    client.write_all(b"+echo d\n").await.unwrap();
    for _ in 0..1_000 {
        yield_now().await;
    }
    assert_eq!(server.seen.begun.load(Relaxed), 2);
    server.gate.send_replace(true);
    reads(&mut client, "a\nb\nc\nd\n").await;
}

#[tokio::test]
async fn only_so_many_requests_are_under_way() {
    let server = Server::here(10).await;
    let small = "+wait a\n".repeat(MOST_IN_FLIGHT + 10);
    let large = ("+wait ".to_owned() + &"x".repeat(PER_TURN / 2) + "\n").repeat(3);
    for (sent, most) in [(small, MOST_IN_FLIGHT), (large, 2)] {
        server.gate.send_replace(false);
        let begun = server.seen.begun.load(Relaxed);
        let mut client = server.sent(&sent).await;
        until("they begin", || server.seen.begun.load(Relaxed) == begun + most).await;
        for _ in 0..1_000 {
            yield_now().await;
        }
        assert_eq!(server.seen.begun.load(Relaxed), begun + most);
        server.gate.send_replace(true);
        reads(&mut client, &sent.replace("+wait ", "")).await;
    }
}

#[tokio::test]
async fn nothing_begins_after_the_last_answer_is_known() {
    let server = Server::here(10).await;
    for last in ["+quit b\n", "quit b\n", "!"] {
        server.gate.send_replace(false);
        let begun = server.seen.begun.load(Relaxed);
        let mut client = server.sent(format!("+wait a\n{last}")).await;
        until("the first begins", || server.seen.begun.load(Relaxed) > begun).await;
        client.write_all(b"+echo c\n").await.unwrap();
        for _ in 0..1_000 {
            yield_now().await;
        }
        server.gate.send_replace(true);
        assert_eq!(rest(&mut client).await, if last == "!" { "a\nno request\n" } else { "a\nb\n" });
        assert_eq!(server.seen.begun.load(Relaxed), begun + 1 + usize::from(last != "!"), "{last}");
    }
}

#[tokio::test]
async fn requests_that_have_begun_before_the_last_answer_is_known_are_answered() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait-quit a\n+wait b\n+echo c\n").await;
    until("all begin", || server.seen.begun.load(Relaxed) == 3).await;
    client.write_all(b"echo d\n").await.unwrap();
    for _ in 0..1_000 {
        yield_now().await;
    }
    server.gate.send_replace(true);
    assert_eq!(rest(&mut client).await, "a\nb\nc\n");
    assert_eq!(server.seen.dropped.load(Relaxed), 0);
}

/// The client may know the first answer, so it must not be taken back.
#[tokio::test]
async fn a_response_is_sent_whatever_follows_it() {
    let server = Server::here(10).await;
    let client = server.sent("+wait a\n+large 20000000\n+echo b\n").await;
    until("all begin", || server.seen.begun.load(Relaxed) == 3).await;
    server.gate.send_replace(true);
    until("the first is sent", || server.seen.sent.load(Relaxed) == 1).await;
    drop(client);
    until("the others are not", || server.seen.dropped.load(Relaxed) == 2).await;
    assert_eq!(server.seen.sent.load(Relaxed), 1);
}

#[tokio::test]
async fn an_answer_that_waits_for_earlier_ones_takes_memory() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait a\n+large 8000\n").await;
    until("the second is done", || server.seen.ended.load(Relaxed) == 1).await;
    server.connections.admit(server.address).await.0.keep_response(1 << 30);
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(server.seen.dropped.load(Relaxed), 2);
}

#[tokio::test]
async fn requests_go_on_while_the_client_reads_nothing() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait-large 20000000\n+wait-behind a\n").await;
    until("both begin", || server.seen.begun.load(Relaxed) == 2).await;
    server.gate.send_replace(true);
    until("both are done", || server.seen.ended.load(Relaxed) == 2).await;
    assert_eq!(server.seen.sent.load(Relaxed), 0);
    client.read_exact(&mut vec![0; 20_000_000]).await.unwrap();
    reads(&mut client, "a\n").await;
}

#[tokio::test]
async fn requests_wait_for_those_before_them_if_there_is_no_memory() {
    let server = Server::here(100).await;
    let mut taken = Vec::new();
    for host in 0..1_000_u16 {
        let [net, host] = host.to_be_bytes();
        let other = server.connections.admit(SocketAddr::from(([192, 0, net, host], 1))).await;
        taken.extend(std::iter::from_fn(|| other.0.portion(&server.connections.memory.beside, 1 << 10)));
    }
    let mut client = server.sent("+wait a\n+echo b\n").await;
    until("the first begins", || server.seen.begun.load(Relaxed) == 1).await;
    for _ in 0..1_000 {
        yield_now().await;
    }
    assert_eq!(server.seen.begun.load(Relaxed), 1);
    server.gate.send_replace(true);
    reads(&mut client, "a\nb\n").await;
}

#[tokio::test]
async fn an_answer_arrives_though_the_client_sends_on_while_the_server_stops() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait a\n").await;
    until("it begins", || server.seen.begun.load(Relaxed) == 1).await;
    server.stop.send_replace(true);
    for _ in 0..1_000 {
        yield_now().await;
    }
    client.write_all(&b"+echo b\n".repeat(10 * PER_TURN)).await.unwrap();
    server.gate.send_replace(true);
    assert_eq!(rest(&mut client).await, "a\n");
    for _ in 0..1_000 {
        yield_now().await;
    }
    assert_eq!(server.connections.count().0, 1, "to close resets the connection, and the answer may be lost");
    drop(client);
    until("it closes", || server.connections.count().0 == 0).await;
}

#[tokio::test]
async fn all_requests_go_on_without_their_client() {
    let server = Server::here(10).await;
    let client = server.sent("+wait a\nif-there b\n+wait c\n+if-there d\n").await;
    until("the first begins", || server.seen.begun.load(Relaxed) == 1).await;
    drop(client);
    for _ in 0..1_000 {
        yield_now().await;
    }
    server.gate.send_replace(true);
    until("the connection ends", || server.connections.count().0 == 0).await;
    assert_eq!((server.seen.ended.load(Relaxed), server.seen.sent.load(Relaxed)), (4, 0));
}

#[tokio::test]
async fn a_connection_is_closed_for_another_once_all_its_requests_are_answered() {
    let server = Server::here(1).await;
    let mut first = server.sent("+wait a\n+wait b\n").await;
    until("both begin", || server.seen.begun.load(Relaxed) == 2).await;
    let mut second = server.sent("+echo c\n").await;
    reads(&mut second, "c\n").await;
    first.write_all(b"+echo d\n").await.unwrap();
    for _ in 0..1_000 {
        yield_now().await;
    }
    server.gate.send_replace(true);
    assert_eq!(rest(&mut first).await, "a\nb\n");
    assert_eq!(server.seen.begun.load(Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_request_is_late_only_once_those_before_it_are_answered() {
    let server = Server::here(10).await;
    let mut client = server.sent("+wait a\nec").await;
    until("it begins", || server.seen.begun.load(Relaxed) == 1).await;
    sleep(3 * HEAD_TIMEOUT).await;
    server.gate.send_replace(true);
    reads(&mut client, "a\n").await;
    let begun = Instant::now();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(begun.elapsed().as_secs(), HEAD_TIMEOUT.as_secs());
}
