//! Hazelcast, whose client library is for Java, so that this program cannot contain it.
//!
//! One process has all clients. A line that it reads is a request of a client, `ID open`, `ID share`, `ID acquire KEY`,
//! `ID release` or `ID close`: `share` uses a connection that others use, too. A line that it prints is the answer, `ID` or
//! `ID ERROR`. Lines that are due at once go in one write, so a request costs some µs of CPU. Its CPU time is that of clients.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::{Trio, until};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use crate::job::{Assignment, Locker};
use crate::load::Worker;
use crate::service::Service;

/// Bounds the start.
const READY: Duration = Duration::from_secs(120);

pub(crate) struct Hazelcast {
    servers: Trio,
    clients: Child,
    requests: mpsc::UnboundedSender<Request>,
    next: AtomicU64,
}

type Answer = Result<(), String>;

struct Request {
    id: u64,
    words: String,
    /// `None`: there is none.
    answer: Option<oneshot::Sender<Answer>>,
}

/// Three members of Hazelcast, which keep all in memory.
pub(super) async fn start(class_path: &str) -> Result<Hazelcast> {
    let (program, first) = ("java", ["-Xmx1g", "-cp", class_path, "Fetched"]);
    let servers = Trio::start(program, |command, id, ip, _| {
        command.args(first).args(["member", &id.to_string(), &ip.to_string()]);
        Ok(())
    })?;
    let [address, ..] = servers.at(0);
    let mut command = Command::new(program);
    command.args(first).args(["clients", &address.ip().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut clients = command.spawn().context(program)?;
    let pipes = clients.stdin.take().zip(clients.stdout.take()).context("both are piped")?;
    let (requests, requested) = mpsc::unbounded_channel();
    tokio::spawn(carry(pipes, requested));
    let hazelcast = Hazelcast { servers, clients, requests, next: AtomicU64::new(0) };
    let is_ready = async || {
        let mut client = hazelcast.client(true).await.ok()?;
        client.acquire("ready").await.ok()?;
        client.release(()).await.ok()
    };
    until(READY, "a client of Hazelcast has a lock", is_ready).await?;
    Ok(hazelcast)
}

/// Ends with the clients' process, or if nobody has requests any more.
async fn carry(
    (mut input, output): (ChildStdin, ChildStdout),
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    let mut answers = BufReader::new(output).lines();
    let mut open = HashMap::<u64, oneshot::Sender<Answer>>::new();
    loop {
        tokio::select! {
            request = requests.recv() => {
                let mut next = request;
                let mut lines = String::new();
                if next.is_none() {
                    return;
                }
                while let Some(Request { id, words, answer }) = next {
                    lines += &format!("{id} {words}\n");
                    if let Some(answer) = answer {
                        open.insert(id, answer);
                    }
                    next = requests.try_recv().ok();
                }
                if input.write_all(lines.as_bytes()).await.is_err() {
                    return;
                }
            }
            answer = answers.next_line() => {
                let Ok(Some(line)) = answer else { return };
                let (id, error) = line.split_once(' ').map_or((&*line, None), |(id, error)| (id, Some(error)));
                let answered = id.parse().ok().and_then(|id: u64| open.remove(&id));
                if let Some(answered) = answered {
                    // Whoever asked may have given up.
                    let _ = answered.send(error.map_or(Ok(()), |error| Err(error.to_owned())));
                }
            }
        }
    }
}

impl Hazelcast {
    async fn client(&self, is_shared: bool) -> Result<Client> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let client = Client { id, requests: self.requests.clone() };
        client.call(if is_shared { "share" } else { "open" }.to_owned()).await?;
        Ok(client)
    }
}

impl Service for Hazelcast {
    fn pids(&self) -> Vec<u32> {
        self.servers.pids()
    }

    fn load_pids(&self) -> Vec<u32> {
        self.clients.id().into_iter().collect()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move { Ok(client.lock(self.client(client.is_task).await?)) }.boxed()
    }
}

struct Client {
    id: u64,
    requests: mpsc::UnboundedSender<Request>,
}

impl Client {
    async fn call(&self, words: String) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let gone = "the process of the clients has ended";
        let request = Request { id: self.id, words, answer: Some(answer) };
        self.requests.send(request).map_err(|_| anyhow!(gone))?;
        answered.await.context(gone)?.map_err(anyhow::Error::msg)
    }
}

impl Locker for Client {
    type Held = ();

    async fn acquire(&mut self, key: &str) -> Result<()> {
        self.call(format!("acquire {key}")).await
    }

    async fn release(&mut self, (): ()) -> Result<()> {
        self.call("release".to_owned()).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.requests.send(Request { id: self.id, words: "close".to_owned(), answer: None });
    }
}
