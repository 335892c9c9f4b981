//! `ringfence dev`: its nodes end with it, however it ends.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringfence_harness::{Acquired, Answered, Client, RedisServer, Reply, Shown, run, take, try_once, until};
use ringfence_wire::{LeaseId, Token};
use tempfile::TempDir;

use crate::support::{PROGRAM, SOON};

/// Bounds a shell session, which waits for a lease to expire.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// A running `ringfence dev`, killed when dropped.
struct Dev {
    child: Child,
    /// The address and pid of each node, from its output.
    nodes: Vec<(SocketAddr, u32)>,
    /// Where it makes its data directory, which it leaves behind if it is killed.
    _temporary: TempDir,
}

impl Dev {
    fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = Command::new(PROGRAM)
            .env("TMPDIR", temporary.path())
            .args(["dev", "--base-port", &free_base_port().to_string()])
            .args(arguments)
            // Settings of real nodes must not reach those of dev.
            .env("RINGFENCE_MIRROR_PREFIX", "another")
            .env("RINGFENCE_FIRST_REVISION", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut dev = Self { child, nodes: Vec::new(), _temporary: temporary };
        for line in stdout {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, url, pid] = words.as_slice()
                && let Some(address) = url.split_once("://").map(|(_, address)| address)
            {
                dev.nodes.push((address.parse().unwrap(), pid.parse().unwrap()));
            }
            if line.contains("Ctrl-C ends all nodes") {
                break;
            }
        }
        dev
    }

    fn ends_with(mut self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
        self.child.wait().unwrap();
        let deadline = Instant::now() + SOON;
        for &(address, pid) in &self.nodes {
            // Listeners close with the last thread, which may end after the process.
            while is_alive(pid) || TcpStream::connect(address).is_ok() {
                assert!(
                    Instant::now() < deadline,
                    "process {pid} at {address} has outlived {signal} to its parent"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // In case a node has outlived it.
        for &(_, pid) in &self.nodes {
            if std::fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|program| program == Path::new(PROGRAM))
            {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        }
    }
}

#[tokio::test]
async fn the_nodes_of_dev_end_with_it_after_any_signal() {
    for signal in ["-KILL", "-TERM", "-INT"] {
        let dev = Dev::start(&[]);
        assert_eq!(dev.nodes.len(), 3);
        for (number, &(address, pid)) in dev.nodes.iter().enumerate() {
            assert!(is_alive(pid));
            let request = try_once(&format!("dev/{number}"));
            let acquired = Client::new(address).patient().acquire(LeaseId::random(), &request).await.done();
            assert!(matches!(acquired, Acquired::Granted(_)));
        }
        dev.ends_with(signal);
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn the_storage_of_dev_rejects_a_late_writer_as_the_readme_shows() {
    let dev = Dev::start(&["--storage"]);
    let (node, _) = dev.nodes[0];
    let (url, storage) = (format!("http://{node}"), format!("localhost:{}", node.port() + 79));
    let folder = tempfile::tempdir().unwrap();
    // The block can be pasted again at once.
    for _ in 0..2 {
        Shown::new(include_str!("../../README.md"), "## Using it", "**At the storage**")
            .play(folder.path(), &[("URL", &*url), ("STORAGE", &storage)], TEN_MINUTES)
            .await
            .unwrap();
    }
    let unclaimed = ["-s", "-w", "%{http_code}", "-o", "/dev/null", "-X", "PUT", "-d", "no claim"];
    let unclaimed = Command::new("curl").args(unclaimed).arg(format!("{storage}/files/report")).output();
    assert_eq!(String::from_utf8(unclaimed.unwrap().stdout).unwrap(), "428");
    dev.ends_with("-TERM");
}

/// Regression: each cluster began at token 2, and resources guarded by the last one rejected it.
#[tokio::test]
async fn a_restarted_dev_grants_larger_tokens() {
    let mut last = Token(0);
    for _ in 0..2 {
        let dev = Dev::start(&["--nodes", "1"]);
        let client = Client::new(dev.nodes[0].0).patient();
        let token = take(&client, "orders/42").await.token;
        assert!(token > last, "{token} after {last}");
        last = token;
        dev.ends_with("-KILL");
    }
}

#[tokio::test]
async fn dev_publishes_to_the_given_redis() {
    let redis = RedisServer::builder().line("user publisher on >secret ~dev:* +@all").start().await.unwrap();
    let url = redis.url().replace("://", "://publisher:secret@");
    let options = ["--redis", &url, "--mirror-prefix", "dev", "--mirror-mode", "before-answer"];
    let dev = Dev::start(&options);
    let client = Client::new(dev.nodes[0].0);
    let number = AtomicU32::new(0);
    let is_mirrored = || async {
        let name = format!("orders/{}", number.fetch_add(1, Ordering::Relaxed));
        let answer = client.acquire_mirrored(LeaseId::random(), &try_once(&name)).await.ok()?;
        match answer {
            Reply::Done { body: (Acquired::Granted(grant), Some(true)), .. } => Some((name, grant.token)),
            _ => None,
        }
    };
    let (name, token) = until(SOON, "a grant is mirrored", is_mirrored).await.unwrap();
    let fence = redis.command(["hget", &format!("dev:{{{name}}}"), "fence"]).await.unwrap();
    assert_eq!(fence, token.to_string());
    for &(_, pid) in &dev.nodes {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(command.contains("serve") && !command.contains("secret"), "every user sees {command}");
    }
    dev.ends_with("-INT");
}

#[tokio::test]
async fn dev_speaks_the_redis_protocol_if_it_is_to() {
    let dev = Dev::start(&["--resp"]);
    let port = |node: usize| dev.nodes[node].0.port() + 200;
    let redis_cli = async |node: usize, line: &str| {
        let port = port(node).to_string();
        let words = ["-p", &port].into_iter().chain(line.split(' '));
        run("redis-cli", words, SOON).await.unwrap().output.trim().to_owned()
    };
    assert_eq!(redis_cli(0, "SET orders/42 mine NX PX 60000").await, "OK");
    assert_eq!(redis_cli(2, "SET orders/42 other NX PX 60000").await, "");
    assert_eq!(redis_cli(1, "GET orders/42").await, "mine");
    dev.ends_with("-TERM");
}

/// Regression: the banner of the second showed the nodes of the first.
#[tokio::test]
async fn a_dev_whose_ports_are_taken_says_what_to_do() {
    let dev = Dev::start(&["--nodes", "1"]);
    let base = dev.nodes[0].0.port() - 1;
    let ended = run(PROGRAM, ["dev", "--base-port", &base.to_string()], SOON).await.unwrap();
    assert!(!ended.status.success() && ended.output.contains("--base-port"), "{ended:?}");
    assert!(!ended.output.contains("Ctrl-C"), "{ended:?}");
    dev.ends_with("-TERM");
}

/// The kernel gives an orphan another parent and says nothing, so the node compares pids.
#[tokio::test]
async fn a_node_that_starts_after_its_parent_has_ended_ends_too() {
    let mut parent = Command::new("true").spawn().unwrap();
    parent.wait().unwrap();
    let arguments = [
        "serve".to_owned(),
        format!("--die-with-parent={}", parent.id()),
        "--id=1".to_owned(),
        "--data=data".to_owned(),
        "--http=127.0.0.1:0".to_owned(),
        "--peer=127.0.0.1:0".to_owned(),
    ];
    let ended = run(PROGRAM, arguments, SOON).await.unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.output.contains("the parent process has exited"), "{ended:?}");
}

/// A zombie is not alive.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// A base port for which all three kinds of ports are free, below the ephemeral range. Another one for each call: tests run in
/// parallel, and the ports of a `dev` that is just starting still look free.
fn free_base_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() + CALLS.fetch_add(1, Ordering::Relaxed);
    let is_free = |base: u16| {
        (1..=3).all(|id| {
            TcpListener::bind(("127.0.0.1", base + id)).is_ok()
                && TcpListener::bind(("127.0.0.1", base + 100 + id)).is_ok()
                && TcpListener::bind(("127.0.0.1", base + 200 + id)).is_ok()
        }) && TcpListener::bind(("127.0.0.1", base + 80)).is_ok()
    };
    let mut bases = (0..40).map(|step| 20_000 + 300 * ((first + step) % 40) as u16);
    bases.find(|&base| is_free(base)).expect("some ports are free")
}

/// As its output says.
#[tokio::test]
async fn dev_makes_certificates_that_commands_and_curl_can_use() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(&["--tls", "--data", data.path().to_str().unwrap()]);
    let authority = data.path().join("certificates/authority.pem").display().to_string();
    let url = format!("https://{}", dev.nodes[2].0);
    let arguments =
        ["lock", "-u", &url, "--authority", &authority, "a", "--", "sh", "-c", "echo $RINGFENCE_TOKEN"];
    let ended = run(PROGRAM, arguments, SOON).await.unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let address = format!("{url}/v1/keys/a");
    let ended = run("curl", ["-sS", "--cacert", &authority, &address], SOON).await.unwrap();
    assert!(ended.status.success() && ended.output.contains("\"key\":\"a\""), "{ended:?}");
    let untrusting = run("curl", ["-sS", &address], SOON).await.unwrap();
    assert!(!untrusting.status.success(), "{untrusting:?}");
    dev.ends_with("-TERM");
}
