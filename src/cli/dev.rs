//! `ringfence dev`: a cluster of server processes on this machine, for trying things out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::serve::MirrorMode;
use crate::nodes::{Log, MAX_NODES, Nodes, Variables};
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
    /// Publish fences in this Redis, as `ringfence serve` does. One that another cluster published in is taken over when
    /// that has been silent for 16 s
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    #[command(flatten)]
    mirror: Mirror,
}

/// Of `ringfence serve`'s options for the mirror those that are worth trying out. The environment is for real nodes.
#[derive(Debug, Args)]
struct Mirror {
    /// Whether a grant is answered without waiting for Redis, or when its fence stands there [default: async]
    #[arg(long = "mirror-mode", value_name = "MODE", requires = "redis")]
    mode: Option<MirrorMode>,
    /// What the names of all keys in Redis begin with
    #[arg(long = "mirror-prefix", value_name = "TEXT", default_value = "ringfence", requires = "redis")]
    prefix: String,
    /// PEM file of the authorities that Redis's certificate is checked with, in place of the system's
    #[arg(long = "mirror-tls-ca", value_name = "FILE", requires = "redis")]
    tls_ca: Option<PathBuf>,
}

impl Mirror {
    fn variables(&self, redis: &str) -> Variables {
        let mut variables =
            vec![("RINGFENCE_REDIS", redis.into()), ("RINGFENCE_MIRROR_PREFIX", (&self.prefix).into())];
        if let Some(mode) = self.mode.and_then(|mode| mode.to_possible_value()) {
            variables.push(("RINGFENCE_MIRROR_MODE", mode.get_name().into()));
        }
        if let Some(path) = &self.tls_ca {
            variables.push(("RINGFENCE_MIRROR_TLS_CA", path.into()));
        }
        variables
    }
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
    // Each cluster counts on from beyond the tokens of the last: a table or a Redis that is guarded outlives it.
    let variables =
        arguments.redis.as_ref().map(|redis| arguments.mirror.variables(redis)).unwrap_or_default();
    let mut nodes = Nodes::new(arguments.nodes, arguments.base_port, data, variables, Log::Stderr)?;
    nodes.start()?;
    // Killed at the end: their data is thrown away, or survives this by design.
    tokio::select! {
        result = watch(&mut nodes, data, arguments) => result,
        _ = stop.requested() => Ok(()),
    }
}

/// Tells when the nodes are ready, and returns when one ends.
async fn watch(nodes: &mut Nodes, data: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    nodes.ready().await?;
    announce(nodes, data, arguments)?;
    loop {
        nodes.fail_if_ended()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn announce(nodes: &Nodes, data: &Path, arguments: &Arguments) -> std::io::Result<()> {
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
    writeln!(out, "  curl {url}/v1/keys/orders/42")?;
    if arguments.redis.is_some() {
        let Mirror { prefix, .. } = &arguments.mirror;
        writeln!(
            out,
            "  redis-cli HMGET '{prefix}:{{orders/42}}' fence state   # {url}/#/mirror says how it does"
        )?;
    }
    writeln!(out, "\nCtrl-C ends all nodes.")
}
