//! The handle of a lease.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::{Stream, stream};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_wire::{Claim, EndReason, FENCE_HEADER, Grant, KEY_HEADER, Key, LeaseId, TOKEN_HEADER, Token};

use crate::attempts::RETRY_FOR;
use crate::held::Held;
use crate::release::ReleaseGuard;
use crate::renewal::Renewals;
use crate::{Error, Loss, State};

/// The most bytes of the claims of a connection.
const MAX_CLAIMS: usize = 8 << 10;

/// A granted lease. It is renewed in the background until it is [released](Self::release) or dropped.
///
/// Dropping it releases it in the background, best effort. If its runtime has ended, or ends before that is done, it is released by
/// another thread, for which the drop, or the end of the runtime, waits: for a second in all. With
/// [`hold_at_least`](crate::Lock::hold_at_least), the keys stay taken until that time has passed.
#[derive(Debug)]
#[must_use = "dropping a lease releases it"]
pub struct Lease {
    pub(crate) held: Arc<Held>,
    pub(crate) renewals: Arc<Renewals>,
    /// Armed until the lease is released, or left to its id.
    pub(crate) release: ReleaseGuard,
    pub(crate) mirrored: Option<bool>,
}

impl Lease {
    /// The fencing token: pass it with every write to what the lease protects.
    pub fn token(&self) -> Token {
        self.held.token
    }

    /// The lowest token that may still be alive on `key`, as of the last confirmation: a guard raises its number to this.
    /// `None` if the lease has no such key. With an exclusive lease it is the token itself.
    pub fn fence(&self, key: impl AsRef<str>) -> Option<Token> {
        self.held.read_grant(|grant| {
            grant
                .keys
                .iter()
                .find(|granted| granted.key.as_str() == key.as_ref())
                .map(|granted| granted.fence)
        })
    }

    /// What a guard needs to admit an access to what `key` protects: the token and the [fence](Self::fence), as `ringfence_guard`
    /// takes them. Take a new one for each access: the fence of a shared lease rises.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease is lost, so no access can be begun with it, and [`Error::Invalid`] if it has no such key.
    pub fn claim(&self, key: impl AsRef<str>) -> Result<Claim, Error> {
        self.check()?;
        let fence = self.fence(&key).ok_or_else(|| self.lacks(key.as_ref()))?;
        Claim::new(self.token(), fence).map_err(|error| Error::invalid("grant", error.to_string()))
    }

    /// The same as headers, names and values, for a resource that is guarded over HTTP.
    ///
    /// # Errors
    /// Those of [`claim`](Self::claim).
    pub fn headers(&self, key: impl AsRef<str>) -> Result<[(&'static str, String); 3], Error> {
        let claim = self.claim(&key)?;
        Ok([
            (KEY_HEADER, utf8_percent_encode(key.as_ref(), NON_ALPHANUMERIC).to_string()),
            (TOKEN_HEADER, claim.token().to_string()),
            (FENCE_HEADER, claim.fence().to_string()),
        ])
    }

    /// The same for a connection to PostgreSQL, whose statements then claim by themselves: for the variable `PGOPTIONS`, or the `options` of a
    /// driver. The table is to be protected `by_connection` (`guard/sql/postgres.sql`). Connect anew for each lease, and
    /// `CALL ringfence.touch_all()` before the first read.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease is lost, and [`Error::Invalid`] if an older holder shares a key, as its fence rises and options do not, or
    /// if the keys take more than 8 KiB: the first message of a connection has at most 10,000 bytes.
    pub fn postgres_options(&self) -> Result<String, Error> {
        self.check()?;
        if self.held.read_grant(|grant| grant.keys.iter().any(|granted| granted.fence != grant.token)) {
            let why = "it rises, and the options of a connection do not: an older holder shares a key";
            return Err(Error::invalid("fence", why));
        }
        let mut keys = self.keys();
        keys.sort_unstable();
        let claim =
            |key: &Key| format!("{}={}", utf8_percent_encode(key.as_str(), NON_ALPHANUMERIC), self.token());
        let claims = keys.iter().map(claim).collect::<Vec<_>>().join(",");
        if claims.len() > MAX_CLAIMS {
            return Err(Error::invalid(
                "keys",
                format!("as claims of a connection they take {} of {MAX_CLAIMS} bytes", claims.len()),
            ));
        }
        Ok(format!("-c ringfence.may_claim={claims}"))
    }

    /// Its keys, in the order of the request.
    pub fn keys(&self) -> Vec<Key> {
        self.held.read_grant(|grant| grant.keys.iter().map(|granted| granted.key.clone()).collect())
    }

    /// Its id. Anyone who knows it can renew and release the lease; no public view shows it.
    pub fn lease_id(&self) -> LeaseId {
        self.held.lease_id
    }

    /// The lease as last confirmed, with what [remains](Self::remaining) as `expires_in_ms`.
    pub fn grant(&self) -> Grant {
        let remaining_ms = self.remaining().as_millis().try_into().unwrap_or(u64::MAX);
        Grant { expires_in_ms: Some(remaining_ms), ..self.held.read_grant(Grant::clone) }
    }

    /// Whether the fences were in the Redis mirror when the lease was granted; `None` if grants do not wait for that.
    pub fn mirrored(&self) -> Option<bool> {
        self.mirrored
    }

    /// How it stands now.
    pub fn state(&self) -> State {
        self.held.state()
    }

    /// How much longer it certainly lives; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Its states: how it stands now, and each change from then on. It ends with [`State::Lost`], and borrows nothing.
    pub fn states(&self) -> impl Stream<Item = State> + Send + use<> {
        let start = (Arc::clone(&self.held), None);
        stream::unfold(start, async |(held, known): (Arc<Held>, Option<State>)| {
            if let Some(State::Lost(_)) = known {
                return None;
            }
            let state = held.other_than(known).await;
            Some((state, (held, Some(state))))
        })
    }

    /// Completes when the lease is lost, with the reason. It borrows nothing: hand it to whatever has to stop.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + Sync + use<> {
        let held = Arc::clone(&self.held);
        async move { held.lost().await }
    }

    /// Completes when the lease has less than `margin` [left](Self::remaining), or is lost: for work that takes that long to
    /// stop. Renewals postpone it. After a late renewal it may be called again.
    pub fn nearly_lost(&self, margin: Duration) -> impl Future<Output = ()> + Send + Sync + use<> {
        let held = Arc::clone(&self.held);
        async move { held.has_less_than(margin).await }
    }

    /// Runs `work` while the lease lives. If no renewal succeeds, `work` is dropped before the lease can have ended. If
    /// something ends the lease at once, as a revocation or [`Client::close`](crate::Client::close) does, `work` is dropped once that
    /// is known here: others may have the keys by then. The error tells the reason. From then on `work` is not polled, not even after
    /// the machine was asleep. The error also says so if `work` was done, but not in time, as work that blocks may be.
    ///
    /// This stops work that awaits. It cannot stop work that blocks, that was spawned elsewhere, or that is on its way to
    /// the storage: only the [token](Self::token) helps against that.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        std::future::poll_fn(|context| {
            if let Poll::Ready(loss) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::Lost(loss)));
            }
            // Its timer may not have fired yet, as after a sleep of the machine.
            self.check()?;
            work.as_mut().poll(context).map(|done| self.check().map(|()| done))
        })
        .await
    }

    /// Renews it now, and waits for the response. There is no need to if the lease renews itself.
    pub async fn renew(&self) -> Result<(), Error> {
        self.check()?;
        match self.release.cluster.renew(self.lease_id(), None).await {
            Ok(confirmation) => self.held.confirm(confirmation),
            Err(Error::Lost(loss)) => self.held.lose(loss),
            Err(error) => return Err(error),
        }
        self.check()
    }

    /// Releases the keys. From now on the lease is lost for all who [wait](Self::lost) for that. With
    /// [`hold_at_least`](crate::Lock::hold_at_least), the keys stay taken until that time has passed, also if this process ends.
    ///
    /// [`Error::Lost`] says that it was lost before, as known to this client or to the cluster: what was done under it may
    /// have met another holder. [`Error::Closed`] says that the client was closed before, and released it then. After [`Error::Unknown`] and [`Error::Unavailable`] the release is repeated in the
    /// background.
    pub async fn release(mut self) -> Result<(), Error> {
        let state = self.state();
        if let Err(released) = self.stop() {
            return Err(match state {
                State::Lost(loss) if loss != Loss::Ended(EndReason::Released) => Error::Lost(loss),
                _ => released,
            });
        }
        let mut least = self.release.least.filter(|least| !least.is_over());
        // If this future is dropped, the release goes on in the background. The client may be closed meanwhile: it waits for this.
        let released = match &mut least {
            Some(least) => self.release.cluster.keep(self.lease_id(), least, RETRY_FOR).await,
            None => self.release.cluster.release_within(self.lease_id(), RETRY_FOR).await,
        };
        self.release.is_armed = match &released {
            Ok(()) => least.is_some(),
            Err(Error::Lost(_)) => false,
            Err(_) => true,
        };
        self.release.least = least;
        match state {
            State::Lost(loss) => Err(Error::Lost(loss)),
            State::Held | State::Unknown => released,
        }
    }

    /// Leaves the lease as it is: nothing renews it any more, and it ends with its time-to-live unless somebody renews or
    /// releases it by this id.
    pub fn into_id(mut self) -> LeaseId {
        // A copy leaves nothing, as the other handle still has the lease.
        if std::mem::take(&mut self.release.is_armed) {
            // A closed client has released it. Whoever adopts it learns that.
            let _ = self.renewals.remove(self.lease_id());
        }
        self.lease_id()
    }

    /// Says that a guard has refused the [token](Self::token) as stale: a later lease on the key has been there. From now on this lease
    /// is lost, for [`Loss::Stale`], for all who [wait](Self::lost) for that. Returns the error to end the work with.
    ///
    /// ```
    /// # use ringfence_client::{Error, Lease};
    /// # async fn put(_: [(&str, String); 3]) -> u16 { 200 }
    /// async fn write(lease: &Lease) -> Result<(), Error> {
    ///     match put(lease.headers("accounts/42")?).await {
    ///         412 => Err(lease.stale()),
    ///         _ => Ok(()),
    ///     }
    /// }
    /// ```
    pub fn stale(&self) -> Error {
        self.held.lose(Loss::Stale);
        self.check().err().unwrap_or(Error::Lost(Loss::Stale))
    }

    /// Another handle. It keeps no lease: that ends when the first handle is dropped. After a [release](Self::release) by this one, the first one
    /// releases nothing.
    pub fn copy(&self) -> Self {
        let (held, renewals) = (Arc::clone(&self.held), Arc::clone(&self.renewals));
        Self { held, renewals, release: self.release.disarmed(), mirrored: self.mirrored }
    }

    fn lacks(&self, key: &str) -> Error {
        let keys: Vec<_> = self.keys().iter().map(Key::to_string).collect();
        Error::invalid("key", format!("{key:?} is none of this lease's: {}", keys.join(", ")))
    }

    /// An error if it is lost.
    fn check(&self) -> Result<(), Error> {
        match self.state() {
            State::Lost(loss) => Err(Error::Lost(loss)),
            State::Held | State::Unknown => Ok(()),
        }
    }

    /// From then on, only this handle can release the lease. Fails if it was released before: by the closed client, or by another
    /// handle.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        if self.release.counted.is_some() {
            return Ok(());
        }
        // Counted before it is removed: so `close` finds it among the leases or among the releases.
        let counted = self.release.cluster.releases.count();
        let removed = self.renewals.remove(self.lease_id());
        self.release.least = self.held.leave(self.release.least);
        self.release.is_armed = removed.is_ok();
        self.release.counted = removed.is_ok().then_some(counted);
        removed
    }
}

/// The guard then releases it.
impl Drop for Lease {
    fn drop(&mut self) {
        if self.release.is_armed {
            // If it fails, there is nothing to release.
            let _ = self.stop();
        }
    }
}
