//! What the fronts of a scenario have seen.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::Value;
use tokio::sync::watch;

/// A request, and what came of it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its place in the log.
    pub index: usize,
    /// The front that got it.
    pub front: usize,
    /// The connection that it came by.
    pub connection: usize,
    /// When it arrived.
    pub at: Instant,
    /// Whether it came over TLS.
    pub is_encrypted: bool,
    /// The method.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; null if there is none.
    pub body: Value,
    /// The status of the node's answer, if it got the request.
    pub node_said: Option<u16>,
    /// The status of what the client was told in full, and when: the client has not known it before.
    pub told: Option<(u16, Instant)>,
    /// Whether the connection ended without that.
    pub is_over: bool,
}

impl Asked {
    /// An acquire.
    pub fn is_put(&self) -> bool {
        self.method == "PUT"
    }

    /// A release of one lease.
    pub fn is_delete(&self) -> bool {
        self.method == "DELETE"
    }

    /// The leases that it asks for, alone or in a batch.
    pub fn acquires(&self) -> Vec<&str> {
        if self.is_put() {
            return vec![self.lease_id()];
        }
        self.operations("acquire")
    }

    /// A renewal of many leases.
    pub fn is_renewal_of_many(&self) -> bool {
        self.path == "/v1/renew"
    }

    /// A renewal of one lease.
    pub fn is_renewal_of_one(&self) -> bool {
        self.path.ends_with("/renew") && !self.is_renewal_of_many()
    }

    /// A renewal.
    pub fn is_renewal(&self) -> bool {
        self.path.ends_with("/renew")
    }

    /// The lease in its path, or nothing.
    pub fn lease_id(&self) -> &str {
        let rest = self.path.strip_prefix("/v1/leases/").unwrap_or_default();
        rest.split(['/', '?']).next().unwrap_or_default()
    }

    /// The leases that it renews.
    pub fn renews(&self) -> Vec<&str> {
        match self.body["lease_ids"].as_array() {
            Some(several) if self.is_renewal_of_many() => several.iter().filter_map(Value::as_str).collect(),
            _ if self.is_renewal_of_one() => vec![self.lease_id()],
            _ => self.operations("renew"),
        }
    }

    /// The time-to-live that it renews a lease with, if it names one.
    pub fn renewed_ttl_ms(&self, lease_id: &str) -> Option<u64> {
        if self.is_renewal_of_one() && self.lease_id() == lease_id {
            return self.body["ttl_ms"].as_u64();
        }
        let operations = self.body["operations"].as_array()?;
        let renewal = operations.iter().map(|one| &one["renew"]).find(|one| one["lease_id"] == lease_id)?;
        renewal["ttl_ms"].as_u64()
    }

    /// The leases that it releases, alone or in a batch.
    pub fn releases(&self) -> Vec<&str> {
        if self.is_delete() {
            return vec![self.lease_id()];
        }
        self.operations("release")
    }

    /// The leases of the operations of this name in a batch.
    fn operations(&self, name: &str) -> Vec<&str> {
        let operations = self.body["operations"].as_array().map(Vec::as_slice).unwrap_or_default();
        operations.iter().filter_map(|one| one[name]["lease_id"].as_str()).collect()
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Whether the client was told this status.
    pub fn was_told(&self, status: u16) -> bool {
        self.told.is_some_and(|(told, _)| told == status)
    }
}

/// All that was asked, in order.
#[derive(Debug, Default)]
pub struct Log {
    seen: Mutex<Seen>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Seen {
    asked: Vec<Asked>,
    connections: usize,
    probes: Vec<usize>,
    violations: Vec<String>,
}

impl Log {
    /// Returns it with its place.
    pub(super) fn asked(&self, mut asked: Asked) -> Asked {
        let mut seen = self.seen();
        asked.index = seen.asked.len();
        seen.asked.push(asked.clone());
        drop(seen);
        self.changed.send_replace(());
        asked
    }

    pub(super) fn node_said(&self, index: usize, status: u16) {
        self.change(index, |asked| asked.node_said = Some(status));
    }

    pub(super) fn answered(&self, index: usize, status: u16, at: Instant) {
        self.change(index, |asked| asked.told = Some((status, at)));
    }

    pub(super) fn left(&self, index: usize) {
        self.change(index, |asked| asked.is_over = true);
    }

    pub(super) fn connected(&self) -> usize {
        let mut seen = self.seen();
        seen.connections += 1;
        seen.connections
    }

    pub(super) fn probed(&self, front: usize) {
        self.seen().probes.push(front);
        self.changed.send_replace(());
    }

    pub(super) fn violated(&self, rule: &str) {
        self.seen().violations.push(rule.to_owned());
    }

    /// All requests so far, without probes.
    pub fn all(&self) -> Vec<Asked> {
        self.seen().asked.clone()
    }

    /// How many requests there were so far, without probes.
    pub fn count(&self) -> usize {
        self.seen().asked.len()
    }

    /// Those that `choose` chooses.
    pub fn of(&self, choose: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        self.seen().asked.iter().filter(|asked| choose(asked)).cloned().collect()
    }

    /// The number of probes at a front.
    pub fn probes(&self, front: usize) -> usize {
        self.seen().probes.iter().filter(|probed| **probed == front).count()
    }

    /// How many connections were made, to any front.
    pub fn connections(&self) -> usize {
        self.seen().connections
    }

    /// What no client may ever do.
    pub fn violations(&self) -> Vec<String> {
        let seen = self.seen();
        let plain = |asked: &&Asked| !asked.is_encrypted && asked.header("authorization").is_some();
        let bare = seen.asked.iter().filter(plain).map(|asked| {
            format!("a credential went over a plain connection: {} {}", asked.method, asked.path)
        });
        let mut found: Vec<String> = seen.violations.iter().cloned().chain(bare).collect();
        // When the release of each lease was answered first.
        let mut ended: HashMap<&str, Instant> = HashMap::new();
        for asked in &seen.asked {
            for id in asked.acquires() {
                if ended.get(id).is_some_and(|at| *at < asked.at) {
                    found.push(format!("{id} was asked for again after its release was answered"));
                }
            }
            if let Some((..300, at)) = asked.told {
                for id in asked.releases() {
                    ended.entry(id).or_insert(at);
                }
            }
        }
        found
    }

    /// Waits until `look` sees what it looks for. The error says that `what` did not happen.
    pub async fn until<T>(
        &self,
        within: Duration,
        what: &str,
        look: impl Fn(&[Asked]) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut changed = self.changed.subscribe();
        let seeing = async {
            loop {
                if let Some(seen) = look(&self.seen().asked) {
                    return seen;
                }
                // The sender is here.
                let _ = changed.changed().await;
            }
        };
        tokio::time::timeout(within, seeing).await.map_err(|_| anyhow!("not within {within:?}: {what}"))
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Asked)) {
        change(&mut self.seen().asked[index]);
        self.changed.send_replace(());
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no code panics while it holds this lock")
    }
}
