//! The door of Ringfence: HTTP JSON, and the dashboard.
//!
//! ```text
//!  request ─▶ serve ───▶ routes ─▶ door ───────────▶ a handler ────▶ Handle (raft) ─▶ outcome ─▶ answer or problem
//!             bounds,    asker     head, Host,       parses path,
//!             draining             ringfence-leader, query and body
//!                                  measurements,     into wire types
//!                                  request_log
//! ```
//! A handler is a function from a request to `Result<Response, Failed>`. It parses what it was sent into wire types,
//! asks the [`Handle`] of the replicated table, and puts the outcome into JSON. It holds no state of its own: whatever
//! must outlive the connection is in the replicated table.
//!
//! What this room owes to clients, beyond the shapes:
//!
//! - *Certainly not done* (503) is kept apart from *maybe done* (504). `problems` alone turns refusals into statuses.
//! - An acquire whose connection closed before its answer is taken back (`take_back`); any answer, a 504 too, ends
//!   that duty.
//! - No handler starts a task of its own (all watches have one together). When a connection closes, hyper drops the
//!   handler, and dropping it stops its retries: a command then either has gone its way already or never will.
//! - A watch is told every change once and in order, or that it is cut off (`watch`).
//! - Nothing that a client chose (a key, a lease id, a path) ever becomes the label of a measurement.
//! - A lease id is its owner's secret: no line of the log has one.
//!
//! `GET /openapi.json` describes every route; tests hold the document, the routes and the wire types together. `/` is
//! the `dashboard`: files in the program, scripts of which use these routes and no others.

mod door;
mod measure;
mod problems;
mod request;
mod request_log;
mod routes;
mod serve;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_raft::Handle;
use tokio::sync::watch::Receiver;

pub use measure::metrics_builder;
pub use routes::Routes;
pub use routes::starting::starting;
pub use serve::{Arriving, Connections, Threads, serve};

/// What the door needs besides the table.
#[derive(Clone)]
pub struct Options {
    /// Renders what the process measured, for `/metrics`.
    pub metrics: PrometheusHandle,
    /// The connections that the routes are served on.
    pub connections: Arc<Connections>,
    /// The host names by which requests may reach this node, besides addresses and the members' own. Empty: any name, but
    /// for what a browser sends.
    pub hosts: Vec<String>,
    /// Turns `true` when the process is to stop. From then on `/readyz` says 503 and requests that wait are answered:
    /// 202 where they keep their place, else 504. Both tell the client to repeat its PUT, which finds the place in the
    /// queue on any other node.
    pub draining: Receiver<bool>,
    /// How long the thread that runs Raft has done nothing that it had to. `/livez` tells of it, from another thread.
    pub hangs_for: fn() -> Duration,
    /// A request that takes so long, beyond what it asked to wait, is logged.
    pub slow_request: Duration,
    /// The mirror, where there is one.
    pub mirror: Option<Mirror>,
}

/// The mirror in Redis, as far as the door needs to know it.
#[derive(Clone)]
pub struct Mirror {
    /// How long the answer to an acquire waits until the fences stand in the mirror; `None`: it does not.
    pub before_answer: Option<Duration>,
    /// Tells how this node's mirror does, for `GET /v1/cluster`.
    pub status: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// The routes of the API and the dashboard, over the table behind `handle`.
pub fn routes(handle: Handle, options: Options) -> Routes {
    Routes::new(Arc::new(door::Door::new(handle, options)))
}
