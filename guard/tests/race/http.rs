use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::request::Parts;
use axum::routing::get;
use ringfence_guard::http::{GuardLayer, Target};
use ringfence_guard::{Admission, Claim};
use ringfence_wire::{Key, Problem, ProblemKind, Token};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::client::{Answer, Connection};
use crate::race::race;
use crate::resource::Resource;

/// A number behind a real listener, with or without a guard before its handlers.
struct Service {
    runtime: Runtime,
    address: SocketAddr,
    guarded: bool,
    idle: Mutex<Vec<Connection>>,
}

impl Service {
    fn start(guarded: bool) -> Self {
        let runtime = Runtime::new().unwrap();
        let router = Router::new().route("/number", get(read).put(write));
        let target_of = |_: &Parts| Target::Guarded("number".parse().unwrap());
        let ask = |_: Key| ready(Ok::<_, Infallible>(Token(1)));
        let router = match guarded {
            true => router.layer(GuardLayer::new(target_of, ask, 1, 100)),
            false => router,
        };
        let router = router.with_state(Arc::new(AtomicU64::new(0)));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { runtime, address, guarded, idle: Mutex::default() }
    }

    fn send(&self, method: &str, claim: Option<Claim>, body: &str) -> Answer {
        let idle = self.idle.lock().unwrap().pop();
        let (answer, connection) = self.runtime.block_on(async {
            let mut connection = match idle {
                Some(connection) => connection,
                None => Connection::open(self.address).await,
            };
            let numbers = claim.map(|claim| (claim.token().to_string(), claim.fence().to_string()));
            let headers = numbers.iter().flat_map(|(token, fence)| {
                [("Ringfence-Key", "number"), ("Ringfence-Token", token), ("Ringfence-Fence", fence)]
            });
            let headers: Vec<_> = headers.collect();
            (connection.send(method, "/number", &headers, body).await, connection)
        });
        self.idle.lock().unwrap().push(connection);
        answer
    }
}

async fn read(State(number): State<Arc<AtomicU64>>) -> String {
    number.load(SeqCst).to_string()
}

async fn write(State(number): State<Arc<AtomicU64>>, body: String) {
    // Long enough for others to get in between, if they can.
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    number.store(body.parse().unwrap(), SeqCst);
}

impl Resource for Service {
    fn touch(&self, claim: Claim) -> Admission {
        match self.guarded {
            true => admission(&self.send("GET", Some(claim), "")),
            false => Admission::Accepted(()),
        }
    }

    fn read(&self) -> u64 {
        String::from_utf8(self.send("GET", None, "").body.to_vec()).unwrap().parse().unwrap()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        admission(&self.send("PUT", Some(claim), &number.to_string()))
    }
}

fn admission(answer: &Answer) -> Admission {
    if answer.status == 200 {
        return Admission::Accepted(());
    }
    let problem: Problem = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem.kind, ProblemKind::StaleToken);
    Admission::Stale { high: problem.fence.unwrap() }
}

#[test]
fn http_rejects_late_holders_and_nobody_else() {
    race(&Service::start(true)).assert_right();
}

#[test]
fn http_without_a_guard_loses_updates() {
    race(&Service::start(false)).assert_wrong();
}
