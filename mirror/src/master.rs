//! One Redis master, for as long as this node leads: connects again and again, claims it, and lets two duties run on
//! the connection, [publishing](crate::publish) and [sweeping](crate::sweep), until it is lost.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use ringfence_wire::Key;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Connection, Found, Left, TIMEOUT, is_elsewhere};
use crate::due::Due;
use crate::mirror::Shared;
use crate::names::Slots;
use crate::pending::Pending;
use crate::status::{MasterStatus, State};
use crate::topology::{MasterAt, address};
use crate::{Identity, Source};

/// How often the marker is looked at: how soon it is noticed that Redis was emptied, or belongs to another.
const LOOK: Duration = Duration::from_millis(500);
/// Waits between two attempts to connect: the first, and the longest.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long a claim is relied on without another. A process that was paused for longer claims again before it writes.
const CLAIM_LASTS: Duration = Duration::from_secs(2);
/// How long after it was replaced a cluster usually may still write: until it looks, and what it had sent has arrived. After a
/// network partition that may take longer; the slow sweep repairs what comes then.
const FORMER_WRITES: Duration = Duration::from_secs(5);
/// How often a cluster that has left the master to another looks whether that is gone.
const LOOK_AFTER_OTHER: Duration = Duration::from_secs(2);
/// How often it is looked whether the other masters have been seen, where a claim waits for that.
const LOOK_AT_OTHERS: Duration = Duration::from_millis(10);
/// How many of these looks in a row must find the same: a cluster that is alive changes its marker every [`LOOK`]. They are
/// counted, not timed, so that Redis being away for a while makes nobody look dead.
const QUIET_LOOKS: u32 = 8;

/// A master and what is to be done there.
pub(crate) struct Master {
    host: String,
    port: u16,
    place: Mutex<Place>,
    pub(crate) pending: Pending,
    pub(crate) due: Arc<Due>,
    pub(crate) shared: Arc<Shared>,
    /// To be told when the master may be another by now.
    pub(crate) suspect: Arc<Notify>,
    retired: Notify,
    now: Mutex<Now>,
}

/// What belongs there.
struct Place {
    slots: Slots,
    /// What the marker may be called.
    markers: Vec<String>,
}

struct Now {
    state: State,
    /// Whether it refused the last that was written, though it can be reached.
    refuses: bool,
    /// Whether keys wait because their slots are not served there.
    waits: bool,
    /// When the master was last claimed, with success.
    claimed: Instant,
    /// When it was taken over from another cluster, until everything was compared once more after [`FORMER_WRITES`].
    taken_over: Option<Instant>,
    /// The marker that this cluster has left as it was, and at how many looks in a row that was seen.
    left: Option<(String, u32)>,
    left_to: Option<Identity>,
    last_error: Option<String>,
    /// The error that was last warned of, until all was well again.
    warned: Option<String>,
    /// How long to wait before the next attempt to connect.
    retry: Duration,
}

/// Why a connection is not used any longer.
#[derive(Debug)]
pub(crate) enum Lost {
    /// It failed, or Redis is not what it was.
    Failed(RedisError),
    /// Another cluster has the master.
    Other(Left),
}

impl From<RedisError> for Lost {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

impl Master {
    pub(crate) fn new(at: MasterAt, shared: &Arc<Shared>, suspect: &Arc<Notify>) -> Arc<Self> {
        let MasterAt { host, port, slots } = at;
        let markers = shared.settings.names.markers(&slots);
        let due = Arc::new(Due::default());
        let now = Now {
            state: State::Connecting,
            refuses: false,
            waits: false,
            claimed: Instant::now(),
            taken_over: None,
            left: None,
            left_to: None,
            last_error: None,
            warned: None,
            retry: RETRY,
        };
        Arc::new(Self {
            host,
            port,
            place: Mutex::new(Place { slots, markers }),
            pending: Pending::new(&due),
            due,
            shared: Arc::clone(shared),
            suspect: Arc::clone(suspect),
            retired: Notify::new(),
            now: Mutex::new(now),
        })
    }

    /// Whether this is the master there.
    pub(crate) fn is_at(&self, at: &MasterAt) -> bool {
        (&self.host, self.port) == (&at.host, at.port)
    }

    /// It has these slots now. What waits for others is theirs who got them: they compare everything. True if anything has
    /// changed.
    pub(crate) fn get(&self, slots: &Slots) -> bool {
        let mut place = self.place();
        if place.slots == *slots {
            return false;
        }
        let gains = !slots.are_among(&place.slots);
        let markers = self.shared.settings.names.markers(slots);
        *place = Place { slots: slots.clone(), markers };
        drop(place);
        self.pending.keep(|key| self.has(key));
        if gains {
            let mut now = self.now();
            if now.state == State::Published {
                now.state = State::Reconciling;
            }
            drop(now);
            self.due.all();
        }
        true
    }

    /// It is a master no longer: [`Master::run`] returns.
    pub(crate) fn retire(&self) {
        self.retired.notify_one();
    }

    /// Publishes to it until it is [retired](Master::retire) or this is dropped.
    pub(crate) async fn run<S: Source>(&self, source: &S) {
        tokio::select! {
            never = self.serve_again_and_again(source) => match never {},
            () = self.retired.notified() => {}
        }
    }

    async fn serve_again_and_again<S: Source>(&self, source: &S) -> Infallible {
        loop {
            let Err(lost) = self.serve(source).await;
            self.shared.answers.forget();
            match lost {
                Lost::Failed(error) => {
                    self.failed(&error, State::Failing);
                    self.suspect.notify_one();
                    let retry = self.now().retry;
                    sleep(retry).await;
                    self.now().retry = (retry * 2).min(RETRY_MAX);
                }
                Lost::Other(left) => {
                    self.leave(left);
                    sleep(LOOK_AFTER_OTHER).await;
                }
            }
        }
    }

    async fn serve<S: Source>(&self, source: &S) -> Result<Infallible, Lost> {
        let settings = &self.shared.settings;
        let client = settings.client(&self.host, self.port)?;
        let connection = Connection::open(&client, &settings.names, settings.retention).await?;
        self.claim(source, &connection).await?;
        self.due.all();
        self.enter(State::Reconciling);
        let duties = tokio::try_join!(
            self.publish(source, &connection),
            self.sweep(source, &connection),
            self.watch(source, &connection),
        );
        duties.map(|(never, ..)| never)
    }

    /// Looks from time to time whether this still is the Redis that it was.
    async fn watch<S: Source>(&self, source: &S, connection: &Connection) -> Result<Infallible, Lost> {
        let mut evicted = connection.evicted().await?;
        loop {
            sleep(LOOK).await;
            self.claim(source, connection).await?;
            let now = connection.evicted().await?;
            // Fewer, where somebody has reset the counter.
            if now != evicted {
                self.shared.answers.forget();
                self.due.all();
                evicted = now;
            }
            if !self.pending.retry_elsewhere() {
                self.now().waits = false;
            }
            if self.now().taken_over.take_if(|at| at.elapsed() > FORMER_WRITES).is_some() {
                self.due.all();
            }
        }
    }

    /// Sees to it that the marker names this cluster. If it did not, what stands there is to be compared with the table.
    pub(crate) async fn claim<S: Source>(&self, source: &S, connection: &Connection) -> Result<(), Lost> {
        let asked = Instant::now();
        let mut found = self.claim_marker(source, connection).await?;
        if matches!(&found, Found::Left(Left { owner: None, .. })) && self.now().left.is_none() {
            // Nobody has it, but who has the others? They are being looked at right now.
            let owners = &self.shared.owners;
            let known = async {
                while !owners.know(&self.shared.addresses()) {
                    sleep(LOOK_AT_OTHERS).await;
                }
            };
            // One that is away is not waited for: this one is looked at again later.
            let _ = timeout(TIMEOUT, known).await;
            found = self.claim_marker(source, connection).await?;
        }
        let is_own = found == Found::Own;
        let redis = self.address();
        let mut now = self.now();
        match found {
            Found::Left(left) => return Err(Lost::Other(left)),
            Found::Own => {}
            Found::Nothing => tracing::info!(redis, "there was no marker: publishing all"),
            Found::Former(Identity { cluster_id: from, .. }) => {
                tracing::warn!(redis, %from, "took this Redis over from another cluster: publishing all");
                now.taken_over = Some(Instant::now());
            }
        }
        now.claimed = asked;
        now.left = None;
        drop(now);
        if !is_own {
            self.shared.answers.forget();
            self.due.all();
            self.enter(State::Reconciling);
        }
        Ok(())
    }

    /// Claims the master again if that was long ago: this process may have been paused, and another cluster have it now.
    pub(crate) async fn keep_claim<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
    ) -> Result<(), Lost> {
        let is_old = self.now().claimed.elapsed() > CLAIM_LASTS;
        if is_old { self.claim(source, connection).await } else { Ok(()) }
    }

    async fn claim_marker<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
    ) -> Result<Found, RedisError> {
        let revision = source.views(&[]).revision;
        let owners = &self.shared.owners;
        let address = self.address();
        // Before `now` is locked: the status locks the list of masters first.
        let may_claim = owners.may_claim(&address, &self.shared.addresses());
        let seen = match &self.now().left {
            Some((seen, looks)) if *looks >= QUIET_LOOKS => seen.clone(),
            _ if may_claim => String::new(),
            // No marker reads like this.
            _ => "?".to_owned(),
        };
        let take_over = self.shared.settings.take_over;
        let markers = self.place().markers.clone();
        let mut error = RedisError::from((ErrorKind::InvalidClientConfig, "the master has no slots"));
        for marker in &markers {
            match connection.claim(marker, source.identity(), revision, &seen, take_over).await {
                Err(elsewhere) if is_elsewhere(&elsewhere) => error = elsewhere,
                answer => {
                    match &answer {
                        Ok(Found::Left(left)) => owners.is_left(&address, left.owner),
                        Ok(found) => {
                            owners.is_own(&address);
                            if *found != Found::Own {
                                owners.keep(&self.shared.addresses());
                            }
                        }
                        Err(_) => {}
                    }
                    return answer;
                }
            }
        }
        Err(error)
    }

    /// Whether the slot of this key is there.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.shared.settings.names.is_in(&self.place().slots, key)
    }

    /// Everything that was to be compared has been.
    pub(crate) fn is_reconciled(&self) {
        if !self.due.wants_all() && self.now().taken_over.is_none() {
            self.enter(State::Published);
            let mut now = self.now();
            now.warned = None;
            now.retry = RETRY;
        }
    }

    /// Some keys wait until their slots are served, there or elsewhere; the others do not.
    pub(crate) fn wait_for_slots(&self, error: &RedisError) {
        let mut now = self.now();
        if !now.waits {
            tracing::warn!(redis = self.address(), %error, "slots are moving, or are not served: their keys wait");
            now.waits = true;
        }
        now.last_error = Some(error.to_string());
        self.suspect.notify_one();
    }

    /// Notes an error that does not end the connection.
    pub(crate) fn refused(&self, error: &RedisError) {
        let state = self.now().state;
        self.failed(error, state);
        self.now().refuses = true;
    }

    pub(crate) fn accepted(&self) {
        self.now().refuses = false;
    }

    pub(crate) fn status(&self) -> MasterStatus {
        let now = self.now();
        MasterStatus {
            address: self.address(),
            state: if now.refuses { now.state.max(State::Failing) } else { now.state },
            lag_keys: self.pending.len(),
            lag_ms: u64::try_from(self.pending.age().as_millis()).unwrap_or(u64::MAX),
            left_to: now.left_to,
            last_error: now.last_error.clone(),
        }
    }

    pub(crate) fn address(&self) -> String {
        address(&self.host, self.port)
    }

    fn enter(&self, state: State) {
        let mut now = self.now();
        now.state = state;
        now.left_to = None;
    }

    fn failed(&self, error: &RedisError, state: State) {
        metrics::counter!("ringfence_mirror_errors_total").increment(1);
        let mut now = self.now();
        // Nor could the other cluster reach Redis, perhaps: its silence counts from the beginning again.
        if let Some((_, looks)) = &mut now.left {
            *looks = 0;
        }
        let error = error.to_string();
        // Once, not for each attempt.
        if now.warned.as_ref() != Some(&error) {
            tracing::warn!(redis = self.address(), error, "cannot publish to Redis; grants go on without it");
            now.warned = Some(error.clone());
        }
        now.state = state;
        now.refuses = false;
        now.last_error = Some(error);
    }

    /// Another cluster has the master, or had it a moment ago.
    fn leave(&self, Left { seen, owner }: Left) {
        let mut now = self.now();
        if let Some(Identity { cluster_id, .. }) = owner.filter(|_| now.left_to != owner) {
            tracing::error!(
                redis = self.address(),
                cluster = %cluster_id,
                "another cluster publishes to this Redis: this one does not. Give each a prefix of its own. If that one \
                 is to be replaced, stop it; this one takes over {} s later, or at once with --mirror-take-over {cluster_id}",
                u64::from(QUIET_LOOKS) * LOOK_AFTER_OTHER.as_secs()
            );
        }
        let looks = now.left.take().filter(|(before, _)| *before == seen).map_or(0, |(_, looks)| looks);
        now.left = Some((seen, looks + 1));
        now.state = State::Occupied;
        now.refuses = false;
        now.left_to = owner.or(now.left_to).or(self.shared.owners.other());
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().expect("no panic while the slots of a master are locked")
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().expect("no panic while the state of a master is locked")
    }
}
