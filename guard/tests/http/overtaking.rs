//! Races that a mere check before the handler would lose.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::Connection;
use crate::service::{Service, exclusive};

/// Long enough for a request that nothing blocks. On a slower machine the tests may miss a fault, but report none wrongly.
const A_WHILE: Duration = Duration::from_millis(300);
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_new_holder_reads_only_after_a_write_in_progress() {
    let service = Service::start(Ok(1)).await;
    let mut new = Connection::open(service.address).await;
    let old_writes = service.put("2", "slow");
    let new_reads = async {
        service.things.begun.notified().await;
        let headers = exclusive("5");
        let mut read = std::pin::pin!(new.send("GET", "/things/a", &headers, ""));
        assert!(timeout(A_WHILE, &mut read).await.is_err(), "it reads while the old holder still writes");
        service.things.go_on.add_permits(1);
        read.await
    };
    let (wrote, read) = tokio::join!(old_writes, new_reads);
    assert_eq!((wrote.status, read.status, &read.body[..]), (200, 200, &b"slow"[..]));
    assert_eq!(service.done(), ["wrote slow", "read slow"]);
}

#[tokio::test]
async fn a_new_holder_waits_for_a_write_whose_client_is_gone() {
    let service = Service::start(Ok(1)).await;
    let mut old = Connection::open(service.address).await;
    let headers = exclusive("2");
    tokio::select! {
        _ = old.send("PUT", "/things/a", &headers, "slow") => unreachable!("nothing lets it go on"),
        () = service.things.begun.notified() => {}
    }
    drop(old);
    let mut new = std::pin::pin!(service.put("5", "new"));
    assert!(timeout(A_WHILE, &mut new).await.is_err(), "it writes though the old write may still land");
    service.things.go_on.add_permits(1);
    assert_eq!(new.await.status, 200);
    assert_eq!(service.done(), ["wrote slow", "wrote new"]);
}

#[tokio::test]
async fn a_client_that_stalls_in_its_body_blocks_nobody() {
    let service = Service::start(Ok(1)).await;
    let mut stopped = TcpStream::connect(service.address).await.unwrap();
    let head = "PUT /things/a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\
                Ringfence-Key: things/a\r\nRingfence-Token: 2\r\n\r\nla";
    stopped.write_all(head.as_bytes()).await.unwrap();
    // The result must be the same whether or not the server has read this part.
    timeout(A_WHILE, std::future::pending::<()>()).await.unwrap_err();
    let new = timeout(SOON, service.put("5", "new")).await.expect("the stopped client holds it up");
    assert_eq!(new.status, 200);
    stopped.write_all(b"te").await.unwrap();
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stopped, &mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 412");
    assert_eq!(service.done(), ["wrote new"]);
}

#[tokio::test]
async fn a_handler_that_panics_leaves_the_key_to_others() {
    let service = Service::start(Ok(1)).await;
    let mut panics = Connection::open(service.address).await;
    let closed =
        tokio::spawn(async move { panics.send("PUT", "/things/a", &exclusive("2"), "panic").await.status });
    assert!(closed.await.is_err(), "the server closes the connection");
    assert_eq!(service.put("5", "new").await.status, 200);
}

#[tokio::test]
async fn other_keys_and_unguarded_paths_do_not_wait() {
    let service = Service::start(Ok(1)).await;
    let mut other = Connection::open(service.address).await;
    let others = async {
        service.things.begun.notified().await;
        let key = [("Ringfence-Key", "things/b"), ("Ringfence-Token", "2")];
        assert_eq!(other.send("PUT", "/things/b", &key, "x").await.status, 200);
        assert_eq!(other.send("GET", "/things/a", &[], "").await.status, 200);
        assert_eq!(other.send("PUT", "/elsewhere", &[], "").await.status, 404);
        service.things.go_on.add_permits(1);
    };
    let (wrote, ()) = tokio::join!(service.put("2", "slow"), others);
    assert_eq!(wrote.status, 200);
}
