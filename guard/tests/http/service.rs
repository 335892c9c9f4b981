//! A service behind a real listener: things under `/things/`, each guarded by the key in its path.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::routing::get;
use percent_encoding::percent_decode_str;
use ringfence_guard::http::{GuardLayer, Target};
use ringfence_wire::{Key, Problem, ProblemKind, Token};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use crate::client::{Answer, Connection};

/// Asks the cluster for a fence. Here: a scripted answer, or that the cluster is unreachable.
type Ask = Box<dyn Fn(Key) -> std::future::Ready<Result<Token, &'static str>> + Send + Sync>;
pub(crate) type Guard = GuardLayer<fn(&Parts) -> Target, Ask>;

pub(crate) const MOST_BYTES: usize = 1_000;

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) guard: Guard,
    pub(crate) things: Arc<Things>,
}

pub(crate) struct Things {
    written: Mutex<BTreeMap<String, String>>,
    /// What the handlers did, in order.
    pub(crate) done: Mutex<Vec<String>>,
    /// Signals that a handler of a `slow …` write has begun.
    pub(crate) begun: Notify,
    /// Lets it go on.
    pub(crate) go_on: Semaphore,
}

impl Service {
    /// The cluster's answer for any key, if it answers.
    pub(crate) async fn start(fence: Result<u64, &'static str>) -> Self {
        let ask: Ask = Box::new(move |_| std::future::ready(fence.map(Token)));
        let guard = GuardLayer::new(target_of as fn(&Parts) -> Target, ask, 100, MOST_BYTES);
        let things = Arc::new(Things {
            written: Mutex::default(),
            done: Mutex::default(),
            begun: Notify::new(),
            go_on: Semaphore::new(0),
        });
        let router = Router::new()
            .route("/things/{*name}", get(read).put(write))
            .layer(guard.clone())
            .with_state(things.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { address, guard, things }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        Connection::open(self.address).await.send(method, path, headers, body).await
    }

    /// Writes as an exclusive holder of `things/a`.
    pub(crate) async fn put(&self, token: &str, body: &str) -> Answer {
        self.send("PUT", "/things/a", &exclusive(token), body).await
    }

    pub(crate) fn done(&self) -> Vec<String> {
        self.things.done.lock().unwrap().clone()
    }
}

/// The headers of an exclusive holder of `things/a`.
pub(crate) fn exclusive(token: &str) -> [(&str, &str); 2] {
    [("Ringfence-Key", "things/a"), ("Ringfence-Token", token)]
}

impl Answer {
    pub(crate) fn problem(&self, kind: ProblemKind) -> Problem {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem: Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!((problem.kind, problem.status, self.status), (kind, kind.status(), kind.status()));
        problem
    }
}

/// Paths outside `/things/` are not guarded.
fn target_of(parts: &Parts) -> Target {
    let path = percent_decode_str(parts.uri.path()).decode_utf8();
    match path.as_deref() {
        Ok(path) if !path.starts_with("/things/") => Target::Open,
        Ok(path) => path[1..].parse().map_or(Target::Refused, Target::Guarded),
        Err(_) => Target::Refused,
    }
}

async fn read(State(things): State<Arc<Things>>, Path(name): Path<String>) -> String {
    let written = things.written.lock().unwrap().get(&name).cloned().unwrap_or_default();
    things.done.lock().unwrap().push(format!("read {written}"));
    written
}

async fn write(State(things): State<Arc<Things>>, Path(name): Path<String>, body: String) {
    if body.starts_with("slow") {
        things.begun.notify_one();
        things.go_on.acquire().await.unwrap().forget();
    }
    assert_ne!(body, "panic", "a handler that fails");
    things.written.lock().unwrap().insert(name, body.clone());
    things.done.lock().unwrap().push(format!("wrote {body}"));
}
