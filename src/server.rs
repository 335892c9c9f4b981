//! The process of a node: its listeners, the node itself, and an orderly stop.
//!
//! ```text
//! SIGTERM ─▶ /readyz answers 503, waiters get 202 or 504 ─▶ leadership transferred ─▶ connections drained ─▶ log closed
//! ```

use std::convert::Infallible;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::extract::Request;
use axum::response::Response;
use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_http::{Connections, Remote, RequestBody, Threads};
use ringfence_mirror::{Mirror, MirrorMode};
use ringfence_raft::{Handle, Node, Quartz, Random, Settings, System, Tcp, Tls, Transport, WallClock};
use ringfence_service::Service;
use ringfence_wire::Revision;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::ends;
use crate::forever::forever;
use crate::predecessors::Predecessors;
use crate::signals::Signals;
use crate::{
    descriptors, disk_space, hangs, loop_lag, measure, mirror, private, resp, service_manager, tls,
    watched_files,
};

/// Bounds the transfer of the leadership at a stop.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long threads that serve clients may take to end.
const THREADS_END: Duration = Duration::from_secs(2);
/// Bounds open requests at a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs a node until a signal asks it to stop, or it fails.
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    // First, and also without files that may change: otherwise the signal ends the node.
    let hangup = signal(SignalKind::hangup())?;
    let recorder =
        ringfence_api::metrics_builder().install_recorder().context("metrics are already started")?;
    measure::start();
    tokio::spawn(forever("the lag of the event loop", loop_lag::measure));
    match config.insecure.as_deref() {
        Some([]) => tracing::warn!("--insecure is not needed"),
        Some(ports) => {
            let ports = ports.join(", ");
            tracing::warn!(ports, "--insecure: anybody who can reach these ports has full control");
        }
        None => {}
    }
    let listener = bind(config.http, "--http")?;
    let peer_listener = TcpListener::from_std(bind(config.peer, "--peer")?)?;
    let resp_port = config.resp.map(resp::reserve).transpose()?;
    let mut stop = Signals::stop()?;
    let url = config.url(listener.local_addr()?);
    let loaded = tls::Loaded::new(&config)?;
    let (files, tls::Loaded { clients: client_tls, peer: peer_tls, access, mirror }) =
        (loaded.files(), loaded);
    files.iter().for_each(|(_, files)| watched_files::warn_of_others(&**files));
    let mirror_timeout = config
        .mirror
        .as_ref()
        .and_then(|mirror| (mirror.mode == MirrorMode::BeforeAnswer).then_some(mirror.timeout));
    if mirror.is_some() {
        measure::register(ringfence_mirror::METRICS);
    }
    let (data, is_alone) = (config.data.clone(), config.is_alone);
    private::restrict(&data);
    let threads = Arc::new(Threads::start(config.http_threads).context("--http-threads")?);
    let transport: Arc<dyn Transport> = match &peer_tls {
        None => Arc::new(Tcp(peer_listener)),
        Some(peer) => {
            let plain = config.peer_tls.is_some_and(|files| files.plain);
            let of_http = Arc::clone(&threads);
            Arc::new(Tls::new(peer_listener, Arc::clone(peer), plain, move || of_http.last()))
        }
    };
    if !files.is_empty() {
        let watched = Arc::new(watched_files::Watched::new(files.clone(), hangup));
        tokio::spawn(forever("files that may change", move || Arc::clone(&watched).watch()));
    }
    let settings = Settings {
        id: config.id,
        data: config.data,
        transport,
        peers: config.peers,
        join: config.join,
        url: url.clone(),
        first_revision: config.first_revision.map(Revision),
        wall_clock: WallClock::system(),
        elders: Some(Box::new(Predecessors { restored: config.restored, mirror: mirror.clone() })),
        snapshot_after_bytes: config.snapshot_after_bytes,
        max_lease_bytes: config.max_lease_bytes,
        random: Random::system(),
        quartz: Quartz::system(),
        rules: ringfence_lease::SUPPORTED,
        since: ringfence_lease::Command::since,
        storage: Arc::new(System),
    };
    let (started, starting) = watch::channel(false);
    let connections =
        Connections::new(descriptors::connections(config.max_connections, config.http_threads)?);
    let starting_listener = listener.try_clone().context("cannot duplicate the HTTP listener")?;
    serve(starting_listener, client_tls.clone(), &threads, &connections, ringfence_api::starting, starting);
    // Not later: a node that waits for the other members of a new cluster must not block the start of the machine.
    service_manager::notify("READY=1\nSTATUS=starting");
    let node = tokio::select! {
        node = Node::start(settings) => node?,
        _ = stop.next() => return Ok(()),
    };
    started.send_replace(true);
    service_manager::notify("STATUS=started");
    tracing::info!(id = config.id, url, version = env!("CARGO_PKG_VERSION"), "node started");
    // A cluster that is not founded yet has no members. A node of another may have lost its list.
    if is_alone && node.handle().status().members.len() <= 1 {
        tracing::warn!(
            "--peers is not set: this node is a cluster of its own, and knows no other node. A cluster of several needs the \
             list of all members on every node"
        );
    }

    let (draining, drain) = watch::channel(false);
    let (blocks, blocked) = watch::channel(false);
    tokio::spawn(forever("the free disk space", move || disk_space::measure(data.clone())));
    let upkeep = recorder.clone();
    // On an HTTP thread, as it locks the recorder for as long as there are samples.
    threads.spawn(forever("the upkeep of metrics", move || keep_up(upkeep.clone())));
    let service = Arc::new(Service::new(
        node.handle().on(&threads.runtimes()),
        ringfence_service::Options {
            access,
            mirror_timeout,
            draining: drain.clone(),
            blocked,
            first_attachment: uuid::Uuid::new_v4().as_u64_pair().0,
            slow_request: config.slow_request,
        },
    ));
    let mut serving_resp = resp_port.map(|port| {
        let resp = ringfence_resp::Resp::new(Arc::clone(&service));
        resp::serve(port, client_tls.clone(), &threads, &connections, resp, drain.clone(), DRAIN_TIMEOUT)
    });
    let options = ringfence_api::Options {
        metrics: recorder,
        connections: Arc::clone(&connections),
        hosts: config.hosts,
        hangs: hangs::longest(&threads),
        mirror_status: mirror.map(|mirror| start_mirror(node.handle(), mirror)),
        certificates: Arc::new(move |status| ends::show(&files, peer_tls.as_deref(), status)),
    };
    let routes = ringfence_api::routes(service, options);
    let look =
        hangs::Look { threads: Arc::clone(&threads), blocked: Arc::new(blocks), routes: routes.clone() };
    let looking = look.start().context("cannot look for threads that hang")?;
    let answer = move |request, remote| routes.clone().answer(request, remote);
    let mut serving = serve(listener, client_tls, &threads, &connections, answer, drain);

    let failure = tokio::select! {
        _ = stop.next() => None,
        reason = node.failed() => Some(reason),
        ended = &mut serving => Some(format!("the HTTP listener ended: {ended:?}")),
        ended = resp::ended(&mut serving_resp) => Some(format!("the RESP listener ended: {ended:?}")),
    };
    draining.send_replace(true);
    if let Some(reason) = failure {
        // Otherwise requests could log lines after the error, which must be the last.
        end(&threads, looking);
        bail!("the node failed: {reason}");
    }
    tracing::info!("stopping");
    service_manager::notify("STOPPING=1\nSTATUS=stopping");
    node.hand_over(TRANSFER_TIMEOUT).await;
    serving.await.context("the HTTP listener ended")?;
    if let Some(serving) = serving_resp {
        serving.await.context("the RESP listener ended")?;
    }
    node.stop().await;
    // Requests that still run there hold the log open.
    end(&threads, looking);
    tracing::info!("stopped");
    Ok(())
}

/// Without upkeep, samples of histograms pile up until the metrics are next read.
async fn keep_up(recorder: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        recorder.run_upkeep();
    }
}

fn end(threads: &Threads, looking: hangs::Looking) {
    drop(looking);
    if !threads.end(THREADS_END) {
        tracing::warn!("a thread that serves clients did not end in time");
    }
}

/// Starts publishing in Redis. Gives what tells the state of that.
fn start_mirror(handle: Handle, mirror: Mirror) -> Arc<dyn Fn() -> serde_json::Value + Send + Sync> {
    handle.set_mirror(Box::new(mirror::Published(mirror.clone())));
    let running = mirror.clone();
    tokio::spawn(forever("the mirror", move || mirror::run(handle.clone(), running.clone())));
    Arc::new(move || serde_json::json!(mirror.status()))
}

/// Answers the requests of `listener` on `threads`.
fn serve<A, F>(
    listener: net::TcpListener,
    tls: Option<ringfence_http::Tls>,
    threads: &Arc<Threads>,
    connections: &Arc<Connections>,
    answer: A,
    draining: watch::Receiver<bool>,
) -> JoinHandle<()>
where
    A: Fn(Request<RequestBody>, Arc<Remote>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let (http_threads, connections) = (Arc::clone(threads), Arc::clone(connections));
    threads.spawn(async move {
        // Registered with the runtime of the thread that accepts, it wakes no other.
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                ringfence_http::serve(
                    listener,
                    tls,
                    http_threads,
                    connections,
                    answer,
                    draining,
                    DRAIN_TIMEOUT,
                )
                .await;
            }
            Err(error) => tracing::error!(%error, "cannot use the HTTP listener"),
        }
    })
}

fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<net::TcpListener> {
    let listener =
        net::TcpListener::bind(address).with_context(|| format!("cannot listen on {address} ({flag})"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
