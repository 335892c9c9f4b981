//! What a holder wishes, put together step by step.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ringfence_wire::{AcquireRequest, Claim, Holder, Metadata, Mode, Ttl, Wait};

use crate::acquire::{Granted, acquire};
use crate::client::{Shared, key_of, ttl_of};
use crate::held::Held;
use crate::{Error, Lease};

/// An acquire that is being put together, from [`Client::lock`](crate::Client::lock). If nothing else is said it is
/// exclusive, lives 15 s unless renewed, is renewed until it is dropped, and waits for ever, as a mutex does.
///
/// What is wrong with it shows in [`acquire`](Self::acquire), as [`Error::Invalid`] that names the field, and nothing is
/// sent.
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired before `acquire` or `try_acquire`"]
pub struct Lock {
    shared: Arc<Shared>,
    keys: Vec<Wanted>,
    mode: Mode,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    holder: Option<String>,
    metadata: BTreeMap<String, String>,
    renews: bool,
    max_hold: Option<Duration>,
    /// The first thing that could not be.
    wrong: Option<Error>,
}

#[derive(Clone, Debug)]
enum Wanted {
    /// In the mode of the whole.
    Key(String),
    /// In its own.
    Claim(Claim),
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            keys: Vec::new(),
            mode: Mode::Exclusive,
            ttl: None,
            wait: None,
            holder: None,
            metadata: BTreeMap::new(),
            renews: true,
            max_hold: None,
            wrong: None,
        }
    }

    /// One more key, to be granted in the same step.
    pub fn and(mut self, key: impl AsRef<str>) -> Self {
        self.keys.push(Wanted::Key(key.as_ref().to_owned()));
        self
    }

    /// One more key with a mode of its own.
    pub fn and_claim(mut self, claim: Claim) -> Self {
        self.keys.push(Wanted::Claim(claim));
        self
    }

    /// Holds the keys together with other shared holders: a read lock.
    pub fn shared(self) -> Self {
        let limit = self.mode.limit();
        Self { mode: Mode::Shared { limit }, ..self }
    }

    /// Holds the keys together with others, at most `holders` in all: a semaphore. Where limits differ on one key, the
    /// smallest counts.
    pub fn limit(mut self, holders: u32) -> Self {
        match NonZeroU32::new(holders) {
            Some(limit) => Self { mode: Mode::Shared { limit: Some(limit) }, ..self },
            None => {
                self.wrong.get_or_insert(Error::invalid("limit", "a limit is at least 1"));
                self
            }
        }
    }

    /// How long the lease lives unless renewed, from 100 ms to 24 h. It is how long others wait if this process vanishes,
    /// and three times as long as the cluster may be silent before the state is in doubt. Nothing below a few seconds
    /// outlives a change of the leader.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Waits in the queue no longer than this. Without it: for ever.
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// A public label of who holds: at most 256 bytes.
    pub fn holder(self, holder: impl Into<String>) -> Self {
        Self { holder: Some(holder.into()), ..self }
    }

    /// One more entry of what others are to know of the holder: 4 KiB in all.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Leaves renewing to [`Lease::renew`], or lets the lease end with its time-to-live.
    pub fn no_renew(self) -> Self {
        Self { renews: false, ..self }
    }

    /// Gives the lease up after so long, however well it is renewed: then it is [lost](crate::Loss::MaxHold), its work ends,
    /// and it is released when it is dropped. Counted from when it was granted.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { max_hold: Some(max_hold), ..self }
    }

    /// Acquires: waits its turn, first come first served, through changes of the leader. If this future is dropped, the
    /// place in the queue, or the grant, is given back in the background.
    pub async fn acquire(self) -> Result<Lease, Error> {
        let wish = self.wish()?;
        let Granted { mut lifetime, sent, grant, mirrored } = acquire(&self.shared, wish, self.wait).await?;
        if let Some(max_hold) = self.max_hold {
            lifetime = lifetime.at_most_until(sent.after(max_hold));
        }
        if !self.renews {
            lifetime = lifetime.without_renewals();
        }
        Ok(Lease::new(self.shared, Held::new(grant, lifetime), mirrored, self.renews))
    }

    /// Tries once: [`Error::Held`] if a key is not free.
    pub async fn try_acquire(self) -> Result<Lease, Error> {
        self.wait(Duration::ZERO).acquire().await
    }

    pub(crate) fn wish(&self) -> Result<AcquireRequest, Error> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let claim = |(place, wanted): (usize, &Wanted)| match wanted {
            Wanted::Key(text) => Ok(Claim { key: key_of(text, &format!("keys[{place}]"))?, mode: self.mode }),
            Wanted::Claim(claim) => Ok(claim.clone()),
        };
        let holder = self.holder.as_deref().map(|holder| {
            Holder::new(holder).ok_or_else(|| Error::invalid("holder", "a holder has at most 256 bytes"))
        });
        let wish = AcquireRequest {
            keys: self.keys.iter().enumerate().map(claim).collect::<Result<_, Error>>()?,
            ttl_ms: self.ttl.map_or(Ok(Ttl::default()), ttl_of)?,
            wait_ms: Wait::default(),
            keep_place: false,
            holder: holder.transpose()?,
            metadata: Metadata::new(self.metadata.clone())
                .ok_or_else(|| Error::invalid("metadata", "metadata has at most 4,096 bytes in all"))?,
        };
        wish.check()?;
        Ok(wish)
    }
}
