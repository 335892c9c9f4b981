//! Elections: work that runs wherever the lease is.
//!
//! ```text
//!  acquire ──▶ work ──▶ done, and still the leader ──▶ released, and the result returned
//!     ▲          └────▶ the lease is lost: the work is dropped, and the loss reported
//!     └── a pause ◀─────┘
//! ```

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use ringfence_wire::{EndReason, ProblemKind};
use tokio::time::sleep;

use crate::backoff::random;
use crate::{Error, Lease, Lock, Loss};

/// The longest pause before a candidate stands again. The shortest is half of it.
const PAUSE: Duration = Duration::from_secs(1);

impl Lock {
    /// Runs `work` as the leader, under a lease of its own, and returns its result once it has ended. If the lease is lost, `work` is
    /// dropped, as [`Lease::run`] says, and the candidate stands again: also if `work` was done by then, whatever it returned,
    /// and if a guard has found its token [stale](Lease::stale). Each such end of a term is a warning in the log. If the client is
    /// [closed](crate::Client::close), the campaign ends with [`Error::Closed`].
    ///
    /// While the cluster cannot be reached, or is overloaded, the candidate tries again, for ever. To stop, drop this future: the lease, or the place in the
    /// queue, is then released in the background.
    ///
    /// `work` gets a copy of the handle. Dropping it releases nothing, and keeping it keeps no lease: that ends with the term. Work that
    /// [releases](Lease::release) it no longer leads, even if the release says that the lease was lost before. Such work goes on to its
    /// end, or to that of the client, and then the campaign ends, too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ringfence_client::{Client, Error};
    ///
    /// # async fn schedule(_: [(&str, String); 3]) -> Result<(), Error> { Ok(()) }
    /// async fn scheduler(client: &Client) -> Result<(), Error> {
    ///     let candidate = client.lock("scheduler").ttl(Duration::from_secs(10)).holder("machine-7");
    ///     candidate
    ///         .lead(|lease| async move {
    ///             loop {
    ///                 // Others see the token with each write, and refuse a former leader's.
    ///                 schedule(lease.headers("scheduler")?).await?;
    ///                 tokio::time::sleep(Duration::from_secs(1)).await;
    ///             }
    ///         })
    ///         .await
    /// }
    /// # fn spawns(client: Client) {
    /// # tokio::spawn(async move { scheduler(&client).await });
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of `work` if it fails while it leads, which ends its term and the campaign; and that of an acquire that no repeat mends, or
    /// [`Error::TimedOut`] if there is a limit to the [wait](Lock::wait).
    pub async fn lead<T, E, W>(self, work: impl FnMut(Lease) -> W) -> Result<T, E>
    where
        E: From<Error> + Display,
        W: Future<Output = Result<T, E>>,
    {
        let warn = |error: E| tracing::warn!(%error, "no longer the leader: the candidate stands again");
        self.lead_reporting(work, warn).await
    }

    /// As [`lead`](Self::lead), but reports to `on_error` instead of the log how a term has ended, if the candidate stands again: with the
    /// error of `work` if it had failed by then, and otherwise with [`Error::Lost`].
    ///
    /// ```
    /// # use ringfence_client::{Client, Error, Lease};
    /// # async fn rule(_: Lease) -> Result<(), Error> { Ok(()) }
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let mut terms = 1;
    /// client.lock("scheduler").lead_reporting(rule, |_error| terms += 1).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`lead`](Self::lead).
    pub async fn lead_reporting<T, E, W>(
        self,
        mut work: impl FnMut(Lease) -> W,
        mut on_error: impl FnMut(E),
    ) -> Result<T, E>
    where
        E: From<Error>,
        W: Future<Output = Result<T, E>>,
    {
        loop {
            match self.clone().acquire().await {
                Ok(lease) => {
                    let works = work(lease.copy());
                    match term(lease, works).await {
                        Term::Over(result) => return result,
                        // By now the lease is being released.
                        Term::Lost(error) => on_error(error),
                    }
                }
                Err(error) if may_be_mended(&error) => {
                    tracing::warn!(%error, "cannot stand for election: the candidate tries again");
                }
                Err(error) => return Err(error.into()),
            }
            sleep(PAUSE.mul_f64(0.5 + random() / 2.0)).await;
        }
    }
}

/// Whether a repeat of the acquire may succeed.
fn may_be_mended(error: &Error) -> bool {
    match error {
        Error::Unavailable { .. } | Error::Unknown { .. } | Error::Lost(_) => true,
        Error::Rejected(problem) => {
            matches!(problem.kind, ProblemKind::RateLimited | ProblemKind::Overloaded)
        }
        _ => false,
    }
}

/// How a term ended.
enum Term<T, E> {
    /// The work was done while it led.
    Over(Result<T, E>),
    Lost(E),
}

async fn term<T, E: From<Error>>(mut lease: Lease, works: impl Future<Output = Result<T, E>>) -> Term<T, E> {
    let (mut works, mut returned) = (pin!(works), None);
    let ran = lease.run(async { returned = Some(works.as_mut().await) }).await;
    let lost = match ran {
        // Whether it led to the end, the cluster knows.
        Ok(()) => lease.release().await,
        // The work itself has released the lease through its copy.
        Err(Error::Lost(Loss::Ended(EndReason::Released))) if matches!(lease.stop(), Err(Error::Lost(_))) => {
            return Term::Over(match returned {
                Some(result) => result,
                // Only the end of the client still ends the work.
                None => {
                    let ended = lease.release.cluster.while_open(async { Ok(works.await) }).await;
                    ended.unwrap_or_else(|closed| Err(closed.into()))
                }
            });
        }
        Err(lost) => {
            // Released in the background: this may be an outage.
            drop(lease);
            Err(lost)
        }
    };
    match (lost, returned) {
        (Err(Error::Lost(_)), Some(Err(error))) => Term::Lost(error),
        (Err(lost @ Error::Lost(_)), _) => Term::Lost(lost.into()),
        (_, Some(result)) => Term::Over(result),
        (Err(error), None) => Term::Over(Err(error.into())),
        (Ok(()), None) => unreachable!("work that ran has returned"),
    }
}
