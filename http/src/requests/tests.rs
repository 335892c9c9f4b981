use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;

use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};

use super::*;
use crate::connections::{HEAD_TIMEOUT, IDLE_TIMEOUT};

const MAX_CONNECTIONS: usize = 100;
/// Longer than the idle timeout.
const LONG: Duration = Duration::from_secs(200);

/// Serves `answer` on a new address.
async fn served<F>(
    answer: impl Fn(Request<RequestBody>, Arc<Remote>) -> F + Clone + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (_serving, ending) = watch::channel(false);
        let (threads, connections) = (Arc::new(Threads::here()), Connections::new(MAX_CONNECTIONS));
        serve(listener, None, threads, connections, answer, ending, IDLE_TIMEOUT).await;
    });
    address
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_but_not_one_that_waits_for_its_response() {
    let address = served(async |_, _from| {
        sleep(LONG).await;
        Ok(().into_response())
    })
    .await;
    let asked = async |text: &str| {
        let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), String::new());
        let begun = Instant::now();
        client.write_all(text.as_bytes()).await.unwrap();
        client.read_to_string(&mut answer).await.unwrap();
        (answer.lines().next().map(str::to_owned), begun.elapsed().as_secs())
    };
    assert_eq!(asked("").await, (None, IDLE_TIMEOUT.as_secs()));
    assert_eq!(asked("GET / HTTP/1.1\r\nhost: h").await, (None, HEAD_TIMEOUT.as_secs()));
    let (answer, seconds) = asked("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert_eq!(answer.as_deref(), Some("HTTP/1.1 200 OK"));
    assert_eq!(seconds, (LONG + IDLE_TIMEOUT).as_secs());
}

/// A stop once closed connections on a busy thread without a response.
#[tokio::test]
async fn a_request_that_arrived_before_the_stop_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let threads = Arc::new(Threads::start(1).unwrap());
    let connections = Connections::new(100);
    let (stop, stopping) = watch::channel(false);
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    threads.serve(|_| async move {
        let _ = gate.recv();
    });
    let answer = async |_, _from| Ok(().into_response());
    let serving = serve(listener, None, threads, Arc::clone(&connections), answer, stopping, IDLE_TIMEOUT);
    let serving = tokio::spawn(serving);
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    while connections.count().0 == 0 {
        yield_now().await;
    }
    stop.send_replace(true);
    // The listener is closed: the stop is under way.
    while TcpStream::connect(address).await.is_ok() {
        yield_now().await;
    }
    drop(go_on);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    serving.await.unwrap();
}

/// A body of many pieces, each after a `pause`.
fn pieces(count: usize, bytes: usize, pause: Duration) -> Body {
    let piece = Bytes::from(vec![b'.'; bytes]);
    Body::from_stream(stream::iter(0..count).then(move |_| {
        let piece = piece.clone();
        async move {
            sleep(pause).await;
            Ok::<_, Infallible>(piece)
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_cannot_ask_for_ever_more_responses() {
    const REQUESTS: usize = 2_000;
    let handled = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&handled);
    // If nobody reads a body that waits for `100 Continue`, hyper begins the next request before it has sent the response.
    let address = served(move |_, _from| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(([("large", "v".repeat(8 << 10))], ()).into_response()) }
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut client = socket.connect(address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx";
    client.write_all(&request.repeat(REQUESTS)).await.unwrap();
    let mut unread = 0;
    // Until it does no more.
    loop {
        for _ in 0..10 {
            sleep(Duration::from_millis(1)).await;
        }
        match handled.load(Ordering::Relaxed) {
            now if now == unread && now > 0 => break,
            now => unread = now,
        }
    }
    assert!(unread < REQUESTS / 4, "{unread}");
    let mut answers = Vec::new();
    while handled.load(Ordering::Relaxed) < REQUESTS {
        assert!(client.read_buf(&mut answers).await.unwrap() > 0);
    }
}

/// They were executed if the end of a chunked body, or of one that nobody reads, and that of the stream arrived together. The
/// line break hides the end of the stream from hyper.
#[tokio::test]
async fn a_request_whose_client_hung_up_is_not_executed() {
    let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&begun), Arc::clone(&done));
    let address = served(move |request: Request<RequestBody>, _from| {
        let (begun, done) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
        async move {
            begun.fetch_add(1, Ordering::Relaxed);
            if request.method() == Method::POST {
                request.into_body().collect().await.unwrap();
            }
            done.fetch_add(1, Ordering::Relaxed);
            Ok(().into_response())
        }
    })
    .await;
    for (first, rest) in [
        ("POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", "0\r\n\r\n\r\n"),
        (
            "GET / HTTP/1.1\r\nhost: h\r\n\r\n",
            "DELETE / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx\r\n",
        ),
    ] {
        let before = begun.load(Ordering::Relaxed);
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(first.as_bytes()).await.unwrap();
        while begun.load(Ordering::Relaxed) == before {
            yield_now().await;
        }
        client.write_all(rest.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
    }
    // The GET.
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_response_may_take_any_time_while_it_makes_progress() {
    const PAUSE: Duration = Duration::from_secs(74);
    assert!(PAUSE < IDLE_TIMEOUT);
    let address = served(async |_, _from| Ok(pieces(9, 1, PAUSE).into_response())).await;
    let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), String::new());
    let begun = Instant::now();
    client.write_all(GET).await.unwrap();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.matches("1\r\n.\r\n").count(), 9);
    assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    assert_eq!(begun.elapsed().as_secs(), (9 * PAUSE + IDLE_TIMEOUT).as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_read_its_response_is_closed() {
    let endless = async |_, _from| Ok(pieces(usize::MAX, 1 << 20, Duration::ZERO).into_response());
    let address = served(endless).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(GET).await.unwrap();
    sleep(2 * IDLE_TIMEOUT).await;
    // What the kernel had buffered still arrives, and then the end.
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    while let Ok(bytes @ 1..) = client.read(&mut buffer).await {
        read += bytes;
        assert!(read < 1 << 30, "the response does not end");
    }
}

/// They once held all connections until the idle timeout.
#[tokio::test]
async fn clients_that_do_not_read_make_room_for_others() {
    let address =
        served(async |_, _from| Ok(pieces(usize::MAX, 1 << 20, Duration::ZERO).into_response())).await;
    let mut unread = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(GET).await.unwrap();
        client.readable().await.unwrap();
        unread.push(client);
    }
    let begun = Instant::now();
    loop {
        let (mut client, mut status) = (TcpStream::connect(address).await.unwrap(), [0; 12]);
        client.write_all(GET).await.unwrap();
        client.read_exact(&mut status).await.unwrap();
        if &status == b"HTTP/1.1 200" {
            break;
        }
        assert!(begun.elapsed() < IDLE_TIMEOUT * 2 / 3, "{status:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Bytes held by response bodies.
static HELD: AtomicUsize = AtomicUsize::new(0);

struct Held(Vec<u8>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn unread_large_responses_are_dropped_to_make_room() {
    const BYTES: usize = 16 << 20;
    let address = served(async |_, _from| {
        HELD.fetch_add(BYTES, Ordering::Relaxed);
        Ok(Body::from(Bytes::from_owner(Held(vec![b'.'; BYTES]))).into_response())
    })
    .await;
    let mut unread = Vec::new();
    for _ in 0..10 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut client = socket.connect(address).await.unwrap();
        client.write_all(GET).await.unwrap();
        client.readable().await.unwrap();
        unread.push(client);
    }
    // Long before the idle timeout closes them.
    let deadline = Instant::now() + IDLE_TIMEOUT * 2 / 3;
    while HELD.load(Ordering::Relaxed) > 64 << 20 {
        assert!(Instant::now() < deadline, "every body is still held");
        sleep(Duration::from_millis(5)).await;
    }
    let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), vec![0; BYTES]);
    client.write_all(GET).await.unwrap();
    client.read_exact(&mut answer).await.unwrap();
}

#[tokio::test]
async fn large_requests_wait_for_the_memory_of_others() {
    const LARGE: usize = 20 << 20;
    let (arrived, mut arrives) = tokio::sync::mpsc::unbounded_channel();
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (end, ends) = watch::channel(false);
    let address = served(move |request, _from| {
        let (arrived, begun, mut ends) = (arrived.clone(), begun.clone(), ends.clone());
        async move {
            let mut body = request.into_body();
            while body.frame().await.is_some() {}
            arrived.send(()).unwrap();
            body.handled(LARGE).await.unwrap();
            begun.send(()).unwrap();
            let _ = ends.wait_for(|ends| *ends).await;
            Ok(().into_response())
        }
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(GET).await.unwrap();
        clients.push(client);
    }
    for _ in &clients {
        arrives.recv().await.unwrap();
    }
    begins.recv().await.unwrap();
    // The others wait. One of them goes away.
    drop(clients.pop());
    yield_now().await;
    assert!(begins.try_recv().is_err(), "a second one begins");
    end.send_replace(true);
    for client in &mut clients {
        let mut status = [0; 12];
        client.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
}
