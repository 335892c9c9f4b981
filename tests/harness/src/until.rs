use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::{Called, Error, Fate, Reply};

/// Poll interval.
const AGAIN: Duration = Duration::from_millis(20);

/// Polls `look` until it returns `Some`. The error says that `what` did not happen in time.
pub async fn until<T, F>(
    within: Duration,
    what: impl Into<String>,
    mut look: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + within;
    loop {
        match timeout_at(deadline, look()).await {
            Ok(Some(seen)) => return Ok(seen),
            Ok(None) if Instant::now() + AGAIN < deadline => sleep(AGAIN).await,
            _ => return Err(Error::Timeout { what: what.into(), within }),
        }
    }
}

/// Repeats a call until its answer is definite.
pub async fn definite<T, F>(within: Duration, mut call: impl FnMut() -> F) -> Result<Reply<T>, Error>
where
    F: Future<Output = Called<T>>,
{
    let deadline = Instant::now() + within;
    let mut last = "nothing".to_owned();
    loop {
        match timeout_at(deadline, call()).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(failure)) if failure.fate == Fate::Malformed => return Err(failure.into()),
            Ok(Err(failure)) if Instant::now() + AGAIN < deadline => {
                last = failure.to_string();
                sleep(AGAIN).await;
            }
            _ => {
                return Err(Error::Timeout {
                    what: format!("a definite answer; the last was {last}"),
                    within,
                });
            }
        }
    }
}
