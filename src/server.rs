//! A node as a process: listeners, the node itself, and stopping in order.
//!
//! ```text
//! SIGTERM ─▶ /readyz says no, waiters are told to come again ─▶ leadership handed over ─▶ connections drained ─▶ log closed
//! ```

use std::convert::Infallible;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::extract::Request;
use axum::response::Response;
use ringfence_api::{Arriving, Connections, Threads};
use ringfence_mirror::{Mirror, MirrorMode};
use ringfence_raft::{Node, Settings};
use ringfence_wire::Revision;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backup::Earlier;
use crate::config::Config;
use crate::descriptors;
use crate::disk_space;
use crate::duties;
use crate::loop_lag;
use crate::measured;
use crate::private;
use crate::stop::Stop;

/// How long the leadership may take to be handed over, and open requests to end, at a stop.
const HAND_OVER: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(5);
const UPKEEP: Duration = Duration::from_secs(5);

/// Runs a node until it is told to stop, or cannot go on.
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    let recorder =
        ringfence_api::metrics_builder().install_recorder().context("metrics were started before")?;
    measured::describe();
    metrics::gauge!("ringfence_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    tokio::spawn(loop_lag::measure());
    let listener = bind(config.http, "--http")?;
    let peer = TcpListener::from_std(bind(config.peer, "--peer")?)?;
    let mut stop = Stop::new()?;
    let url = config.url(listener.local_addr()?);
    let before_answer = config
        .mirror
        .as_ref()
        .and_then(|mirror| (mirror.mode == MirrorMode::BeforeAnswer).then_some(mirror.timeout));
    let mirror = config.mirror.map(Mirror::new).transpose()?;
    let data = config.data.clone();
    private::keep(&data);
    let settings = Settings {
        id: config.id,
        data: config.data,
        peer_listener: peer,
        peers: config.peers,
        join: config.join,
        url: url.clone(),
        first_revision: config.first_revision.map(Revision),
        elders: Some(Box::new(Earlier {
            restored: config.restored,
            mirror: mirror.clone().map(duties::mirror::Found),
        })),
        snapshot_after_bytes: config.snapshot_after_bytes,
    };
    let (started, starting) = watch::channel(false);
    let connections =
        Connections::new(descriptors::connections(config.max_connections, config.door_threads)?);
    let threads = Arc::new(Threads::start(config.door_threads).context("--door-threads")?);
    let of_starting = listener.try_clone().context("no descriptor for the HTTP listener")?;
    serve(of_starting, &threads, &connections, ringfence_api::starting, starting);
    let node = tokio::select! {
        node = Node::start(settings) => node?,
        _ = stop.requested() => return Ok(()),
    };
    started.send_replace(true);
    tracing::info!(id = config.id, url, version = env!("CARGO_PKG_VERSION"), "node started");

    let (draining, drain) = watch::channel(false);
    tokio::spawn(disk_space::measure(data));
    let upkeep = recorder.clone();
    // Beside Raft: there may be many samples, and the recorder is locked meanwhile.
    threads.spawn(async move {
        loop {
            // Samples of histograms pile up until this is called, or the metrics are asked for.
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    let told = mirror.as_ref().map(|mirror| {
        let handle = node.handle();
        handle.set_mirror(Box::new(duties::mirror::Told(mirror.clone())));
        tokio::spawn(duties::mirror::run(handle, mirror.clone()));
        let own = mirror.clone();
        ringfence_api::Mirror { before_answer, status: Arc::new(move || serde_json::json!(own.status())) }
    });
    let options = ringfence_api::Options {
        metrics: recorder,
        connections: Arc::clone(&connections),
        hosts: config.hosts,
        draining: drain.clone(),
        hangs_for: loop_lag::hangs_for,
        slow_request: config.slow_request,
        mirror: told,
    };
    let routes = ringfence_api::routes(node.handle().on(&threads.runtimes()), options);
    let answer = move |request, from| routes.clone().answer(request, from);
    let mut serving = serve(listener, &threads, &connections, answer, drain);

    let failure = tokio::select! {
        _ = stop.requested() => None,
        reason = node.failed() => Some(reason),
        ended = &mut serving => Some(format!("the HTTP listener ended: {ended:?}")),
    };
    draining.send_replace(true);
    if let Some(reason) = failure {
        bail!("this node cannot go on: {reason}");
    }
    tracing::info!("stopping");
    node.hand_over(HAND_OVER).await;
    serving.await.context("the HTTP listener ended")?;
    node.stop().await;
    // What still runs there holds the log.
    threads.end();
    tracing::info!("stopped");
    Ok(())
}

/// Answers requests that come to `listener`, on `threads`.
fn serve<A, F>(
    listener: net::TcpListener,
    threads: &Arc<Threads>,
    connections: &Arc<Connections>,
    answer: A,
    draining: watch::Receiver<bool>,
) -> JoinHandle<()>
where
    A: Fn(Request<Arriving>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let (of_threads, connections) = (Arc::clone(threads), Arc::clone(connections));
    threads.spawn(async move {
        // Made there, it wakes the thread that accepts, and no other.
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                ringfence_api::serve(listener, of_threads, connections, answer, draining, DRAIN).await;
            }
            Err(error) => tracing::error!(%error, "the HTTP listener cannot be used"),
        }
    })
}

fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<net::TcpListener> {
    let listener =
        net::TcpListener::bind(address).with_context(|| format!("cannot listen on {address} ({flag})"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
