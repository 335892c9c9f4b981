//! Connects to a master again and again. On each connection it claims the master, then [publishes](crate::publish),
//! [sweeps](crate::sweep) and checks the marker until the connection is lost.

use std::convert::Infallible;
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Claimed, Connection, is_slot_error};
use crate::master::{CHECK_OTHER, Master};
use crate::settings::TIMEOUT;
use crate::{Identity, Source};

/// How often the marker is checked: bounds how long an emptied Redis, or another owner, goes unnoticed.
const CHECK: Duration = Duration::from_millis(500);
/// How long a claim is relied on. A process that was paused for longer claims again before it writes.
const CLAIM_LASTS: Duration = Duration::from_secs(2);
/// Poll interval of a claim that waits until the other masters have been checked.
const POLL_OTHERS: Duration = Duration::from_millis(10);

/// How long a replaced cluster may still write: until its next check, and until what it had sent has arrived. After a
/// network partition that may take longer; the slow sweep repairs what comes then.
const FORMER_WRITES: Duration = Duration::from_secs(5);

/// Publishes from `source` over one connection.
pub(crate) struct Session<'a, S> {
    pub(crate) master: &'a Master,
    pub(crate) source: &'a S,
    pub(crate) connection: Connection<'a>,
}

/// Why a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The connection failed, or Redis has changed.
    Failed(RedisError),
    /// Another cluster owns the master, or nobody does for certain. The fields are those of [`Claimed::Refused`].
    Refused { marker: String, owner: Option<Identity> },
}

impl From<RedisError> for End {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

/// Publishes to the master until it is retired, or this future is dropped.
pub(crate) async fn run<S: Source>(master: &Master, source: &S) {
    let sessions = async {
        loop {
            let Err(end) = serve(master, source).await;
            master.shared.waiters.forget_written();
            match end {
                End::Failed(error) => sleep(master.disconnected(&error)).await,
                End::Refused { marker, owner } => {
                    master.refused(marker, owner);
                    sleep(CHECK_OTHER).await;
                }
            }
        }
    };
    tokio::select! {
        () = sessions => {}
        () = master.retired.notified() => {}
    }
}

async fn serve<S: Source>(master: &Master, source: &S) -> Result<Infallible, End> {
    let connection = Connection::open(&master.shared.config, &master.address).await?;
    let session = Session { master, source, connection };
    session.claim().await?;
    master.reconcile();
    tokio::try_join!(session.publish(), session.sweep(), session.watch()).map(|(never, ..)| never)
}

impl<S: Source> Session<'_, S> {
    /// Checks regularly that this still is the same Redis.
    async fn watch(&self) -> Result<Infallible, End> {
        let mut evicted = self.connection.evicted().await?;
        loop {
            sleep(CHECK).await;
            self.claim().await?;
            let now = self.connection.evicted().await?;
            // Fewer, if the counter was reset.
            if now != evicted {
                self.master.shared.waiters.forget_written();
                self.master.work.resync();
                evicted = now;
            }
            if !self.master.work.retry_deferred() {
                self.master.none_deferred();
            }
            if self.master.lock().taken_over_at.take_if(|at| at.elapsed() > FORMER_WRITES).is_some() {
                self.master.work.resync();
            }
        }
    }

    /// Makes the marker name this cluster. If it did not, everything is compared with the table.
    pub(crate) async fn claim(&self) -> Result<(), End> {
        let Self { master, .. } = self;
        let sent = Instant::now();
        let mut claimed = self.try_claim().await?;
        if matches!(claimed, Claimed::Refused { owner: None, .. }) && master.lock().refused_by.is_none() {
            // No marker here. The other masters are being checked right now; one that is away is not waited for, and
            // this one is checked again later.
            let all_seen = async {
                while !master.shared.owners.all_seen() {
                    sleep(POLL_OTHERS).await;
                }
            };
            let _ = timeout(TIMEOUT, all_seen).await;
            claimed = self.try_claim().await?;
        }
        let (is_held, redis) = (claimed == Claimed::Held, &master.address);
        {
            let mut state = master.lock();
            match claimed {
                Claimed::Refused { marker, owner } => return Err(End::Refused { marker, owner }),
                Claimed::Held => {}
                Claimed::Vacant => tracing::info!(%redis, "found no marker; publishing all keys"),
                Claimed::TakenOver(Identity { cluster_id: from, .. }) => {
                    tracing::warn!(%redis, %from, "took over this Redis from another cluster; publishing all keys");
                    state.taken_over_at = Some(Instant::now());
                }
            }
            state.claimed_at = sent;
            state.refused_by = None;
        }
        if !is_held {
            master.shared.waiters.forget_written();
            master.reconcile();
        }
        Ok(())
    }

    /// Claims again if the last claim is old: this process may have been paused, and another cluster own the master now.
    pub(crate) async fn renew_claim(&self) -> Result<(), End> {
        let is_old = self.master.lock().claimed_at.elapsed() > CLAIM_LASTS;
        if is_old { self.claim().await } else { Ok(()) }
    }

    async fn try_claim(&self) -> Result<Claimed, RedisError> {
        let Self { master, source, connection } = self;
        let (owners, address) = (&master.shared.owners, &master.address);
        let revision = source.views(&[]).revision;
        let seen = match master.silent_marker() {
            Some(silent) => silent,
            // Claims a master without a marker.
            None if owners.may_claim(address) => String::new(),
            // Matches no marker.
            None => "?".to_owned(),
        };
        let mut error = RedisError::from((ErrorKind::InvalidClientConfig, "the master has no slots"));
        let markers = master.lock().markers.clone();
        for marker in &markers {
            match connection.claim(marker, source.identity(), revision, &seen).await {
                Err(unserved) if is_slot_error(&unserved) => error = unserved,
                claimed => return claimed.inspect(|claimed| owners.note(address, claimed)),
            }
        }
        Err(error)
    }
}
