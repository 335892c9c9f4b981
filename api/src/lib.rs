//! The HTTP JSON API of Ringfence, and its dashboard.
//!
//! ```text
//!  request ─▶ routes ───────▶ a handler ────▶ Service ─▶ result ─▶ response or problem
//!             checks head     parses path,
//!             and host; has   query and body
//!             visit admitted  into wire types
//! ```
//! A handler turns a request into `Result<Response, Failed>`. It parses the request into wire types, calls the
//! [`Service`](ringfence_service), which knows what requests mean and no HTTP, and encodes the result as JSON. It keeps no state.
//!
//! What this crate guarantees to clients, besides what the service does:
//!
//! - *Certainly not done* (503) is kept apart from *maybe done* (504): `problems` gives each kind of failure its status.
//! - An acquire whose connection closes before the response is abandoned. After any response, including a 504, it is not.
//! - When a connection closes, hyper drops the handler and its retries, so a command is either sent before that, or never.
//!   Handlers spawn no tasks, but for two: all watches share one, and the service takes an abandoned acquire back.
//! - A watch gets every change once and in order, or an event that says that it was cut off ([`Watchers`](ringfence_service::Watchers)).
//! - No value that a client chose (key, lease id, path) becomes a metric label.
//! - A lease id is its owner's secret: no log line contains one.
//!
//! `GET /openapi.json` describes every route; tests compare the document, the routes and the wire types. `/` serves the
//! `dashboard`, whose scripts use only these routes.

mod asked;
mod door;
mod frame;
mod measure;
mod problems;
mod request;
mod response;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_http::Connections;
use ringfence_service::Service;
use ringfence_wire::ClusterStatus;

pub use measure::{METRICS, metrics_builder};
pub use problems::requires_tls;
pub use routes::Routes;
pub use routes::starting::starting;

/// What the API needs besides the service.
#[derive(Clone)]
pub struct Options {
    /// Renders the metrics of the process, for `/metrics`.
    pub metrics: PrometheusHandle,
    /// The connections that the routes are served on.
    pub connections: Arc<Connections>,
    /// Host names that requests may name, besides IP addresses and the members' own names. Empty: any name, except in
    /// requests from browsers.
    pub hosts: Vec<String>,
    /// The thread that has hung for longest. `/livez` reports it, from another thread.
    pub hangs: Arc<dyn Fn() -> Hang + Send + Sync>,
    /// The state of this node's mirror, for `GET /v1/cluster`, if there is one.
    pub mirror_status: Option<Arc<dyn Fn() -> serde_json::Value + Send + Sync>>,
    /// Adds what is known of certificates, for `GET /v1/cluster`.
    pub certificates: Arc<dyn Fn(&mut ClusterStatus) + Send + Sync>,
}

/// A thread of a node that may hang.
#[derive(Clone, Debug)]
pub struct Hang {
    /// Which one it is, as an error says it.
    pub thread: String,
    /// How long it has not run: next to nothing, if it does not hang.
    pub time: Duration,
}

/// The routes of the API and the dashboard, over `service`.
pub fn routes(service: Arc<Service>, options: Options) -> Routes {
    Routes::new(Arc::new(door::Door::new(service, options)))
}
