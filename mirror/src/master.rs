//! One Redis master while this node leads: its work and its state, across connections.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::RedisError;
use ringfence_wire::Key;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::names::Slots;
use crate::owners::Owners;
use crate::redis_url::Address;
use crate::settings::Config;
use crate::status::{MasterStatus, State};
use crate::topology::MasterAt;
use crate::waiters::Waiters;
use crate::work::Work;
use crate::{Identity, measure};

/// The first and the longest pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The pause between two checks of another cluster's marker.
pub(crate) const CHECK_OTHER: Duration = Duration::from_secs(2);
/// How many checks in a row must find the same marker before this cluster takes over: a cluster that is alive changes its
/// marker far more often. They are counted, not timed, so that nobody looks dead because Redis was away.
const SILENT_CHECKS: u32 = 8;

/// What all masters share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) waiters: Waiters,
    pub(crate) owners: Owners,
    /// Wakes the search for masters: one may have changed.
    pub(crate) suspect: Notify,
    /// Wakes answers that wait: theirs may be in vain now.
    pub(crate) failed: Notify,
}

pub(crate) struct Master {
    pub(crate) address: Address,
    pub(crate) work: Work,
    pub(crate) shared: Arc<Shared>,
    pub(crate) retired: Notify,
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    slots: Slots,
    /// The possible names of the marker.
    pub(crate) markers: Vec<String>,
    state: State,
    /// Whether Redis refused the last write, though it is reachable.
    pub(crate) refuses: bool,
    /// Whether keys wait for slots that are not served here.
    pub(crate) defers: bool,
    /// When the master was last claimed with success.
    pub(crate) claimed_at: Instant,
    /// When it was taken over from another cluster; `None` once its last writes were looked for.
    pub(crate) taken_over_at: Option<Instant>,
    /// The marker that refused the last claim, and how many checks in a row found it.
    pub(crate) refused_by: Option<(String, u32)>,
    left_to: Option<Identity>,
    last_error: Option<String>,
    /// The last logged error, until all is well again.
    logged: Option<String>,
    /// The pause before the next attempt to connect.
    retry: Duration,
}

impl Master {
    pub(crate) fn new(at: MasterAt, shared: &Arc<Shared>) -> Arc<Self> {
        let MasterAt { address, slots } = at;
        let inner = Inner {
            markers: shared.config.names.markers(&slots),
            slots,
            state: State::Connecting,
            refuses: false,
            defers: false,
            claimed_at: Instant::now(),
            taken_over_at: None,
            refused_by: None,
            left_to: None,
            last_error: None,
            logged: None,
            retry: RETRY,
        };
        Arc::new(Self {
            address,
            work: Work::default(),
            shared: Arc::clone(shared),
            retired: Notify::new(),
            inner: Mutex::new(inner),
        })
    }

    /// Updates the slots; false if they are the same. Work for slots that moved away is dropped: their new master is
    /// compared with everything.
    pub(crate) fn set_slots(&self, slots: &Slots) -> bool {
        let mut inner = self.lock();
        if inner.slots == *slots {
            return false;
        }
        let gains = !slots.is_subset(&inner.slots);
        inner.slots = slots.clone();
        inner.markers = self.shared.config.names.markers(slots);
        if gains && inner.state == State::Published {
            inner.state = State::Reconciling;
        }
        drop(inner);
        self.work.retain(|key| self.has(key));
        if gains {
            self.work.resync();
        }
        true
    }

    /// Whether the slot of this key is here.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.shared.config.names.is_in(&self.lock().slots, key)
    }

    /// Compares everything: Redis may have lost data, or another cluster may have written.
    pub(crate) fn reconcile(&self) {
        self.work.resync();
        let mut inner = self.lock();
        inner.state = State::Reconciling;
        inner.left_to = None;
    }

    /// A full comparison has ended.
    pub(crate) fn reconciled(&self) {
        let wants_more = self.work.wants_resync();
        let mut inner = self.lock();
        if !wants_more && inner.taken_over_at.is_none() {
            inner.state = State::Published;
            inner.left_to = None;
            inner.logged = None;
            inner.retry = RETRY;
            inner.forget_error();
        }
    }

    /// The marker that has been silent for long enough to be replaced.
    pub(crate) fn silent_marker(&self) -> Option<String> {
        let inner = self.lock();
        inner
            .refused_by
            .as_ref()
            .filter(|(_, checks)| *checks >= SILENT_CHECKS)
            .map(|(marker, _)| marker.clone())
    }

    /// A claim was refused: another cluster owns the master, or owned it a moment ago.
    pub(crate) fn refused(&self, marker: String, owner: Option<Identity>) {
        let mut inner = self.lock();
        if let Some(Identity { cluster_id, .. }) = owner.filter(|_| inner.left_to != owner) {
            tracing::error!(
                redis = %self.address,
                cluster = %cluster_id,
                "another cluster publishes to this Redis, so this cluster does not. Give one of them another prefix. To replace \
                 the other cluster, stop it: this one takes over {} s later, or at once with --mirror-take-over {cluster_id}",
                u64::from(SILENT_CHECKS) * CHECK_OTHER.as_secs()
            );
        }
        let checks =
            inner.refused_by.take().filter(|(before, _)| *before == marker).map_or(0, |(_, checks)| checks);
        inner.refused_by = Some((marker, checks + 1));
        inner.state = State::Occupied;
        inner.refuses = false;
        inner.left_to = owner.or(inner.left_to).or(self.shared.owners.other());
        drop(inner);
        self.shared.failed.notify_waiters();
    }

    /// The connection failed. Returns the pause before the next one.
    pub(crate) fn disconnected(&self, error: &RedisError) -> Duration {
        let mut inner = self.failed(error);
        inner.state = State::Failing;
        inner.refuses = false;
        let retry = inner.retry;
        inner.retry = (retry * 2).min(RETRY_MAX);
        drop(inner);
        self.shared.suspect.notify_one();
        self.shared.failed.notify_waiters();
        retry
    }

    /// Redis refused a write, over a connection that still works.
    pub(crate) fn write_refused(&self, error: &RedisError) {
        self.failed(error).refuses = true;
        self.shared.failed.notify_waiters();
    }

    /// Redis took all that it was last sent.
    pub(crate) fn write_accepted(&self) {
        let mut inner = self.lock();
        inner.refuses = false;
        inner.forget_error();
    }

    fn failed(&self, error: &RedisError) -> MutexGuard<'_, Inner> {
        measure::ERRORS.get().increment(1);
        let mut inner = self.lock();
        // The other cluster may not have reached Redis either: its silence counts from the start.
        if let Some((_, checks)) = &mut inner.refused_by {
            *checks = 0;
        }
        let error = error.to_string();
        // Once, not for each attempt.
        if inner.logged.as_ref() != Some(&error) {
            tracing::warn!(redis = %self.address, error, "cannot publish to Redis; grants continue without the mirror");
            inner.logged = Some(error.clone());
        }
        inner.last_error = Some(error);
        inner
    }

    /// Some keys wait until their slots are served, here or elsewhere.
    pub(crate) fn deferred(&self, error: &RedisError) {
        let mut inner = self.lock();
        if !inner.defers {
            tracing::warn!(redis = %self.address, %error, "some slots are moving or not served; their keys are published later");
            inner.defers = true;
        }
        inner.last_error = Some(error.to_string());
        self.shared.suspect.notify_one();
    }

    /// No key waits for its slot.
    pub(crate) fn none_deferred(&self) {
        let mut inner = self.lock();
        inner.defers = false;
        inner.forget_error();
    }

    pub(crate) fn state(&self) -> State {
        self.lock().state()
    }

    pub(crate) fn status(&self) -> MasterStatus {
        let (lag_keys, age) = (self.work.len(), self.work.age());
        let inner = self.lock();
        MasterStatus {
            address: self.address.to_string(),
            state: inner.state(),
            lag_keys,
            lag_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            left_to: inner.left_to,
            last_error: inner.last_error.clone(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the state of a master is locked")
    }
}

impl Inner {
    fn state(&self) -> State {
        if self.refuses { self.state.max(State::Failing) } else { self.state }
    }

    /// What is over is in the log.
    fn forget_error(&mut self) {
        if self.state() == State::Published && !self.defers {
            self.last_error = None;
        }
    }
}
