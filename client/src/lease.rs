//! A lease in the hands of its holder.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ringfence_wire::{EndReason, Grant, Key, LeaseId, Token};
use tokio::runtime::Handle;

use crate::client::Shared;
use crate::held::Held;
use crate::keeper::Keeper;
use crate::lifetime::Moment;
use crate::{Error, Loss};

/// How a lease stands, as its holder's own clock says. It never errs on the side of *held*, as long as that clock does
/// not run slow by more than 0.2 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was confirmed lately, and surely lives.
    Held,
    /// It surely lives for [`remaining`](Lease::remaining) yet, but two thirds of its time are gone and no renewal was
    /// confirmed: come to a point where you can stop. It may become held again.
    Unknown,
    /// It has ended, or may have. For good.
    Lost(Loss),
}

/// A lease that was granted: renewed in the background, until it is [released](Self::release) or dropped.
///
/// Dropping it releases it as well, in the background and once more or less: where the process ends at once, the
/// lease ends with its time-to-live.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    held: Arc<Held>,
    shared: Arc<Shared>,
    runtime: Handle,
    mirrored: Option<bool>,
    /// What is to be done when it is dropped.
    releases: bool,
}

impl Lease {
    pub(crate) fn new(shared: Arc<Shared>, held: Held, mirrored: Option<bool>, renews: bool) -> Self {
        let (held, runtime) = (Arc::new(held), Handle::current());
        if renews {
            Keeper::keep(&shared, &held, &runtime);
        }
        Self { held, shared, runtime, mirrored, releases: true }
    }

    /// Its fencing token: show it with every write to what the lease protects.
    pub fn token(&self) -> Token {
        self.held.token
    }

    /// The lowest token that may still be alive on `key`, as of the last confirmation: what a guard raises its number to.
    /// `None` where the lease has no such key. With an exclusive lease it is the token itself.
    pub fn fence(&self, key: impl AsRef<str>) -> Option<Token> {
        self.held.fence(key.as_ref())
    }

    /// Its keys, in the order that they were asked for.
    pub fn keys(&self) -> Vec<Key> {
        self.held.keys()
    }

    /// Its handle. Whoever knows it can renew and release; it stands in no public view.
    pub fn lease_id(&self) -> LeaseId {
        self.held.lease_id
    }

    /// The lease as the cluster last confirmed it, with what [remains](Self::remaining) as `expires_in_ms`.
    pub fn grant(&self) -> Grant {
        let mut grant = self.held.grant();
        grant.expires_in_ms = Some(self.remaining().as_millis().try_into().unwrap_or(u64::MAX));
        grant
    }

    /// Whether the fences stood in the Redis mirror when the lease was granted; `None` where grants do not wait for that.
    pub fn mirrored(&self) -> Option<bool> {
        self.mirrored
    }

    /// How it stands now.
    pub fn state(&self) -> State {
        self.held.state(Moment::now())
    }

    /// How long it surely lives on; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.held.remaining(Moment::now())
    }

    /// Completes when the lease is lost, with the reason. It borrows nothing: give it to whatever has to stop.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + Sync + use<> {
        let held = Arc::clone(&self.held);
        async move { held.lost().await }
    }

    /// Completes when the lease has less than `margin` [left](Self::remaining), or is lost: for what takes that long to
    /// stop. Renewals put it off, and it may be asked for again if one comes late.
    pub fn nearly_lost(&self, margin: Duration) -> impl Future<Output = ()> + Send + Sync + use<> {
        let held = Arc::clone(&self.held);
        async move { held.has_less_than(margin).await }
    }

    /// Does `work` while the lease lives. If it is lost, `work` is dropped before it can have ended, and the reason is the
    /// error; from then on `work` is not polled, not even after the machine was asleep.
    ///
    /// This stops what awaits. It cannot stop what blocks, what was spawned elsewhere, or what is on its way to the
    /// storage already: against these only the [token](Self::token) helps.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let mut work = std::pin::pin!(work);
        let mut lost = std::pin::pin!(self.lost());
        std::future::poll_fn(|context| {
            if let Poll::Ready(loss) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::Lost(loss)));
            }
            // Its timer may not have fired yet, as after a sleep of the machine.
            if let State::Lost(loss) = self.state() {
                return Poll::Ready(Err(Error::Lost(loss)));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Renews it now, and waits for the answer. There is no need to, as long as the lease renews itself.
    pub async fn renew(&self) -> Result<(), Error> {
        if let State::Lost(loss) = self.state() {
            return Err(Error::Lost(loss));
        }
        match self.shared.renew(self.lease_id(), None).await {
            Ok((sent, grant)) => self.held.confirm(sent, grant, Moment::now()),
            Err(Error::Lost(loss)) => self.held.lose(loss),
            Err(error) => return Err(error),
        }
        match self.state() {
            State::Lost(loss) => Err(Error::Lost(loss)),
            State::Held | State::Unknown => Ok(()),
        }
    }

    /// Gives the keys back. From now on the lease is lost for all who [wait](Self::lost) for that.
    ///
    /// [`Error::Lost`] says that it was lost before, as this client knew or the cluster does: what was done under it may have
    /// met another holder. After
    /// [`Error::Unknown`] and [`Error::Unavailable`] the release is repeated in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let state = self.state();
        self.give_up();
        // If this is dropped half-way, the release goes on in the background.
        let released = self.shared.release(self.lease_id()).await;
        self.releases = !matches!(released, Ok(()) | Err(Error::Lost(_)));
        match state {
            State::Lost(loss) => Err(Error::Lost(loss)),
            State::Held | State::Unknown => released,
        }
    }

    /// Lets go of the lease and leaves it as it is: it is renewed no longer, and ends with its time-to-live unless
    /// somebody else renews or releases it by this id.
    pub fn into_id(mut self) -> LeaseId {
        self.releases = false;
        self.shared.keeper.let_go(self.lease_id());
        self.lease_id()
    }

    fn give_up(&self) {
        self.shared.keeper.let_go(self.lease_id());
        self.held.lose(Loss::Ended(EndReason::Released));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.releases {
            self.give_up();
            self.shared.release_later(self.lease_id(), &self.runtime);
        }
    }
}
