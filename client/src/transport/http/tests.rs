use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const SOON: Duration = Duration::from_secs(60);

async fn get(server: &Server, time: Duration) -> Result<u16, Failure> {
    server.send(&Request::get("/").once(), time).await.map(|response| response.status.as_u16())
}

fn server(listener: &TcpListener) -> Server {
    Server::parse(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap()
}

/// Accepts `count` connections, one after the other. Reads a request on each, writes `response` and closes it.
async fn serves(response: &'static str, count: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server(&listener);
    tokio::spawn(async move {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    server
}

#[tokio::test]
async fn a_request_to_a_closed_port_is_not_sent() {
    let closed = server(&TcpListener::bind("127.0.0.1:0").await.unwrap());
    assert!(matches!(get(&closed, SOON).await, Err(Failure::NotSent(_))));
}

#[tokio::test]
async fn a_request_without_a_whole_response_is_broken() {
    let closes = serves("", 1).await;
    assert!(matches!(get(&closes, SOON).await, Err(Failure::Broken(_))));
    let breaks_off = serves("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", 1).await;
    assert!(matches!(get(&breaks_off, SOON).await, Err(Failure::Broken(_))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert!(matches!(get(&server(&listener), Duration::from_millis(50)).await, Err(Failure::Broken(_))));
}

/// A call that must not be repeated was once said to have an unknown outcome, though only the probe before it had been sent.
#[tokio::test]
async fn after_a_probe_that_fails_nothing_was_sent() {
    for response in
        ["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "HTTP/1.1 502 Bad Gateway\r\n\r\n"]
    {
        let failure = serves(response, 1).await.probe().await.unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{response:?}: {failure:?}");
    }
}

#[tokio::test]
async fn a_connection_is_reused_unless_it_was_closed_meanwhile() {
    let server = serves("HTTP/1.1 204 No Content\r\n\r\n", 2).await;
    for _ in 0..2 {
        assert_eq!(get(&server, SOON).await.unwrap(), 204);
        assert_eq!(server.idle().connections.len(), 1);
        // Until the driver has seen the end.
        while server.idle().connections.iter().any(|idle| !idle.driver.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Regression: where the close came first, the client connected again without a pause, for as long as that went on.
#[tokio::test]
async fn a_server_that_closes_each_connection_is_connected_to_once_for_each_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::parse(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    // A thread closes some connections before the client has sent anything. It ends with the process.
    std::thread::spawn(move || {
        while listener.accept().is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    for _ in 0..1_000 {
        assert!(get(&server, SOON).await.is_err());
    }
    assert!(accepted.load(Ordering::SeqCst) <= 1_000, "{accepted:?}");
}

#[tokio::test]
async fn an_abandoned_request_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server(&listener);
    let request = tokio::spawn(async move { get(&server, SOON).await });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = [0; 1024];
    assert!(stream.read(&mut bytes).await.unwrap() > 0);
    request.abort();
    let closed = timeout(SOON / 2, stream.read(&mut bytes)).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
#[ignore = "slow"]
async fn a_request_that_the_other_kernel_does_not_acknowledge_is_broken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let more_than_fits = Request::post("/", &"x".repeat(32 << 20)).once();
    let server = server(&listener);
    let broken = timeout(SOON / 2, server.send(&more_than_fits, SOON)).await.unwrap();
    assert!(matches!(broken, Err(Failure::Broken(_))), "{broken:?}");
}
