//! Clients that go away.

use super::*;

#[tokio::test]
async fn a_request_goes_on_without_its_client_and_is_not_sent() {
    let server = Server::here(10).await;
    // Bytes after a waiting request do not hide that the client hangs up.
    for behind in ["", "\n", "echo a\necho b\n", "an unfinished one"] {
        server.gate.send_replace(false);
        let (begun, sent) = (server.seen.begun.load(Relaxed), server.seen.sent.load(Relaxed));
        let client = server.sent(format!("wait\n{behind}")).await;
        until("it begins", || server.seen.begun.load(Relaxed) > begun).await;
        drop(client);
        for _ in 0..1_000 {
            yield_now().await;
        }
        server.gate.send_replace(true);
        until("the connection ends", || server.connections.count().0 == 0).await;
        assert!(server.seen.ended.load(Relaxed) > begun, "{behind:?}");
        assert_eq!(server.seen.sent.load(Relaxed), sent, "{behind:?}");
    }
}

#[tokio::test]
async fn a_client_that_sends_no_more_gets_its_answers_up_to_one_that_must_arrive() {
    let server = Server::apart().await;
    let go_on = server.hang();
    let mut client = server.sent("tell a\ntell b\necho c\ntell d\nif-there e\n").await;
    client.shutdown().await.unwrap();
    drop(go_on);
    // The server cannot know whether the client reads them.
    assert_eq!(rest(&mut client).await, "a\nb\n");
    assert_eq!((server.seen.ended.load(Relaxed), server.seen.sent.load(Relaxed)), (5, 0));
    drop(client);

    // A client that leaves an answer unread resets the connection.
    let mut client = server.sent("tell a\n").await;
    client.readable().await.unwrap();
    let go_on = server.hang();
    client.write_all("tell b\n".repeat(10).as_bytes()).await.unwrap();
    drop(client);
    drop(go_on);
    until("all are done", || server.seen.ended.load(Relaxed) == 16).await;
}

#[tokio::test]
async fn a_response_is_sent_once_the_kernel_has_all_of_it() {
    let server = Server::here(10).await;
    let bytes = 20 << 20;
    for reads in [true, false] {
        let mut client = server.sent(format!("large {bytes}\n")).await;
        let mut first = [0];
        client.read_exact(&mut first).await.unwrap();
        for _ in 0..1_000 {
            yield_now().await;
        }
        assert_eq!(server.seen.sent.load(Relaxed), usize::from(!reads));
        if reads {
            client.read_exact(&mut vec![0; bytes - 1]).await.unwrap();
            until("it is sent", || server.seen.sent.load(Relaxed) == 1).await;
        } else {
            drop(client);
            until("it is dropped", || server.seen.dropped.load(Relaxed) == 1).await;
        }
    }
    assert_eq!(server.seen.sent.load(Relaxed), 1);
}

#[tokio::test]
async fn a_connection_is_closed_for_another_once_its_request_is_answered() {
    let server = Server::here(1).await;
    let mut first = server.sent("wait a\necho b\n").await;
    until("it begins", || server.seen.begun.load(Relaxed) == 1).await;
    let mut second = server.sent("echo c\n").await;
    reads(&mut second, "c\n").await;
    server.gate.send_replace(true);
    assert_eq!(rest(&mut first).await, "a\n");
    second.write_all(b"quit d\n").await.unwrap();
    assert_eq!(rest(&mut second).await, "d\n");
    assert_eq!(server.seen.begun.load(Relaxed), 3);
}
