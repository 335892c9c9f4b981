//! What `lock` and `acquire` wish for.

use std::time::Duration;

use clap::Args;
use ringfence_client::{Client, Lock};

/// The longest holder, in bytes.
const MAX_HOLDER: usize = 256;

/// How to acquire.
#[derive(Debug, Args)]
pub(crate) struct Wish {
    /// How long the lease lives unless it is renewed: so long others wait if this machine vanishes
    #[arg(long, value_name = "TIME", default_value = "15s")]
    ttl: humantime::Duration,
    /// Wait in the queue no longer than this [default: for ever]
    #[arg(long, value_name = "TIME")]
    wait: Option<humantime::Duration>,
    /// Do not wait at all
    #[arg(long = "try", conflicts_with = "wait")]
    try_once: bool,
    /// Hold the keys together with other shared holders
    #[arg(long)]
    shared: bool,
    /// With no more than so many of them: a semaphore
    #[arg(long, value_name = "N", requires = "shared")]
    limit: Option<u32>,
    /// Who holds, for others to see [default: USER@HOST:PID]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,
}

impl Wish {
    /// The acquire of these keys.
    pub(crate) fn of(&self, client: &Client, keys: &[String]) -> Lock {
        let mut lock = client.lock_all(keys).ttl(*self.ttl);
        lock = lock.holder(self.holder.clone().unwrap_or_else(who));
        if let Some(wait) = self.wait() {
            lock = lock.wait(wait);
        }
        match (self.shared, self.limit) {
            (true, Some(limit)) => lock.limit(limit),
            (true, None) => lock.shared(),
            (false, _) => lock,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.into()
    }

    fn wait(&self) -> Option<Duration> {
        if self.try_once { Some(Duration::ZERO) } else { self.wait.map(Into::into) }
    }
}

/// Who runs this: USER@HOST:PID.
fn who() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let host = rustix::system::uname();
    let who = format!("{user}@{}:{}", host.nodename().to_string_lossy(), std::process::id());
    who.char_indices()
        .find(|(at, _)| who.len() - at <= MAX_HOLDER)
        .map_or(String::new(), |(at, _)| who[at..].to_owned())
}
