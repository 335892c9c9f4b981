//! `ringfence dev`: a cluster of server processes on this machine, for trying things out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::nodes::{Log, MAX_NODES, Nodes};
use crate::stop::Stop;

/// How the cluster is made.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_NODES)))]
    nodes: u16,
    /// Keep the data here [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Node N listens for clients on this port + N, and for its peers on this port + 100 + N
    #[arg(long, default_value_t = 7400, value_name = "PORT")]
    base_port: u16,
}

/// Runs the cluster until Ctrl-C, or until a node ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // A thread of its own would be the nodes' parent, and its end their death.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run_cluster(arguments))
}

async fn run_cluster(arguments: &Arguments) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let temporary = tempfile::Builder::new().prefix("ringfence-dev-").tempdir()?;
    let data = arguments.data.as_deref().unwrap_or(temporary.path());
    let mut nodes = Nodes::new(arguments.nodes, arguments.base_port, data, Log::Stderr)?;
    nodes.start()?;
    // Killed at the end: their data is thrown away, or survives this by design.
    tokio::select! {
        result = watch(&mut nodes, data) => result,
        _ = stop.requested() => Ok(()),
    }
}

/// Tells when the nodes are ready, and returns when one ends.
async fn watch(nodes: &mut Nodes, data: &Path) -> anyhow::Result<()> {
    nodes.ready().await?;
    announce(nodes, data)?;
    loop {
        nodes.fail_if_ended()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn announce(nodes: &Nodes, data: &Path) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n  node  url                        pid")?;
    for node in nodes.all() {
        let url = format!("http://{}", node.http);
        writeln!(out, "  {:<4}  {url:<25}  {}", node.id, node.pid().unwrap_or(0))?;
    }
    let url = nodes.all().last().map_or_else(String::new, |node| format!("http://{}", node.http));
    writeln!(out, "\n  data  {}", data.display())?;
    writeln!(out, "\nTry, at any node:\n\n  {url}/ in a browser")?;
    writeln!(out, "  ringfence lock -u {url} orders/42 -- sh -c 'echo my token is $RINGFENCE_TOKEN'\n")?;
    writeln!(
        out,
        "  curl -X PUT {url}/v1/leases/$(cat /proc/sys/kernel/random/uuid) \\\n       -d '{{\"keys\":[\"orders/42\"],\"holder\":\"me\",\"ttl_ms\":30000}}'"
    )?;
    writeln!(out, "  curl {url}/v1/keys/orders/42\n\nCtrl-C ends all nodes.")
}
