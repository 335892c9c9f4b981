//! The HTTP JSON API of Ringfence, and its dashboard.
//!
//! ```text
//!  request ─▶ routes ───────▶ a handler ────▶ Handle (raft) ─▶ outcome ─▶ response or problem
//!             checks head,    parses path,
//!             Host, right;    query and body
//!             measures, logs  into wire types
//! ```
//! A handler turns a request into `Result<Response, Failed>`. It parses the request into wire types, calls the [`Handle`] of
//! the replicated table, and encodes the outcome as JSON. It keeps no state: whatever must outlive the connection is in the
//! replicated table.
//!
//! What this crate guarantees to clients:
//!
//! - *Certainly not done* (503) is kept apart from *maybe done* (504). Only `problems` maps refusals to statuses.
//! - An acquire whose connection closes before the response is abandoned (`routes::abandon`). After any response,
//!   including a 504, it is not.
//! - Handlers spawn no tasks (all watches share one). When a connection closes, hyper drops the handler and its
//!   retries, so a command is either sent before that, or never.
//! - A watch gets every change once and in order, or an event that says that it was cut off (`watch`).
//! - No value that a client chose (key, lease id, path) becomes a metric label.
//! - A lease id is its owner's secret: no log line contains one.
//!
//! `GET /openapi.json` describes every route; tests compare the document, the routes and the wire types. `/` serves the
//! `dashboard`, whose scripts use only these routes.

mod door;
mod measure;
mod problems;
mod request;
mod request_log;
mod response;
mod routes;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_access::Watched;
use ringfence_http::Connections;
use ringfence_raft::Handle;
use tokio::sync::watch::Receiver;

pub use measure::metrics_builder;
pub use problems::requires_tls;
pub use routes::Routes;
pub use routes::starting::starting;

/// What the API needs besides the table.
#[derive(Clone)]
pub struct Options {
    /// Renders the metrics of the process, for `/metrics`.
    pub metrics: PrometheusHandle,
    /// The connections that the routes are served on.
    pub connections: Arc<Connections>,
    /// Host names that requests may name, besides IP addresses and the members' own names. Empty: any name, except in
    /// requests from browsers.
    pub hosts: Vec<String>,
    /// Turns `true` when the process is about to stop. Then `/readyz` answers 503 and waiting requests are answered: 202 if
    /// they keep their place, else 504. Either way the client repeats its PUT at another node, which finds the place in the
    /// queue.
    pub draining: Receiver<bool>,
    /// How long the Raft thread has been stuck. `/livez` reports it, from another thread.
    pub hangs_for: fn() -> Duration,
    /// A request that takes this long, not counting the wait it asked for, is logged.
    pub slow_request: Duration,
    /// The mirror, if there is one.
    pub mirror: Option<Mirror>,
    /// The access rules. `None`: everybody may do everything.
    pub access: Option<Arc<Watched>>,
}

/// What the API needs to know about the mirror in Redis.
#[derive(Clone)]
pub struct Mirror {
    /// How long the response to an acquire waits for the mirror to have the fences; `None`: it does not wait.
    pub before_answer: Option<Duration>,
    /// The state of this node's mirror, for `GET /v1/cluster`.
    pub status: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// The routes of the API and the dashboard, over the table behind `handle`.
pub fn routes(handle: Handle, options: Options) -> Routes {
    Routes::new(Arc::new(door::Door::new(handle, options)))
}
