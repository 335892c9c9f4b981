use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ringfence_wire::{Key, Revision};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};

use crate::answers::Answers;
use crate::master::Master;
use crate::owners::Owners;
use crate::settings::{Checked, MirrorMode};
use crate::status::{State, Status};
use crate::topology::{MasterAt, discover};
use crate::{Changed, Settings, SettingsError, Source, status};

/// Marked keys that are taken from the source at once.
const TAKE: usize = 1_024;
/// How long changes gather where no answer waits for them: a key that is taken and left meanwhile is written once.
const GATHER: Duration = Duration::from_millis(50);
/// How often the masters are looked for anew, and the gauges set.
const LOOK: Duration = Duration::from_secs(1);
/// How long to wait before the masters are looked for again, at least.
const RETRY: Duration = Duration::from_millis(200);

/// Publishes the fences of a cluster into Redis. Made once per process; clones share it.
#[derive(Clone)]
pub struct Mirror {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Checked,
    pub(crate) answers: Answers,
    pub(crate) owners: Owners,
    publication: Mutex<Option<Publication>>,
}

/// What [`Mirror::publish`] is doing.
#[derive(Default)]
struct Publication {
    masters: Vec<Arc<Master>>,
    /// While no master is found: how many keys wait for one, and since when there have been any.
    backlog: Option<(usize, Instant)>,
    last_error: Option<String>,
}

impl Mirror {
    /// Checks the settings. Nothing is connected to before [`Mirror::publish`].
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let shared = Shared {
            settings: settings.check()?,
            answers: Answers::default(),
            owners: Owners::default(),
            publication: Mutex::default(),
        };
        status::begin();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether answers wait for Redis.
    pub fn mode(&self) -> MirrorMode {
        self.shared.settings.mode
    }

    pub(crate) fn settings(&self) -> &Checked {
        &self.shared.settings
    }

    /// Publishes from `source`: to be run for as long as this node leads, and dropped when it does not. It needs a tokio
    /// runtime with I/O and time, which may be another than the one that serves clients.
    pub async fn publish<S: Source>(&self, source: S) -> Infallible {
        let _publishing = Publishing::begin(&self.shared);
        let found = loop {
            match discover(&self.shared.settings).await {
                Ok(found) => break found,
                Err(error) => {
                    self.shared.cannot_find(&error, source.count_changed());
                    // Nobody hands them on now: those who wait hear no when their time is over.
                    self.shared.answers.forget_asked();
                    self.status().measure();
                    sleep(RETRY).await;
                }
            }
        };
        let (new, mut masters) = unbounded_channel::<Arc<Master>>();
        let source = &source;
        let run = async move {
            let mut running = FuturesUnordered::new();
            loop {
                tokio::select! {
                    Some(master) = masters.recv() => running.push(async move { master.run(source).await }),
                    Some(()) = running.next() => {}
                }
            }
        };
        // All in one task: nobody sees half of a change of the masters.
        tokio::select! {
            never = self.follow(found, &new) => never,
            never = self.dispatch(source) => never,
            never = run => never,
        }
    }

    /// Waits until all `keys` stand in Redis as of `revision` or later, for readers to see; false after the timeout,
    /// and where nothing is published.
    pub async fn stands(&self, keys: &[Key], revision: Revision) -> bool {
        self.shared.answers.wait(keys, revision, self.shared.settings.timeout).await
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let publication = self.shared.publication();
        let Some(Publication { masters, backlog, last_error }) = publication.as_ref() else {
            return Status::standby();
        };
        let masters: Vec<_> = masters.iter().map(|master| master.status()).collect();
        let nowhere = if last_error.is_some() { State::Failing } else { State::Connecting };
        let (waiting, waited_ms) = backlog.map_or((0, 0), |(count, since)| {
            (count, u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
        });
        let of_masters = masters.iter().filter_map(|master| master.last_error.clone()).next_back();
        Status {
            state: masters.iter().map(|master| master.state).max().unwrap_or(nowhere),
            lag_keys: waiting + masters.iter().map(|master| master.lag_keys).sum::<usize>(),
            lag_ms: masters.iter().map(|master| master.lag_ms).max().unwrap_or(waited_ms),
            last_error: of_masters.or_else(|| last_error.clone()),
            masters,
        }
    }

    /// Hands marked keys on to the masters that have their slots.
    async fn dispatch<S: Source>(&self, source: &S) -> Infallible {
        let mut gathers = self.mode() == MirrorMode::Async;
        loop {
            let keys = tokio::select! {
                () = source.changed() => {
                    if gathers {
                        sleep(GATHER).await;
                    }
                    let Changed { keys, overflowed } = source.take_changed(TAKE);
                    // Not while there are more: they have gathered.
                    gathers = self.mode() == MirrorMode::Async && keys.len() < TAKE;
                    if overflowed {
                        self.shared.masters().iter().for_each(|master| master.due.all());
                    }
                    keys
                }
                asked = self.shared.answers.asked() => asked,
            };
            let masters = self.shared.masters();
            for key in keys {
                let owner = match &masters[..] {
                    [one] => Some(one),
                    _ => masters.iter().find(|master| master.has(&key)),
                };
                // A slot that nobody serves has nobody to read it; whoever serves it next is told all.
                if let Some(owner) = owner {
                    owner.pending.mark(key);
                }
            }
            tokio::task::consume_budget().await;
        }
    }

    /// Keeps the list of masters as Redis has it, hands on those that are `new`, and sets the gauges.
    async fn follow(&self, first: Vec<MasterAt>, new: &UnboundedSender<Arc<Master>>) -> Infallible {
        let suspect = Arc::new(Notify::new());
        let mut found = Ok(first);
        loop {
            // Where nobody can be asked, the masters are those that were found before.
            if let Ok(found) = found {
                self.adopt(found, &suspect, new);
            }
            self.status().measure();
            sleep(RETRY).await;
            let _ = timeout(LOOK, suspect.notified()).await;
            found = discover(&self.shared.settings).await;
        }
    }

    /// Of those that were masters before, only what changed is compared anew.
    fn adopt(&self, found: Vec<MasterAt>, suspect: &Arc<Notify>, new: &UnboundedSender<Arc<Master>>) {
        let mut former = self.shared.masters();
        let mut masters = Vec::new();
        let mut has_changed = false;
        for at in found {
            let known = former.iter().position(|master| master.is_at(&at));
            if let Some(known) = known {
                let master = former.swap_remove(known);
                has_changed |= master.get(&at.slots);
                masters.push(master);
            } else {
                let master = Master::new(at, &self.shared, suspect);
                has_changed = true;
                // It is received as long as anything is published.
                let _ = new.send(Arc::clone(&master));
                masters.push(master);
            }
        }
        has_changed |= !former.is_empty();
        for master in former {
            master.retire();
            self.shared.owners.is_gone(&master.address());
        }
        if has_changed {
            // What stood on a master need not stand on the one that takes its place.
            self.shared.answers.forget();
        }
        let mut publication = self.shared.publication();
        let publication = publication.get_or_insert_default();
        publication.masters = masters;
        publication.backlog = None;
    }
}

impl Shared {
    fn cannot_find(&self, error: &redis::RedisError, waiting: usize) {
        metrics::counter!("ringfence_mirror_errors_total").increment(1);
        let mut publication = self.publication();
        let publication = publication.get_or_insert_default();
        let error = error.to_string();
        if publication.last_error.as_ref() != Some(&error) {
            tracing::warn!(error, "cannot find Redis; grants go on without it");
        }
        let since = publication.backlog.map_or_else(Instant::now, |(_, since)| since);
        let backlog = (waiting > 0).then_some((waiting, since));
        *publication = Publication { masters: Vec::new(), backlog, last_error: Some(error) };
    }

    /// The addresses of all masters.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.masters().iter().map(|master| master.address()).collect()
    }

    fn masters(&self) -> Vec<Arc<Master>> {
        self.publication().as_ref().map(|publication| publication.masters.clone()).unwrap_or_default()
    }

    fn publication(&self) -> MutexGuard<'_, Option<Publication>> {
        self.publication.lock().expect("no panic while the publication is locked")
    }
}

/// While it lasts, this node publishes.
struct Publishing<'s>(&'s Shared);

impl<'s> Publishing<'s> {
    fn begin(shared: &'s Shared) -> Self {
        *shared.publication() = Some(Publication::default());
        shared.answers.open();
        shared.owners.begin();
        Self(shared)
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        *self.0.publication() = None;
        self.0.answers.close();
        Status::standby().measure();
    }
}
