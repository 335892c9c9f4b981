//! A dialog of lines, and its clients.

mod beside;
mod courses;
mod drains;
mod encrypted;
mod floods;
mod hangups;
mod memory;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;
use crate::connections::{HEAD_TIMEOUT, IDLE_TIMEOUT};

/// What all dialogs of a server did.
#[derive(Default)]
struct Seen {
    /// The most bytes that `frame` was called with.
    received: AtomicUsize,
    begun: AtomicUsize,
    ended: AtomicUsize,
    responded: AtomicUsize,
    /// Calls of `sent`.
    sent: AtomicUsize,
    /// Requests whose future or `sent` was dropped too early.
    dropped: AtomicUsize,
}

/// Counts when it is dropped, unless it is forgotten.
struct Drops(Arc<Seen>);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

/// Each line is a request. Its first word tells what it does: see `answer`. One that begins with `+` is answered beside others. A line that
/// begins with `!` is no request.
struct Lines {
    seen: Arc<Seen>,
    gate: watch::Receiver<bool>,
}

impl Dialog for Lines {
    type Alone = Bytes;

    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Bytes> {
        self.seen.received.fetch_max(received.len(), Relaxed);
        if received[0] == b'!' {
            return Err("no request\n".into());
        }
        Ok(received.iter().position(|byte| *byte == b'\n').map(|end| end + 1))
    }

    fn begin(
        &mut self,
        request: Bytes,
        connection: &Arc<Connection>,
    ) -> Begun<impl Future<Output = Answer> + Send + 'static, Bytes> {
        let Some(words) = request.strip_prefix(b"+") else { return Begun::Alone(request) };
        let (seen, words) = (Arc::clone(&self.seen), words.to_vec().into());
        Begun::Beside(answer(seen, self.gate.clone(), words, Arc::clone(connection)))
    }

    fn answer_alone(
        &mut self,
        request: Bytes,
        connection: &Arc<Connection>,
    ) -> impl Future<Output = Answer> + Send {
        answer(Arc::clone(&self.seen), self.gate.clone(), request, Arc::clone(connection))
    }
}

async fn answer(
    seen: Arc<Seen>,
    mut gate: watch::Receiver<bool>,
    request: Bytes,
    connection: Arc<Connection>,
) -> Answer {
    seen.begun.fetch_add(1, Relaxed);
    let drops = Drops(Arc::clone(&seen));
    let line = str::from_utf8(&request).unwrap().trim_end();
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut bytes = Bytes::from(format!("{rest}\n"));
    match word {
        "as" => connection.belongs_to((!rest.is_empty()).then_some(rest)),
        "known" => connection.is_known(rest == "yes"),
        "busy" => std::thread::sleep(Duration::from_millis(1)),
        "toil" => std::thread::sleep(Duration::from_millis(8)),
        "hold" => connection.hold_back(async { drop(gate.wait_for(|open| *open).await) }).await,
        "wait" | "wait-quit" => drop(gate.wait_for(|open| *open).await),
        "wait-large" => {
            let _ = gate.wait_for(|open| *open).await;
            bytes = vec![b'.'; rest.parse().unwrap()].into();
        }
        "wait-behind" | "wait-behind-quit" => {
            let _ = gate.wait_for(|open| *open).await;
            while seen.responded.load(Relaxed) == 0 {
                yield_now().await;
            }
        }
        "if-there" if connection.is_gone() => bytes = "gone\n".into(),
        "large" => bytes = vec![b'.'; rest.parse().unwrap()].into(),
        _ => {}
    }
    let kept = connection.keep_response(bytes.len());
    seen.ended.fetch_add(1, Relaxed);
    let (is_last, is_told) = (word.ends_with("quit"), word == "tell");
    let respond = move || {
        seen.responded.fetch_add(1, Relaxed);
        let sent = move || {
            seen.sent.fetch_add(1, Relaxed);
            std::mem::forget(drops);
        };
        let sent: Box<dyn FnOnce() + Send> = Box::new(sent);
        Response { bytes, kept, sent: (!is_told).then_some(sent) }
    };
    Answer { is_last, respond: Box::new(respond) }
}

/// A server of lines. Dropping it does not end it.
struct Server {
    threads: Arc<Threads>,
    address: SocketAddr,
    connections: Arc<Connections>,
    seen: Arc<Seen>,
    /// Makes all waiting requests go on.
    gate: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(threads: Threads, tls: Option<Tls>, max: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, seen) = (Connections::new(max), Arc::<Seen>::default());
        let ((gate, open), (stop, stopping)) = (watch::channel(false), watch::channel(false));
        let lines = {
            let seen = Arc::clone(&seen);
            move |_| Lines { seen: Arc::clone(&seen), gate: open.clone() }
        };
        let threads = Arc::new(threads);
        let (of_all, shared) = (Arc::clone(&threads), Arc::clone(&connections));
        let serving = serve_dialogs(listener, tls, of_all, shared, lines, stopping, IDLE_TIMEOUT);
        Self { threads, address, connections, seen, gate, stop, serving: tokio::spawn(serving) }
    }

    async fn here(max: usize) -> Self {
        Self::start(Threads::here(), None, max).await
    }

    /// A server with one thread of its own.
    async fn apart() -> Self {
        Self::start(Threads::start(1).unwrap(), None, 10).await
    }

    /// Blocks its thread until the returned sender is dropped.
    fn hang(&self) -> std::sync::mpsc::Sender<()> {
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        let (hangs, has_begun) = std::sync::mpsc::channel();
        self.threads.serve(|_| async move {
            hangs.send(()).unwrap();
            let _ = gate.recv();
        });
        has_begun.recv().unwrap();
        go_on
    }

    /// A client that has sent this.
    async fn sent(&self, text: impl AsRef<[u8]>) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(text.as_ref()).await.unwrap();
        client
    }
}

/// Waits until `is_true` returns true.
async fn until(what: &str, is_true: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        yield_now().await;
    }
}

/// Reads as many bytes as `expected` has, and compares them.
async fn reads(client: &mut TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    client.read_exact(&mut bytes).await.unwrap();
    assert_eq!(str::from_utf8(&bytes).unwrap(), expected);
}

/// Reads until the connection closes.
async fn rest(client: &mut TcpStream) -> String {
    let mut rest = String::new();
    let read = timeout(5 * IDLE_TIMEOUT, client.read_to_string(&mut rest)).await;
    read.expect("the connection closes").unwrap();
    rest
}

#[tokio::test]
async fn requests_are_answered_in_order_however_they_arrive() {
    let server = Server::here(10).await;
    let text: String = (0..10_000).map(|number| format!("echo {number}\n")).collect();
    let mut client = server.sent(&text).await;
    reads(&mut client, &text.replace("echo ", "")).await;
    for byte in "echo a\nquit b\necho c\n".bytes() {
        client.write_all(&[byte]).await.unwrap();
        yield_now().await;
    }
    assert_eq!(rest(&mut client).await, "a\nb\n");
    assert_eq!(server.seen.begun.load(Relaxed), 10_002);
    until("all are sent", || server.seen.sent.load(Relaxed) == 10_002).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_arrives_soon_once_it_has_begun() {
    let server = Server::here(10).await;
    let closes = async |text: &str| {
        let (mut client, begun) = (server.sent(text).await, Instant::now());
        (rest(&mut client).await, begun.elapsed().as_secs())
    };
    assert_eq!(closes("").await, (String::new(), IDLE_TIMEOUT.as_secs()));
    assert_eq!(closes("echo").await, (String::new(), HEAD_TIMEOUT.as_secs()));
    assert_eq!(closes("echo a\necho").await, ("a\n".to_owned(), HEAD_TIMEOUT.as_secs()));
    assert_eq!(closes("as a\necho").await, ("a\n".to_owned(), HEAD_TIMEOUT.as_secs()), "also a principal");

    // A client that sends single bytes is late. One that sends much at a time is not.
    let (mut client, begun) = (server.sent("").await, Instant::now());
    while client.write_all(b"x").await.is_ok() {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(begun.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(3));
    let (mut client, mut text) = (server.sent("").await, String::from("echo "));
    for _ in 0..5 {
        text.push_str(&"x".repeat(PER_TURN + 1));
    }
    text.push('\n');
    for part in text.as_bytes().chunks(PER_TURN + 1) {
        client.write_all(part).await.unwrap();
        sleep(HEAD_TIMEOUT - Duration::from_secs(1)).await;
    }
    reads(&mut client, &text["echo ".len()..]).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_principal_rests_for_any_time() {
    let server = Server::here(10).await;
    let mut client = server.sent("as app\n").await;
    reads(&mut client, "app\n").await;
    sleep(20 * IDLE_TIMEOUT).await;
    client.write_all(b"echo a\nas\n").await.unwrap();
    reads(&mut client, "a\n\n").await;
    let begun = Instant::now();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(begun.elapsed().as_secs(), IDLE_TIMEOUT.as_secs());
}

/// Without access rules, every client may be here. An idle one was once closed all the same.
#[tokio::test(start_paused = true)]
async fn a_connection_of_a_client_that_is_known_rests_without_a_name() {
    let server = Server::here(10).await;
    let mut client = server.sent("known yes\n").await;
    reads(&mut client, "yes\n").await;
    sleep(20 * IDLE_TIMEOUT).await;
    client.write_all(b"known no\n").await.unwrap();
    reads(&mut client, "no\n").await;
    let begun = Instant::now();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(begun.elapsed().as_secs(), IDLE_TIMEOUT.as_secs());
}

/// The kernel's timer of a socket: 2 for keepalive.
fn timer(address: SocketAddr, client: SocketAddr) -> String {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = [address, client].map(|end| format!(":{:04X}", end.port()));
    let mut fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let socket = fields.find(|fields| fields[1].ends_with(&ends[0]) && fields[2].ends_with(&ends[1]));
    socket.unwrap()[5].to_owned()
}

#[tokio::test]
async fn the_system_asks_a_silent_client_whether_it_is_there() {
    let server = Server::here(10).await;
    let mut client = server.sent("echo a\n").await;
    reads(&mut client, "a\n").await;
    let client = client.local_addr().unwrap();
    let begun = std::time::Instant::now();
    while !timer(server.address, client).starts_with("02:") {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", timer(server.address, client));
    }
}

#[tokio::test]
async fn a_last_response_arrives_whatever_the_client_still_sends() {
    let server = Server::here(10).await;
    for (first, response) in [("!", "no request\n"), ("quit bye\n", "bye\n")] {
        let mut client = server.sent(first.to_owned() + &"x".repeat(100_000)).await;
        assert_eq!(rest(&mut client).await, response);
    }
    assert_eq!(server.seen.begun.load(Relaxed), 1);
}
