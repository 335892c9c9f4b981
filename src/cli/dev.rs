//! `ringfence dev`: a temporary cluster on this machine.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::Router;
use clap::{Args, ValueEnum};
use ringfence_client::{Client, Tls};
use tokio::net::TcpListener;

use crate::cli::cert::Trial;
use crate::config::options::MirrorMode;
use crate::nodes::{Log, MAX_NODES, Node, Nodes, Variables};
use crate::runtime;
use crate::signals::Signals;

/// Offset from the base port. No node has this port.
const STORAGE_PORT: u16 = 80;
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_NODES)))]
    nodes: u16,
    /// Data directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Node N serves clients on PORT + N and peers on PORT + 100 + N
    #[arg(long, default_value_t = 7400, value_name = "PORT")]
    base_port: u16,
    /// Also let lock libraries for Redis connect, to node N on PORT + 200 + N
    #[arg(long)]
    resp: bool,
    /// Make certificates, and encrypt all connections
    #[arg(long)]
    tls: bool,
    /// Redis to publish fences to, as in `ringfence serve`. If another cluster published there, publish when it has not
    /// written for 16 s
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    #[command(flatten)]
    mirror: Mirror,
    /// Also serve files on PORT + 80, and reject writes with a stale token
    #[arg(long)]
    storage: bool,
}

/// A few of `ringfence serve`'s mirror options, without their variables, which are for real nodes.
#[derive(Debug, Args)]
struct Mirror {
    /// When to respond to an acquire that is granted [default: async]
    #[arg(long = "mirror-mode", value_name = "MODE", requires = "redis")]
    mode: Option<MirrorMode>,
    /// Prefix of all keys in Redis
    #[arg(long = "mirror-prefix", value_name = "TEXT", default_value = "ringfence", requires = "redis")]
    prefix: String,
    /// PEM file of certificate authorities for Redis, instead of the system's
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

/// Runs the cluster until Ctrl-C or until a node exits.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    runtime::block_on(run_cluster(arguments))?
}

async fn run_cluster(arguments: &Arguments) -> anyhow::Result<()> {
    let mut stop = Signals::stop()?;
    let temporary = tempfile::Builder::new().prefix("ringfence-dev-").tempdir()?;
    let data = arguments.data.as_deref().unwrap_or(temporary.path());
    // No --first-revision: each run starts above the tokens of the last, which a guarded table or Redis still knows.
    let variables =
        arguments.redis.as_ref().map(|redis| arguments.mirror.variables(redis)).unwrap_or_default();
    let mut nodes = Nodes::new(arguments.nodes, arguments.base_port, data, variables, Log::Stderr)?;
    if arguments.resp {
        nodes.speak_resp();
    }
    nodes.check_ports().map_err(|error| {
        anyhow!("{error:#}; if another `ringfence dev` runs, choose other ports with --base-port")
    })?;
    let mut authority = None;
    if arguments.tls {
        let trial = Trial::new(data.join("certificates"), arguments.nodes, "127.0.0.1")?;
        nodes.encrypt(trial.authority(), |id| trial.arguments(id))?;
        authority = Some(trial.authority());
    }
    let storage = match arguments.storage {
        true => Some(storage(&nodes, data, authority.as_deref(), arguments.base_port).await?),
        false => None,
    };
    nodes.start()?;
    // The nodes are killed at the end: their data is either removed or survives a kill by design.
    tokio::select! {
        result = watch(&mut nodes, data, authority.as_deref(), arguments) => result,
        result = serve(storage) => result,
        _ = stop.next() => Ok(()),
    }
}

/// A storage of files that rejects stale writers, beside these nodes.
async fn storage(
    nodes: &Nodes,
    data: &Path,
    authority: Option<&Path>,
    base_port: u16,
) -> anyhow::Result<(TcpListener, Router)> {
    let tls = Tls { authority: authority.map(Path::to_owned), ..Tls::default() };
    let client = Client::connect_with(nodes.all().iter().map(Node::url), &tls)?;
    let folder = data.join("files");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, base_port.saturating_add(STORAGE_PORT)));
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    Ok((listener, ringfence_storage::storage(client, folder)))
}

async fn serve(storage: Option<(TcpListener, Router)>) -> anyhow::Result<()> {
    let Some((listener, storage)) = storage else { return std::future::pending().await };
    Ok(axum::serve(listener, storage).await?)
}

/// Announces the nodes when they are ready. Returns when one exits.
async fn watch(
    nodes: &mut Nodes,
    data: &Path,
    authority: Option<&Path>,
    arguments: &Arguments,
) -> anyhow::Result<()> {
    nodes.ready().await?;
    announce(nodes, data, authority, arguments)?;
    loop {
        nodes.fail_if_ended()?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn announce(
    nodes: &Nodes,
    data: &Path,
    authority: Option<&Path>,
    arguments: &Arguments,
) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n  node  url                        pid")?;
    for node in nodes.all() {
        writeln!(out, "  {:<4}  {:<25}  {}", node.id, node.url(), node.pid().unwrap_or(0))?;
    }
    let url = nodes.all().last().map(Node::url).unwrap_or_default();
    writeln!(out, "\n  data  {}", data.display())?;
    let option = |name| authority.map(|file| format!("{name} {} ", file.display())).unwrap_or_default();
    let (of_command, of_curl) = (option("--authority"), option("--cacert"));
    writeln!(out, "\nTry, at any node:\n\n  {url}/ in a browser")?;
    writeln!(
        out,
        "  ringfence lock -u {url} {of_command}orders/42 -- sh -c 'echo my token is $RINGFENCE_TOKEN'\n"
    )?;
    writeln!(
        out,
        "  curl {of_curl}-X PUT {url}/v1/leases/$(cat /proc/sys/kernel/random/uuid) \\\n       -d '{{\"keys\":[\"orders/42\"],\"holder\":\"me\",\"ttl_ms\":30000}}'"
    )?;
    writeln!(out, "  curl {of_curl}{url}/v1/keys/orders/42")?;
    if arguments.storage {
        let address = format!("localhost:{}", arguments.base_port.saturating_add(STORAGE_PORT));
        writeln!(
            out,
            "\n  curl -X PUT {address}/files/a -H 'Ringfence-Key: files/a' -H 'Ringfence-Token: TOKEN' -d text"
        )?;
    }
    if let Some(resp) = nodes.all().last().and_then(|node| node.resp) {
        let of_tls = authority.map(|file| format!("--tls --cacert {} ", file.display())).unwrap_or_default();
        writeln!(out, "  redis-cli {of_tls}-p {} SET orders/43 me NX PX 30000", resp.port())?;
    }
    if let Some(redis) = &arguments.redis {
        let (prefix, of_redis) = (&arguments.mirror.prefix, redis_cli(redis));
        writeln!(out, "  {of_redis} HMGET '{prefix}:{{orders/42}}' fence state   # status: {url}/#/mirror")?;
    }
    writeln!(out, "\nCtrl-C ends all nodes.")
}

/// The command that reads from this Redis. It does not show a password.
fn redis_cli(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let (login, servers) = rest.rsplit_once('@').map_or(("", rest), |(login, servers)| (login, servers));
    let servers = servers.split('?').next().unwrap_or_default();
    let first = servers.split([',', '/']).next().unwrap_or_default();
    let tls = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
    let mut command = match scheme.split_once('+').map(|(_, kind)| kind) {
        // It asks a Sentinel for the master, which a person has to do, too.
        Some("sentinel") => "redis-cli -h MASTER".to_owned(),
        Some("cluster") => format!("redis-cli -c -u {tls}://{first}"),
        _ => format!("redis-cli -u {tls}://{servers}"),
    };
    if !login.is_empty() {
        let user = login.split(':').next().filter(|user| !user.is_empty()).unwrap_or("default");
        command += &format!(" --user {user} --askpass");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_redis_of_the_hint_is_that_of_the_nodes_without_its_password() {
        for (url, command) in [
            ("redis://127.0.0.1:22379", "redis-cli -u redis://127.0.0.1:22379"),
            ("rediss://me:secret@db:1/2", "redis-cli -u rediss://db:1/2 --user me --askpass"),
            ("redis://:secret@db", "redis-cli -u redis://db --user default --askpass"),
            ("redis+cluster://a:1,b:2", "redis-cli -c -u redis://a:1"),
            ("redis+sentinel://a:1,b:2/name", "redis-cli -h MASTER"),
        ] {
            assert_eq!(redis_cli(url), command, "{url}");
        }
    }
}
