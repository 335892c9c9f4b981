//! `ringfence dev`: a cluster of server processes on this machine, for trying things out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// How the cluster is made.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Keep the data here [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Node N listens for clients on this port + N, and for its peers on this port + 100 + N
    #[arg(long, default_value_t = 7400, value_name = "PORT")]
    base_port: u16,
}

struct Node {
    id: u16,
    http: SocketAddr,
    child: Child,
}

/// Runs the cluster until Ctrl-C, or until a node ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // A thread of its own would be the nodes' parent, and its end their death.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run_cluster(arguments))
}

async fn run_cluster(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.base_port > u16::MAX - 110 {
        bail!("--base-port is at most {}", u16::MAX - 110);
    }
    let temporary = tempfile::Builder::new().prefix("ringfence-dev-").tempdir()?;
    let data = arguments.data.clone().unwrap_or_else(|| temporary.path().to_owned());
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut nodes = start(arguments, &data)?;
    let result = tokio::select! {
        result = watch(&mut nodes, &data) => result,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    for node in &mut nodes {
        // Its data is thrown away, or survives this by design.
        let _ = node.child.kill().await;
    }
    result
}

fn start(arguments: &Arguments, data: &std::path::Path) -> anyhow::Result<Vec<Node>> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let peers: Vec<String> =
        (1..=arguments.nodes).map(|id| format!("{id}={}", address(arguments.base_port + 100 + id))).collect();
    let peers = peers.join(",");
    (1..=arguments.nodes)
        .map(|id| {
            let http = address(arguments.base_port + id);
            let mut command = Command::new(&program);
            // What is set for a real node must not reach these.
            for (name, _) in
                std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGFENCE_"))
            {
                command.env_remove(name);
            }
            command
                .arg("serve")
                .args([
                    "--config",
                    "/dev/null",
                    "--die-with-parent",
                    "--log",
                    "warn,openraft=error",
                    "--first-revision",
                    "1",
                ])
                .args(["--id", &id.to_string(), "--http", &http.to_string(), "--peers", &peers])
                .args(["--peer", &address(arguments.base_port + 100 + id).to_string()])
                .arg("--data")
                .arg(data.join(format!("node-{id}")))
                .stdin(std::process::Stdio::null())
                // Ctrl-C in the terminal reaches the whole group; this process ends the nodes itself.
                .process_group(0)
                .kill_on_drop(true);
            let child = command.spawn().with_context(|| format!("cannot start node {id}"))?;
            Ok(Node { id, http, child })
        })
        .collect()
}

/// Tells when the nodes are ready, and returns when one ends.
async fn watch(nodes: &mut [Node], data: &std::path::Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    for index in 0..nodes.len() {
        while !is_ready(nodes[index].http) {
            fail_if_ended(nodes)?;
            if Instant::now() > deadline {
                bail!("node {} is not ready after {} s", nodes[index].id, READY_WITHIN.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    announce(nodes, data)?;
    loop {
        fail_if_ended(nodes)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn fail_if_ended(nodes: &mut [Node]) -> anyhow::Result<()> {
    for node in nodes {
        if let Some(status) = node.child.try_wait()? {
            bail!("node {} has ended ({status}); ending the others", node.id);
        }
    }
    Ok(())
}

fn announce(nodes: &[Node], data: &std::path::Path) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n  node  url                        pid")?;
    for node in nodes {
        writeln!(
            out,
            "  {:<4}  {:<25}  {}",
            node.id,
            format!("http://{}", node.http),
            node.child.id().unwrap_or(0)
        )?;
    }
    let url = nodes.last().map_or_else(String::new, |node| format!("http://{}", node.http));
    writeln!(out, "\n  data  {}", data.display())?;
    writeln!(out, "\nTry, at any node:\n")?;
    writeln!(
        out,
        "  curl -X PUT {url}/v1/leases/$(cat /proc/sys/kernel/random/uuid) \\\n       -d '{{\"keys\":[\"orders/42\"],\"holder\":\"me\",\"ttl_ms\":30000}}'"
    )?;
    writeln!(out, "  curl {url}/v1/keys/orders/42\n\nCtrl-C ends all nodes.")
}

/// Whether the node at `http` says so itself.
fn is_ready(http: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&http, Duration::from_millis(200))?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(&status == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
