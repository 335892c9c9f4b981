//! Before the grant: what a person learns who waits, and a wait that would never end.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::bail;
use ringfence_client::{Client, Consistency, Error, KeyView};
use ringfence_wire::ModeName;
use tokio::time::{sleep, timeout};

use crate::cli::acquire_options::AcquireOptions;
use crate::cli::client::held;
use crate::stderr::Stderr;

/// How long a person waits without a word.
const SILENT: Duration = Duration::from_secs(1);
/// How long a person waits to learn why a wait was in vain.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Fails if this process runs under a lease on one of the keys that shuts it out: it would wait for its own end.
pub(super) async fn refuse_own(
    client: &Client,
    keys: &[String],
    options: &AcquireOptions,
) -> anyhow::Result<()> {
    if !options.waits() {
        return Ok(());
    }
    for (token, key) in held().lines().filter_map(|line| line.split_once(' ')) {
        if !keys.iter().any(|wanted| wanted == key) {
            continue;
        }
        // The variable outlives the lease in processes that were left behind. If the call fails, the acquire tells why.
        let Ok(view) = client.key(key, Consistency::Linearizable).await else { continue };
        let own = view.holders.iter().find(|holder| holder.token.to_string() == token);
        if own.is_some_and(|own| !options.is_shared() || own.mode == ModeName::Exclusive) {
            bail!(
                "{key} is held, with token {token}, by a lock that runs this one: it would wait for itself"
            );
        }
    }
    Ok(())
}

/// On a terminal, says once who holds the keys and how many wait.
pub(super) async fn tell(client: &Client, keys: &[String], options: &AcquireOptions, stderr: &Stderr) {
    if !options.waits() || !std::io::stderr().is_terminal() {
        return;
    }
    sleep(SILENT).await;
    // One of the waiters is this process.
    if let Some(obstacle) = first_obstacle(client, keys, 1, Consistency::Local).await {
        stderr.print(format_args!("waiting for {obstacle}"));
    }
}

/// If an acquire failed because a key was not free: which key, and who has it.
pub(crate) async fn conflict(error: &Error, client: &Client, keys: &[String]) -> Option<String> {
    match error {
        Error::Held { .. } => Some(error.to_string()),
        Error::TimedOut { .. } => {
            // A node that lags might still show the place that this process has left.
            let obstacle = first_obstacle(client, keys, 0, Consistency::Linearizable);
            let obstacle = timeout(TOLD_WITHIN, obstacle).await.ok().flatten();
            Some(format!("{error}: {}", obstacle.unwrap_or_else(|| keys.join(", "))))
        }
        _ => None,
    }
}

/// Who is in the way at the first key where anybody is. Leaves out this many places of the process itself.
async fn first_obstacle(
    client: &Client,
    keys: &[String],
    own: u64,
    consistency: Consistency,
) -> Option<String> {
    for key in keys {
        // Who may acquire may be forbidden to read.
        if let Ok(view) = client.key(key, consistency).await
            && let Some(obstacle) = obstacle(&view, own)
        {
            return Some(obstacle);
        }
    }
    None
}

/// Who holds the key, and how many others wait for it; `None` if nobody is in the way.
fn obstacle(view: &KeyView, own: u64) -> Option<String> {
    let KeyView { key, holders, more_holders, waiters, more_waiters, .. } = view;
    let others = (waiters.len() as u64 + more_waiters).saturating_sub(own);
    let queue = match others {
        0 => String::new(),
        1 => "; one other waits".to_owned(),
        _ => format!("; {others} others wait"),
    };
    let Some(first) = holders.first() else {
        return (others > 0).then(|| format!("{key}{queue}"));
    };
    // Another client chose it: it must not reach terminals unescaped.
    let by = first.holder.as_ref().map(|holder| format!(" by {}", holder.as_str().escape_debug()));
    let more = match holders.len() as u64 + more_holders - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("{key}: held{} with token {}{more}{queue}", by.unwrap_or_default(), first.token))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(holders: &serde_json::Value, waiters: usize) -> Option<String> {
        let waiter = json!({ "holder": null, "mode": "exclusive", "waited_ms": 5 });
        let view = json!({
            "key": "a", "fence": 7, "revision": 9, "holders": holders, "waiters": vec![waiter; waiters],
        });
        obstacle(&serde_json::from_value(view).unwrap(), 1)
    }

    #[test]
    fn who_waits_learns_who_holds_and_how_many_others_wait() {
        let holder = |name: &str| {
            json!({
                "token": 7, "holder": name, "mode": "shared", "limit": null, "ttl_ms": 9, "expires_in_ms": 5,
                "metadata": {},
            })
        };
        let of = |holders: serde_json::Value, waiters| told(&holders, waiters).unwrap_or_default();
        assert_eq!(of(json!([holder("me")]), 1), "a: held by me with token 7");
        assert_eq!(of(json!([holder("me\n")]), 2), "a: held by me\\n with token 7; one other waits");
        let two = json!([holder("me"), holder("you")]);
        assert_eq!(of(two, 3), "a: held by me with token 7, and 1 more; 2 others wait");
        assert_eq!(of(json!([]), 3), "a; 2 others wait");
        assert_eq!(of(json!([]), 1), "");
    }
}
