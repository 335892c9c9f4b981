//! Many hostile connections at once, to nodes with TLS, access rules and few descriptors.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{ALL, SOON, Secured, connect_from, limited, principal};
use futures_util::future::join_all;
use ringfence_access::Credential;
use ringfence_client::{Client, Consistency, LeaseView};
use ringfence_harness::{Cluster, Node, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConnection;
use tokio_rustls::rustls::pki_types::ServerName;

/// What each flood opens, if this process has descriptors for all of it.
const IDLE: usize = 10_000;
const HANDSHAKES: usize = 5_000;
const HEADS: usize = 1_000;
const BODIES: usize = 1_000;
/// Requests with wrong credentials.
const DENIED: u64 = 5_000;
/// Renewals of each holder after all floods have begun.
const RENEWALS: u64 = 50;
/// Connections that a flood opens at one time.
const AT_ONCE: usize = 20;
const TTL: Duration = Duration::from_secs(10);
const MIB: u64 = 1 << 20;
const MAX_GROWTH: u64 = 200 * MIB;

/// Holders of leases, each of which calls one node. They renew all the time.
struct Holders {
    stop: Arc<AtomicBool>,
    renewed: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Holders {
    fn start(clients: impl Iterator<Item = Client>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut renewed, mut threads) = (Vec::new(), Vec::new());
        for (number, client) in clients.enumerate() {
            let (stop, count) = (Arc::clone(&stop), Arc::new(AtomicU64::new(0)));
            renewed.push(Arc::clone(&count));
            // On a thread of its own: the floods keep that of the test busy.
            threads.push(std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(hold(client, &format!("held/{number}"), &stop, &count));
            }));
        }
        Self { stop, renewed, threads }
    }

    /// Waits until each has renewed `more` times from now on.
    async fn renew(&self, more: u64) {
        let now = || self.renewed.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = now();
        let renewed = async || {
            let done = now().iter().zip(&before).all(|(now, before)| *now >= before + more);
            (done || self.threads.iter().any(JoinHandle::is_finished)).then_some(())
        };
        until(SOON, "all renew", renewed).await.unwrap();
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Every renewal succeeds, and the lease is never lost.
async fn hold(client: Client, key: &str, stop: &AtomicBool, renewed: &AtomicU64) {
    let lease = client.lock(key).ttl(TTL).acquire().await.unwrap();
    let renew = async {
        while !stop.load(Ordering::Relaxed) {
            lease.renew().await.unwrap();
            renewed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    lease.run(renew).await.unwrap();
    let LeaseView::Granted(grant) = client.lease(lease.lease_id(), Consistency::Linearizable).await.unwrap()
    else {
        panic!("the lease waits");
    };
    assert_eq!(grant.token, lease.token());
}

/// The host of a connection: one of many.
fn host(number: usize) -> IpAddr {
    let [.., high, low] = (number as u32 % 5_000).to_be_bytes();
    Ipv4Addr::new(127, 66, high, low.clamp(1, 254)).into()
}

/// A connection that stays open.
#[allow(dead_code, reason = "nothing is read from it")]
enum Open {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// Opens `count` connections by `open`, spread over the nodes. Those that fail count, too: a node may refuse.
async fn flood<T>(nodes: &[Node], count: usize, open: impl AsyncFn(usize, &Node) -> Option<T>) -> Vec<T> {
    let next = Cell::new(0);
    let some = async || {
        let mut opened = Vec::new();
        loop {
            let number = next.replace(next.get() + 1);
            if number >= count {
                return opened;
            }
            opened.extend(open(number, &nodes[number % nodes.len()]).await);
        }
    };
    join_all((0..AT_ONCE).map(|_| some())).await.into_iter().flatten().collect()
}

/// Of the status of a process, in bytes.
fn memory(node: &Node, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid().unwrap())).unwrap();
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_suffix("kB")).unwrap();
    value.trim_matches([':', '\t', ' ']).parse::<u64>().unwrap() << 10
}

fn unfinished_body(number: usize) -> String {
    let credential = if number.is_multiple_of(2) { "authorization: Bearer rfc_guess\r\n" } else { "" };
    format!("POST /v1/batch HTTP/1.1\r\nhost: localhost\r\n{credential}content-length: 60000\r\n\r\n{{")
}

#[tokio::test]
#[ignore = "slow"]
async fn no_flood_takes_a_lease_from_its_holder_or_the_leadership_from_a_node() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let most = limit.maximum.map_or(usize::MAX, |most| most as usize - 1_000);
    let idle = IDLE.min(most.saturating_sub(HANDSHAKES + HEADS + BODIES));

    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (holder, rules) = principal("holder", ALL);
    // Nodes need descriptors for snapshots and segments of the log all the time.
    let builder = Cluster::builder(limited(dir.path(), 1_024)).argument("--snapshot-after-bytes=4096");
    let secured = Secured::lay_out(builder, &rules).await;
    secured.start(&[]);
    secured.ready().await;
    let nodes = secured.cluster.nodes();
    let holders = Holders::start(nodes.iter().map(|node| secured.client([node], &holder)));
    holders.renew(1).await;
    let all = secured.client(nodes, &holder);
    let before = all.cluster().await.unwrap();
    let resident: Vec<_> = nodes.iter().map(|node| memory(node, "VmRSS")).collect();
    for node in nodes {
        // Resets the peak, where that is allowed: see proc_pid_clear_refs(5).
        let _ = fs::write(format!("/proc/{}/clear_refs", node.pid().unwrap()), "5");
    }

    let mut hello = Vec::new();
    let mut connection =
        ClientConnection::new(secured.tls(), ServerName::from(nodes[0].http().ip())).unwrap();
    connection.write_tls(&mut hello).unwrap();
    let begin = async |number: usize, node: &Node, request: &str| {
        let stream = connect_from(host(number), node.http()).await.ok()?;
        let mut stream = secured.shake_hands(stream, node.http().ip()).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        Some(stream)
    };
    // Some are silent at the other port, or only after the handshake.
    let silent = flood(nodes, idle, async |number, node| match number % 20 {
        0 => Some(Open::Encrypted(Box::new(begin(number, node, "").await?))),
        1 => Some(Open::Plain(connect_from(host(number), node.peer()).await.ok()?)),
        _ => Some(Open::Plain(connect_from(host(number), node.http()).await.ok()?)),
    });
    let handshakes = flood(nodes, HANDSHAKES, async |number, node| {
        let mut stream = connect_from(host(number), node.http()).await.ok()?;
        stream.write_all(&hello).await.ok()?;
        Some(stream)
    });
    let heads = flood(nodes, HEADS, async |number, node| {
        begin(number, node, "GET /v1/keys HTTP/1.1\r\nhost: localhost\r\n").await
    });
    let bodies =
        flood(nodes, BODIES, async |number, node| begin(number, node, &unfinished_body(number)).await);
    let denied = Cell::new(0);
    let guess = async |node: &Node| {
        while denied.get() < DENIED {
            let Ok(mut connection) = secured.connection(node, Some("rfc_guess")).await else { continue };
            while denied.get() < DENIED
                && let Ok(answer) = connection.call("GET", "/v1/keys", "").await
            {
                assert_eq!(answer.status, 401);
                denied.set(denied.get() + 1);
            }
        }
    };
    let guesses = join_all(nodes.iter().flat_map(|node| [guess(node), guess(node)]));
    let _open = futures_util::join!(silent, handshakes, heads, bodies, guesses);
    holders.renew(RENEWALS).await;

    let after = all.cluster().await.unwrap();
    assert_eq!((after.term, after.leader), (before.term, before.leader));
    for (node, resident) in nodes.iter().zip(resident) {
        let grown = memory(node, "VmHWM").saturating_sub(resident);
        assert!(grown <= MAX_GROWTH, "node {} grew by {} MiB", node.id(), grown / MIB);
    }
    holders.end();
}

/// A denied request waits for its body. Each such connection was kept until the body was late, and one host took all of them.
#[tokio::test]
async fn unfinished_bodies_keep_nobody_out() {
    others_get_in(|_, number| unfinished_body(number)).await;
}

/// One host took all connections with requests that wait.
#[tokio::test]
async fn requests_that_wait_keep_nobody_out() {
    others_get_in(|holder, number| {
        let (request, body) = match number % 10 {
            0 => ("GET /v1/watch", ""),
            _ => ("POST /v1/leases", r#"{"keys":["held"],"wait_ms":60000}"#),
        };
        format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            holder.reveal(),
            body.len()
        )
    })
    .await;
}

/// While one host floods a node with these requests, another one acquires leases.
async fn others_get_in(request: impl Fn(&Credential, usize) -> String) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (holder, rules) = principal("holder", ALL);
    let builder = Cluster::builder(limited(dir.path(), 512)).nodes(1);
    let secured = Secured::lay_out(builder, &rules).await;
    secured.start(&["--http-threads=2".to_owned()]);
    secured.ready().await;
    let node = secured.cluster.node(1);
    let mut connection = secured.connection(node, Some(holder.reveal())).await.unwrap();
    let hold = r#"{"keys":["held"],"ttl_ms":600000}"#;
    assert_eq!(connection.call("POST", "/v1/leases", hold).await.unwrap().status, 201);
    // It would be closed for the first of the others.
    drop(connection);
    let begun = Cell::new(0);
    let flood = async {
        let mut open = VecDeque::new();
        loop {
            if let Ok(stream) = connect_from(host(1), node.http()).await
                && let Ok(mut stream) = secured.shake_hands(stream, node.http().ip()).await
                && stream.write_all(request(&holder, begun.get()).as_bytes()).await.is_ok()
            {
                open.push_back(stream);
            }
            begun.set(begun.get() + 1);
            if open.len() > 500 {
                open.pop_front();
            }
        }
    };
    let others = async {
        for number in 0..3 {
            // More than the node has connections for.
            let goal = begun.get() + 300;
            until(SOON, "more bodies", async || (begun.get() >= goal).then_some(())).await.unwrap();
            let client = secured.client([node], &holder);
            let lease = client.lock(format!("a/{number}")).ttl(TTL).acquire().await.unwrap();
            lease.release().await.unwrap();
        }
    };
    tokio::select! {
        () = flood => {}
        () = others => {}
    }
}
