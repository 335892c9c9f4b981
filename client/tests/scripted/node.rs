//! A node that a test scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A bound for what should take far less.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Takes one request per connection. By itself it answers only probes, unless it hangs.
pub(crate) struct ScriptedNode {
    url: String,
    shared: Arc<Shared>,
    connections: Mutex<Connections>,
    accepted: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

/// In the order in which they were made.
struct Connections {
    next: mpsc::UnboundedReceiver<JoinHandle<Option<Received>>>,
    /// The one whose request is awaited.
    current: Option<JoinHandle<Option<Received>>>,
}

struct Shared {
    hangs: AtomicBool,
    one_thread_hangs: AtomicBool,
    /// How often it has told so.
    told_unfit: AtomicUsize,
    /// More headers of its answers to probes.
    headers: String,
}

/// A request that it received.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    /// Of a probe: whether it says for how long a thread may hang.
    has_bound: bool,
    stream: TcpStream,
}

impl ScriptedNode {
    pub(crate) async fn new() -> Self {
        Self::with_headers("").await
    }

    /// The same, with `headers` in its answers to probes, each with its end of line.
    pub(crate) async fn with_headers(headers: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            hangs: AtomicBool::new(false),
            one_thread_hangs: AtomicBool::new(false),
            told_unfit: AtomicUsize::new(0),
            headers: headers.to_owned(),
        });
        let (sender, next) = mpsc::unbounded_channel();
        let (count, accepted) = watch::channel(0);
        let of_task = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.send_modify(|count| *count += 1);
                let shared = Arc::clone(&of_task);
                let request = tokio::spawn(async move {
                    // A client may give up before it has sent anything.
                    let request = Received::read(stream).await?;
                    if request.path == "/livez" {
                        shared.answer(request).await;
                        return None;
                    }
                    Some(request)
                });
                // The test may be over.
                let _ = sender.send(request);
            }
        });
        let connections = Mutex::new(Connections { next, current: None });
        Self { url, shared, connections, accepted, task }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// From now on it answers no probe.
    pub(crate) fn hang(&self) {
        self.shared.hangs.store(true, Ordering::SeqCst);
    }

    /// From now on a thread of it does not run, which it tells who asks for that.
    pub(crate) fn hang_in_part(&self) {
        self.shared.one_thread_hangs.store(true, Ordering::SeqCst);
    }

    /// Waits until it has told somebody that a thread of it does not run; from then on all of them do.
    pub(crate) async fn hang_in_part_for_a_moment(&self) {
        let told = self.shared.told_unfit.load(Ordering::SeqCst);
        self.hang_in_part();
        while self.shared.told_unfit.load(Ordering::SeqCst) == told {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.shared.one_thread_hangs.store(false, Ordering::SeqCst);
    }

    /// Waits until this many more connections were made, as by probes.
    pub(crate) async fn answers(&self, count: usize) {
        let so_far = *self.accepted.borrow();
        self.connections(so_far + count).await;
    }

    /// Waits until this many connections were made.
    pub(crate) async fn connections(&self, count: usize) {
        let mut accepted = self.accepted.clone();
        timeout(SOON, accepted.wait_for(|accepted| *accepted >= count)).await.unwrap().unwrap();
    }

    /// Waits until the next `count` connections were made, whose requests are not received.
    pub(crate) async fn ignore(&self, count: usize) {
        let mut connections = self.connections.lock().await;
        for _ in 0..count {
            timeout(SOON, connections.next.recv()).await.unwrap().unwrap();
        }
    }

    /// The next request that is no probe.
    pub(crate) async fn receive(&self) -> Received {
        timeout(SOON, self.next()).await.unwrap()
    }

    async fn next(&self) -> Received {
        let mut connections = self.connections.lock().await;
        loop {
            let Connections { next, current } = &mut *connections;
            if current.is_none() {
                *current = Some(next.recv().await.unwrap());
            }
            let request = current.as_mut().unwrap().await.unwrap();
            *current = None;
            if let Some(request) = request {
                return request;
            }
        }
    }
}

impl Drop for ScriptedNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn answer(&self, mut probe: Received) {
        if self.hangs.load(Ordering::SeqCst) {
            // Its connection stays open, and holds up no other.
            tokio::spawn(async move {
                let _probe = probe;
                std::future::pending::<()>().await;
            });
            return;
        }
        let is_unfit = probe.has_bound && self.one_thread_hangs.load(Ordering::SeqCst);
        let status = if is_unfit { "503 Service Unavailable" } else { "200 OK" };
        let head = format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\n{}content-length: 2\r\n\r\n{{}}",
            self.headers
        );
        // The client may be gone.
        let _ = probe.stream.write_all(head.as_bytes()).await;
        self.told_unfit.fetch_add(is_unfit.into(), Ordering::SeqCst);
    }
}

impl Received {
    async fn read(mut stream: TcpStream) -> Option<Self> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?.into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.ok()?;
        let has_bound = head.contains("\r\nringfence-within-ms: 1000\r\n");
        let mut words = head.split(' ').map(str::to_owned);
        Some(Self { method: words.next()?, path: words.next()?, body, has_bound, stream })
    }

    /// Whether the client has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        let mut byte = [0];
        !matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Responds, and closes the connection.
    pub(crate) async fn respond(self, status: &str, body: &str) {
        self.respond_with(status, "", body).await;
    }

    /// The same with more headers, each with its end of line.
    pub(crate) async fn respond_with(mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        // The client may be gone.
        let _ = self.stream.write_all(response.as_bytes()).await;
    }
}
