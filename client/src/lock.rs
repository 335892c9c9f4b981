//! The request for a lease, built step by step.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ringfence_wire::{AcquireRequest, Holder, Key, MAX_TTL_MS, Metadata, Mode, Ttl, Wait, WantedKey};

use crate::acquire::{Acquire, Granted};
use crate::clock::Moment;
use crate::held::Held;
use crate::lifetime::Lifetime;
use crate::outlive::Least;
use crate::release::ReleaseGuard;
use crate::renewal::Renewals;
use crate::{Error, Lease};

/// A request for a lease, from [`Client::lock`](crate::Client::lock). By default the lease is exclusive, lives 15 s unless
/// renewed, and is renewed until it is dropped; the acquire waits for ever, as with a mutex.
///
/// What is wrong with the request shows in [`acquire`](Self::acquire), as [`Error::Invalid`] with the field's name, and
/// nothing is sent.
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired before `acquire` or `try_acquire`"]
pub struct Lock {
    renewals: Arc<Renewals>,
    /// A key without a mode takes that of the request.
    keys: Vec<(String, Option<Mode>)>,
    is_shared: bool,
    limit: Option<u32>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    holder: Option<String>,
    metadata: BTreeMap<String, String>,
    renews: bool,
    max_hold: Option<Duration>,
    hold_at_least: Option<Duration>,
}

impl Lock {
    pub(crate) fn new(renewals: Arc<Renewals>) -> Self {
        Self {
            renewals,
            keys: Vec::new(),
            is_shared: false,
            limit: None,
            ttl: None,
            wait: None,
            holder: None,
            metadata: BTreeMap::new(),
            renews: true,
            max_hold: None,
            hold_at_least: None,
        }
    }

    /// One more key, granted in the same step.
    pub fn and(mut self, key: impl AsRef<str>) -> Self {
        self.keys.push((key.as_ref().to_owned(), None));
        self
    }

    /// One more key, with a mode of its own.
    pub fn and_wanted(mut self, wanted: WantedKey) -> Self {
        self.keys.push((wanted.key.as_str().to_owned(), Some(wanted.mode)));
        self
    }

    /// Shares the keys with other shared holders: a read lock.
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Shares the keys, with at most `holders` in all: a semaphore. If limits differ on one key, the smallest counts.
    pub fn limit(self, holders: u32) -> Self {
        Self { is_shared: true, limit: Some(holders), ..self }
    }

    /// How long the lease lives unless renewed, from 100 ms to 24 h. Others wait that long if this process vanishes. The
    /// state becomes unknown once the cluster is silent for a third of it. Nothing below a few seconds survives a change of
    /// the leader.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Waits in the queue for at most this long. By default: for ever.
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// A public label of the holder: at most 256 bytes.
    pub fn holder(self, holder: impl Into<String>) -> Self {
        Self { holder: Some(holder.into()), ..self }
    }

    /// One more public entry about the holder: 4 KiB in all.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Does not renew in the background. [`Lease::renew`] still does.
    pub fn no_renew(self) -> Self {
        Self { renews: false, ..self }
    }

    /// Gives up the lease after this time, even while it is renewed: it is [lost](crate::Loss::MaxHold), its work ends, and
    /// it is released when it is dropped. Counts from the grant.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { max_hold: Some(max_hold), ..self }
    }

    /// Keeps others out for at least this time, at most 24 h: a lease that is released or dropped earlier lasts until then, also if this
    /// process ends, and is then released. So a job that takes a second runs once, on whichever of ten machines with
    /// clocks that differ starts it first. A lease that is lost is not kept. Counts from the grant.
    pub fn hold_at_least(self, hold_at_least: Duration) -> Self {
        Self { hold_at_least: Some(hold_at_least), ..self }
    }

    /// Acquires: waits its turn, first come first served, through changes of the leader. If this future is dropped, the
    /// place in the queue, or the grant, is released in the background.
    pub async fn acquire(self) -> Result<Lease, Error> {
        let (held, release, mirrored) = self.hold().await?;
        Ok(Lease { held, renewals: self.renewals, release, mirrored })
    }

    /// The lease, which the client now holds.
    async fn hold(&self) -> Result<(Arc<Held>, ReleaseGuard, Option<bool>), Error> {
        let request = self.request()?;
        let cluster = &self.renewals.cluster;
        // `close` waits until this call has given back what it may have been granted.
        let _acquiring = cluster.releases.count();
        let acquire = async {
            // A lookup is not part of the wait.
            cluster.nodes.resolve().await;
            Acquire::new(cluster, &request, self.wait).run().await
        };
        let Granted { confirmation, mirrored, mut release } = cluster.while_open(acquire).await?;
        // The request may have waited for the grant for long.
        let least = self.hold_at_least.map(|time| Least::new(Moment::now(), time));
        let mut lifetime = Lifetime::new(&confirmation);
        if let Some(max_hold) = self.max_hold {
            lifetime = lifetime.at_most_until(confirmation.sent.after(max_hold));
        }
        if !self.renews {
            lifetime = lifetime.without_renewals();
        }
        let held = Arc::new(Held::new(confirmation.grant, lifetime));
        self.renewals.add(&held, least, &release.runtime)?;
        // What nobody gets is released at once.
        release.least = least;
        Ok((held, release, mirrored))
    }

    /// Tries once: [`Error::Held`] if a key is not free.
    pub async fn try_acquire(self) -> Result<Lease, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    pub(crate) fn request(&self) -> Result<AcquireRequest, Error> {
        self.check_least()?;
        let limit = self.limit.map(|limit| {
            NonZeroU32::new(limit).ok_or_else(|| Error::invalid("limit", "a limit is at least 1"))
        });
        let limit = limit.transpose()?;
        let mode = if self.is_shared { Mode::Shared { limit } } else { Mode::Exclusive };
        let wanted = |(index, (key, own)): (usize, &(String, Option<Mode>))| {
            Ok(WantedKey { key: parse_key(key, &format!("keys[{index}]"))?, mode: own.unwrap_or(mode) })
        };
        let holder = self.holder.as_deref().map(|holder| {
            Holder::new(holder).ok_or_else(|| Error::invalid("holder", "a holder has at most 256 bytes"))
        });
        let request = AcquireRequest {
            keys: self.keys.iter().enumerate().map(wanted).collect::<Result<_, Error>>()?,
            ttl_ms: self.ttl.map_or(Ok(Ttl::default()), parse_ttl)?,
            wait_ms: Wait::default(),
            keep_place: false,
            holder: holder.transpose()?,
            metadata: Metadata::new(self.metadata.clone())
                .ok_or_else(|| Error::invalid("metadata", "metadata has at most 4,096 bytes in total"))?,
        };
        request.check()?;
        Ok(request)
    }

    fn check_least(&self) -> Result<(), Error> {
        let Some(least) = self.hold_at_least else { return Ok(()) };
        if least > Duration::from_millis(MAX_TTL_MS.into()) {
            return Err(Error::invalid("hold_at_least", "is at most 24 h"));
        }
        if self.max_hold.is_some_and(|most| least > most) {
            return Err(Error::invalid("hold_at_least", "must not be more than max_hold"));
        }
        Ok(())
    }
}

/// `field` is where an invalid key stands.
pub(crate) fn parse_key(text: &str, field: &str) -> Result<Key, Error> {
    Key::new(text).map_err(|error| Error::invalid(field, format!("{text:?}: {error}")))
}

pub(crate) fn parse_ttl(ttl: Duration) -> Result<Ttl, Error> {
    let ms = u32::try_from(ttl.as_millis()).ok().and_then(Ttl::from_ms);
    ms.ok_or_else(|| Error::invalid("ttl", "a time-to-live is from 100 ms to 24 h"))
}
