//! `--listen`: says over HTTP whether this process leads, for readiness probes and neighbours.
//!
//! Whether the lease certainly lives, its own clock decides at the moment of the answer: a flag that somebody sets would be late after a pause
//! of this process. Strangers get a thread of their own and few connections, and looks at the holder a client of their own: a flood delays
//! no renewal.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use clap::Args;
use ringfence_aside::Beat;
use ringfence_client::{Client, Consistency, Lease};
use ringfence_http::{Connections, RequestBody, Threads};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::cli::client::Connection;

/// For a new connection beyond these, another one is closed.
const MAX_CONNECTIONS: usize = 64;
/// How long a look at the holder may take, and counts: a probe of Kubernetes waits for a second.
const LOOK: Duration = Duration::from_millis(500);
/// A process whose main thread hangs for longer should be restarted.
const MAX_HANG: Duration = Duration::from_secs(10);
/// When the whole process was paused, the listener's thread may run before the main one.
const WAKES_WITHIN: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct Listen {
    /// Answer HTTP at IP:PORT: GET /leader is 200 while the lease surely lives and COMMAND runs, else 503; GET /livez
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

impl Listen {
    /// Listens, if that is wanted, until the result is dropped. The answers tell who has the first of `keys` that is held.
    pub(crate) fn start(&self, connection: &Connection, keys: &[String]) -> anyhow::Result<Leadership> {
        let Some(address) = self.listen else { return Ok(Leadership(None)) };
        let listener =
            TcpListener::bind(address).with_context(|| format!("--listen: cannot listen on {address}"))?;
        listener.set_nonblocking(true)?;
        let threads = Arc::new(Threads::start(1).context("--listen")?);
        let listening = Arc::new(Listening {
            lease: Mutex::default(),
            keys: keys.to_vec(),
            client: connection.client()?,
            other: tokio::sync::Mutex::default(),
            beat: Beat::default(),
        });
        let beats = Arc::clone(&listening);
        tokio::spawn(async move { beats.beat.go_on().await });
        let (of, answers) = (Arc::clone(&threads), Arc::clone(&listening));
        let (draining, drain) = watch::channel(false);
        threads.spawn(async move {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "--listen"),
            };
            let answer = move |request, _| Arc::clone(&answers).answer(request);
            ringfence_http::serve(listener, None, of, Connections::new(MAX_CONNECTIONS), answer, drain, LOOK)
                .await;
        });
        Ok(Leadership(Some((listening, draining))))
    }
}

/// What the listener, if there is one, says of this process.
pub(crate) struct Leadership(Option<(Arc<Listening>, watch::Sender<bool>)>);

impl Leadership {
    /// From now until the result is dropped, this process leads while the lease lives.
    #[must_use]
    pub(crate) fn of(&self, lease: &Lease) -> impl Drop + use<> {
        let listening = self.0.as_ref().map(|(listening, _)| Arc::clone(listening));
        if let Some(listening) = &listening {
            *listening.lease() = Some(lease.copy());
        }
        Term(listening)
    }
}

struct Term(Option<Arc<Listening>>);

impl Drop for Term {
    fn drop(&mut self) {
        if let Some(listening) = &self.0 {
            *listening.lease() = None;
        }
    }
}

struct Listening {
    /// While this process leads.
    lease: Mutex<Option<Lease>>,
    keys: Vec<String>,
    client: Client,
    /// Who holds the keys, and when that was looked at.
    other: tokio::sync::Mutex<Option<(Instant, Value)>>,
    /// Of the main thread.
    beat: Beat,
}

impl Listening {
    async fn answer(self: Arc<Self>, request: Request<RequestBody>) -> Result<Response, Infallible> {
        let (status, body) = match (request.method(), request.uri().path()) {
            (&(Method::GET | Method::HEAD), "/leader") => match self.own() {
                Some(own) => (StatusCode::OK, own),
                None => (StatusCode::SERVICE_UNAVAILABLE, self.other().await),
            },
            (&(Method::GET | Method::HEAD), "/livez") => match self.hangs().await {
                false => (StatusCode::OK, json!({ "status": "live" })),
                true => (StatusCode::SERVICE_UNAVAILABLE, json!({ "detail": "the main thread hangs" })),
            },
            _ => (StatusCode::NOT_FOUND, json!({ "detail": "there are GET /leader and GET /livez" })),
        };
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        Ok((status, headers, body.to_string()).into_response())
    }

    /// The lease, if this process leads. Its id stays secret.
    fn own(&self) -> Option<Value> {
        let grant = self.lease().as_ref()?.grant();
        let left = grant.expires_in_ms.filter(|left| *left > 0)?;
        Some(
            json!({ "token": grant.token, "holder": grant.holder, "keys": grant.keys, "expires_in_ms": left }),
        )
    }

    /// The same of who has the first key that is held, as far as a node knows it, and empty if nobody has. However often this is called, it
    /// looks once in that time.
    async fn other(&self) -> Value {
        let mut other = self.other.lock().await;
        match &*other {
            Some((at, known)) if at.elapsed() < LOOK => known.clone(),
            _ => {
                let known = timeout(LOOK, self.look()).await.ok().flatten().unwrap_or_else(|| json!({}));
                *other = Some((Instant::now(), known.clone()));
                known
            }
        }
    }

    async fn look(&self) -> Option<Value> {
        for key in &self.keys {
            // Who may acquire may be forbidden to read.
            let Ok(view) = self.client.key(key, Consistency::Local).await else { continue };
            if let Some(first) = view.holders.first() {
                let key =
                    json!({ "key": key, "fence": view.fence, "mode": first.mode, "limit": first.limit });
                return Some(json!({ "token": first.token, "holder": first.holder, "keys": [key] }));
            }
        }
        None
    }

    async fn hangs(&self) -> bool {
        if self.beat.age() > MAX_HANG {
            sleep(WAKES_WITHIN).await;
        }
        self.beat.age() > MAX_HANG
    }

    fn lease(&self) -> MutexGuard<'_, Option<Lease>> {
        self.lease.lock().expect("nothing panics while the lease is locked")
    }
}
