//! The API of etcd, as JSON over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use base64::prelude::{BASE64_STANDARD, Engine};
use ringfence_harness::Client;
use serde_json::{Value, json};

/// How long a client waits for an answer that is not the first one of an acquire.
pub(super) const PATIENT: Duration = Duration::from_secs(10);

/// Calls one server at a time; after an error, the next one.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) servers: Vec<Client>,
}

impl Api {
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        Self { servers: servers.iter().copied().map(Client::new).collect() }
    }

    pub(super) async fn call(
        &mut self,
        path: &str,
        request: &Value,
        within: Duration,
    ) -> anyhow::Result<Value> {
        let answer = self.servers[0].within(within).raw("POST", path, request.to_string()).await;
        if !answer.as_ref().is_ok_and(|answer| answer.status < 500) {
            self.servers.rotate_left(1);
        }
        let answer = answer?;
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "{path}: {} {text}", answer.status);
        Ok(serde_json::from_str(&text)?)
    }

    /// The same for what can be repeated: until a server has done it, or all were asked.
    pub(super) async fn repeat(&mut self, path: &str, request: &Value) -> anyhow::Result<Value> {
        for _ in 1..self.servers.len() {
            if let Ok(answer) = self.call(path, request, PATIENT).await {
                return Ok(answer);
            }
        }
        self.call(path, request, PATIENT).await
    }
}

pub(super) fn bytes(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// A 64-bit number: JSON has it as a string, and not at all if it is 0.
pub(super) fn number(value: &Value) -> anyhow::Result<i64> {
    Ok(value.as_str().unwrap_or("0").parse()?)
}

/// Asks for the key that holds a lock: a request of a range, as `WithFirstCreate` makes it.
pub(super) fn oldest(name: &str) -> Value {
    // The prefix ends with a slash; 0 is the character after that.
    let (from, to) = (format!("{name}/"), format!("{name}0"));
    json!({ "key": bytes(&from), "range_end": bytes(&to), "limit": "1", "sort_order": "ASCEND", "sort_target": "CREATE" })
}
