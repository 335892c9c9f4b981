//! The options of `lock` and `acquire`.

use std::time::Duration;

use clap::Args;
use ringfence_client::{Client, Lock};

/// The longest holder, in bytes.
const MAX_HOLDER: usize = 256;

/// How to acquire.
#[derive(Debug, Args)]
pub(crate) struct AcquireOptions {
    /// Time-to-live: how long the lease lasts without a renewal, and how long others wait if this machine fails
    #[arg(long, value_name = "TIME", default_value = "15s")]
    ttl: humantime::Duration,
    /// Longest wait in the queue [default: no limit]
    #[arg(long, value_name = "TIME")]
    wait: Option<humantime::Duration>,
    /// Fail immediately if a key is not free
    #[arg(long = "try", conflicts_with = "wait")]
    try_once: bool,
    /// Share the keys with other shared holders
    #[arg(long)]
    shared: bool,
    /// Allow at most N shared holders at a time, as a semaphore
    #[arg(long, value_name = "N", requires = "shared")]
    limit: Option<u32>,
    /// Public name of the holder [default: USER@HOST:PID]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,
}

impl AcquireOptions {
    /// An acquire of `keys`, ready to be sent.
    pub(crate) fn lock(&self, client: &Client, keys: &[String]) -> Lock {
        let mut lock = client.lock_all(keys).ttl(*self.ttl);
        lock = lock.holder(self.holder.clone().unwrap_or_else(default_holder));
        if self.try_once {
            lock = lock.wait(Duration::ZERO);
        } else if let Some(wait) = self.wait {
            lock = lock.wait(*wait);
        }
        match (self.shared, self.limit) {
            (true, Some(limit)) => lock.limit(limit),
            (true, None) => lock.shared(),
            (false, _) => lock,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether it may stand in the queue.
    pub(crate) fn waits(&self) -> bool {
        !self.try_once
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.into()
    }
}

/// USER@HOST:PID, cut at the front if it is too long.
fn default_holder() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let host = rustix::system::uname();
    let holder = format!("{user}@{}:{}", host.nodename().to_string_lossy(), std::process::id());
    let start = holder.char_indices().find(|(at, _)| holder.len() - at <= MAX_HOLDER);
    start.map_or(String::new(), |(at, _)| holder[at..].to_owned())
}
