use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::RedisError;
use ringfence_tls::Authorities;
use ringfence_wire::{Key, Revision};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::marker::furthest_marker;
use crate::master::{Master, Shared};
use crate::owners::Owners;
use crate::session;
use crate::settings::MirrorMode;
use crate::status::{State, Status};
use crate::topology::{MasterAt, discover};
use crate::waiters::Waiters;
use crate::{Changed, Marker, Settings, SettingsError, Source, measure};

/// Changed keys taken from the source at once.
const TAKE: usize = 1_024;
/// How long changes gather if no answer waits for them: a key acquired and released meanwhile is written once.
const GATHER: Duration = Duration::from_millis(50);
/// How often the masters are searched for and the gauges are set.
const DISCOVER: Duration = Duration::from_secs(1);
/// The shortest time between two searches.
const RETRY: Duration = Duration::from_millis(200);

/// Publishes a cluster's fences to Redis. Make one per process; clones share it.
#[derive(Clone)]
pub struct Mirror {
    shared: Arc<Shared>,
    /// `None` while nothing is published.
    publication: Arc<Mutex<Option<Publication>>>,
}

#[derive(Default)]
struct Publication {
    masters: Vec<Arc<Master>>,
    /// While no master is found: the number of keys that wait for one, and since when.
    backlog: Option<(usize, Instant)>,
    last_error: Option<String>,
}

impl Mirror {
    /// Checks the settings. Connects to nothing before [`Mirror::publish`].
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let config = settings.check()?;
        measure::show(&Status::standby());
        let (waiters, owners) = (Waiters::default(), Owners::default());
        let shared = Shared { config, waiters, owners, suspect: Notify::new(), failed: Notify::new() };
        Ok(Self { shared: Arc::new(shared), publication: Arc::default() })
    }

    /// Whether answers wait for Redis.
    pub fn mode(&self) -> MirrorMode {
        self.shared.config.settings.mode
    }

    /// The authorities of Redis, if their file is named. Each connection is made with those of the last look at it.
    pub fn authorities(&self) -> Option<Arc<Authorities>> {
        self.shared.config.authorities.clone()
    }

    /// Publishes from `source`. Run it while this node leads, and drop it when the node no longer does. It needs a tokio
    /// runtime with I/O and time, which may be another than the one that serves clients.
    pub async fn publish<S: Source>(&self, source: S) -> Infallible {
        let _publishing = Publishing::begin(self);
        let first = loop {
            match discover(&self.shared.config).await {
                Ok(found) => break found,
                Err(error) => {
                    self.no_master(&error, source.count_changed());
                    // Nobody takes them now.
                    self.shared.waiters.clear_rewrites();
                    measure::show(&self.status());
                    sleep(RETRY).await;
                }
            }
        };
        let run = |master: Arc<Master>| {
            let source = &source;
            async move { session::run(&master, source).await }
        };
        // All in one task: nothing sees half of a change of the masters.
        let mut sessions: FuturesUnordered<_> = self.adopt(first).into_iter().map(run).collect();
        let mut dispatch = pin!(self.dispatch(&source));
        let mut discovered = pin!(self.discover_again());
        loop {
            tokio::select! {
                found = &mut discovered => {
                    // If nobody can be asked, the masters stay as they were.
                    sessions.extend(found.map(|found| self.adopt(found)).unwrap_or_default().into_iter().map(run));
                    discovered.set(self.discover_again());
                }
                Some(()) = sessions.next() => {}
                never = &mut dispatch => match never {},
            }
        }
    }

    /// Waits until readers of Redis see all `keys` as of `revision` or later. False after the timeout, and as soon as that is
    /// in vain: nothing is published, or the state of a key's master is [`State::Failing`] or worse.
    pub async fn wait_published(&self, keys: &[Key], revision: Revision) -> bool {
        tokio::select! {
            biased;
            written = self.shared.waiters.wait(keys, revision, self.shared.config.settings.timeout) => written,
            () = self.in_vain(keys) => false,
        }
    }

    /// Of the clusters that have left a marker in Redis, the one that came furthest, and the address of its master.
    /// Masters that do not answer within about a second are logged and skipped: no new cluster waits for Redis.
    pub async fn furthest_marker(&self) -> Option<(String, Marker)> {
        furthest_marker(&self.shared.config).await
    }

    /// The state of the mirror.
    pub fn status(&self) -> Status {
        let publication = self.lock();
        let Some(Publication { masters, backlog, last_error }) = publication.as_ref() else {
            return Status::standby();
        };
        let masters: Vec<_> = masters.iter().map(|master| master.status()).collect();
        let no_master = no_master(last_error.as_deref());
        let (waiting, waited_ms) = backlog.map_or((0, 0), |(count, since)| {
            (count, u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
        });
        let master_error = masters.iter().filter_map(|master| master.last_error.clone()).next_back();
        Status {
            state: masters.iter().map(|master| master.state).max().unwrap_or(no_master),
            lag_keys: waiting + masters.iter().map(|master| master.lag_keys).sum::<usize>(),
            lag_ms: masters.iter().map(|master| master.lag_ms).max().unwrap_or(waited_ms),
            last_error: master_error.or_else(|| last_error.clone()),
            masters,
        }
    }

    /// Resolves when some of these keys cannot be written for now.
    async fn in_vain(&self, keys: &[Key]) {
        loop {
            // Made before the check: a failure in between wakes it too.
            let failed = self.shared.failed.notified();
            if keys.iter().any(|key| self.state_of(key) >= State::Failing) {
                return;
            }
            failed.await;
        }
    }

    /// The state of the master that has the slot of this key.
    fn state_of(&self, key: &Key) -> State {
        match self.lock().as_ref() {
            None => State::Standby,
            Some(Publication { masters, last_error, .. }) if masters.is_empty() => {
                no_master(last_error.as_deref())
            }
            // Nobody serves a slot that no master has.
            Some(Publication { masters, .. }) => {
                master_of(masters, key).map_or(State::Failing, |master| master.state())
            }
        }
    }

    /// Queues changed keys at the masters that have their slots.
    async fn dispatch<S: Source>(&self, source: &S) -> Infallible {
        let mut gathers = self.mode() == MirrorMode::Async;
        loop {
            let keys = tokio::select! {
                () = source.changed() => {
                    if gathers {
                        sleep(GATHER).await;
                    }
                    let Changed { keys, overflowed } = source.take_changed(TAKE);
                    // A full batch means that more have gathered already.
                    gathers = self.mode() == MirrorMode::Async && keys.len() < TAKE;
                    if overflowed {
                        self.masters().iter().for_each(|master| master.work.resync());
                    }
                    keys
                }
                rewrites = self.shared.waiters.rewrites() => rewrites,
            };
            let masters = self.masters();
            for key in keys {
                // Nobody reads a slot that nobody serves. Its next master is compared with everything.
                if let Some(master) = master_of(&masters, &key) {
                    master.work.mark(key);
                }
            }
            tokio::task::consume_budget().await;
        }
    }

    async fn discover_again(&self) -> Result<Vec<MasterAt>, RedisError> {
        measure::show(&self.status());
        sleep(RETRY).await;
        let _ = timeout(DISCOVER, self.shared.suspect.notified()).await;
        discover(&self.shared.config).await
    }

    /// Makes these the masters, and returns those that are new. The others compare only what changed.
    fn adopt(&self, found: Vec<MasterAt>) -> Vec<Arc<Master>> {
        self.shared.owners.set_masters(found.iter().map(|at| at.address.clone()).collect());
        let mut former = self.masters();
        let (mut masters, mut new, mut has_changed) = (Vec::new(), Vec::new(), false);
        for at in found {
            if let Some(index) = former.iter().position(|master| master.address == at.address) {
                let master = former.swap_remove(index);
                has_changed |= master.set_slots(&at.slots);
                masters.push(master);
            } else {
                let master = Master::new(at, &self.shared);
                new.push(Arc::clone(&master));
                masters.push(master);
            }
        }
        former.iter().for_each(|master| master.retired.notify_one());
        if has_changed || !new.is_empty() || !former.is_empty() {
            // A write to one master says nothing about the master that takes its place.
            self.shared.waiters.forget_written();
        }
        let mut publication = self.lock();
        let publication = publication.get_or_insert_default();
        publication.masters = masters;
        publication.backlog = None;
        publication.last_error = None;
        new
    }

    fn no_master(&self, error: &RedisError, waiting: usize) {
        measure::ERRORS.get().increment(1);
        let mut publication = self.lock();
        let publication = publication.get_or_insert_default();
        let error = error.to_string();
        if publication.last_error.as_ref() != Some(&error) {
            tracing::warn!(error, "cannot find the masters of Redis; grants continue without the mirror");
        }
        let since = publication.backlog.map_or_else(Instant::now, |(_, since)| since);
        publication.backlog = (waiting > 0).then_some((waiting, since));
        publication.last_error = Some(error);
        self.shared.failed.notify_waiters();
    }

    fn masters(&self) -> Vec<Arc<Master>> {
        self.lock().as_ref().map(|publication| publication.masters.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Publication>> {
        self.publication.lock().expect("no panic while the publication is locked")
    }
}

fn master_of<'a>(masters: &'a [Arc<Master>], key: &Key) -> Option<&'a Arc<Master>> {
    match masters {
        [only] => Some(only),
        _ => masters.iter().find(|master| master.has(key)),
    }
}

/// The state while no master is known.
fn no_master(last_error: Option<&str>) -> State {
    if last_error.is_some() { State::Failing } else { State::Connecting }
}

/// Publishing ends when it is dropped.
struct Publishing<'m>(&'m Mirror);

impl<'m> Publishing<'m> {
    fn begin(mirror: &'m Mirror) -> Self {
        *mirror.lock() = Some(Publication::default());
        mirror.shared.waiters.start();
        mirror.shared.owners.begin();
        Self(mirror)
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
        self.0.shared.waiters.stop();
        measure::show(&Status::standby());
    }
}
