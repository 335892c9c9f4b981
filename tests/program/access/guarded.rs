//! A node with access rules, and requests that show a credential.

use std::fs;

use ringfence_access::Credential;
use ringfence_harness::{Cluster, HttpConnection, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::{SOON, Secured, cluster};

/// The status and the body of a response; 0 without one.
pub(super) type Answer = (u16, String);

/// One node with these rules.
pub(super) async fn guarded(rules: &str, arguments: &[&str]) -> Secured {
    guarded_on(cluster().nodes(1).lay_out().await.unwrap(), rules, arguments).await
}

/// Starts the node of `cluster`, which may have data from before it had rules.
pub(super) async fn guarded_on(cluster: Cluster, rules: &str, arguments: &[&str]) -> Secured {
    let guarded = Secured::of(cluster, rules).await;
    guarded.start(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>());
    guarded.ready().await;
    guarded
}

pub(super) fn new() -> Credential {
    Credential::generate().unwrap()
}

/// Of a watch, the body is what comes with the head.
pub(super) async fn answer(
    mut connection: HttpConnection,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> Answer {
    let body = body.map(Value::to_string).unwrap_or_default();
    match timeout(SOON, connection.call(method, target, &body)).await {
        Ok(Ok(answer)) => (answer.status, String::from_utf8_lossy(answer.body).into_owned()),
        _ => (0, String::new()),
    }
}

impl Secured {
    /// Sends a request to the first node, on a connection of its own.
    pub(super) async fn send(
        &self,
        method: &str,
        target: &str,
        credential: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        match self.connection(self.cluster.node(1), credential).await {
            Ok(connection) => answer(connection, method, target, body).await,
            Err(_) => (0, String::new()),
        }
    }

    /// An acquire that waits.
    pub(super) async fn waits(
        &self,
        target: &str,
        credential: &Credential,
        body: Value,
    ) -> JoinHandle<Answer> {
        let connection = self.connection(self.cluster.node(1), Some(credential.reveal())).await.unwrap();
        let target = target.to_owned();
        tokio::spawn(async move { answer(connection, "PUT", &target, Some(&body)).await })
    }

    /// Replaces the rules, and waits until they are in use.
    pub(super) async fn replace_rules(&self, rules: &str) {
        let node = self.cluster.node(1);
        let log = || node.log().matches("files that changed are in use").count();
        let before = log();
        fs::write(self.path("access.toml"), rules).unwrap();
        let pid = node.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        kill_process(pid.unwrap(), Signal::HUP).unwrap();
        until(SOON, "new rules", async || (log() > before).then_some(())).await.unwrap();
    }
}
