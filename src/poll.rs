//! Polling with a deadline, for processes that do not report when they are ready.

use std::time::Duration;

use anyhow::Context;
use tokio::time::{sleep, timeout};

const INTERVAL: Duration = Duration::from_millis(20);

/// Calls `probe` until it returns a value. Fails if `probe` fails, or with `failure` at the deadline.
pub(crate) async fn until<T>(
    deadline: Duration,
    failure: &str,
    mut probe: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let poll = async {
        loop {
            match probe().await? {
                Some(value) => return Ok(value),
                None => sleep(INTERVAL).await,
            }
        }
    };
    timeout(deadline, poll).await.with_context(|| format!("{failure} within {} s", deadline.as_secs()))?
}
