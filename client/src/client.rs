//! The client, and its calls that need no memory.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_wire::{
    AddMemberRequest, Backup, BatchAnswer, BatchRelease, BatchRequest, BatchResult, Check, Grant, Key,
    KeyView, LeaseId, MAX_BATCH, Operation, ProblemKind, RenewRequest, RevokeRequest, Token, TransferRequest,
    Ttl, ValidateRequest, Verdict, VerdictsAnswer, Waiting,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::call::{ATTEMPT, Definite, attempt, definite, json, nothing, once, read};
use crate::endpoints::Endpoints;
use crate::exchange::{Answer, Call, nodes};
use crate::fate::Fate;
use crate::keeper::Keeper;
use crate::lifetime::Moment;
use crate::{ClusterStatus, Error, Listing, Lock, Watch};

/// What may stand in a path as it is; a key keeps its slashes.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// How long a release is repeated in the background.
const RELEASES_FOR: Duration = Duration::from_secs(30);

/// How fresh a read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// As new as the cluster's state was at some instant of the call.
    #[default]
    Linearizable,
    /// The asked node's own state: fast, may lag, and does not say how long leases live.
    Local,
}

/// A lease as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LeaseView {
    /// It is granted.
    Granted(Box<Grant>),
    /// It waits.
    Waiting(Waiting),
}

/// A client of one cluster. Clones are cheap and share everything: connections, and the task that renews leases.
///
/// It works on any tokio runtime that has its I/O and time enabled. A dropped lease is released on the runtime where it was
/// acquired. One task renews all leases, on the runtime of the first of them: where that ends, or is not driven, none is
/// renewed until the next is acquired. Calls that share a request go on the runtime of one of them. So runtimes that come and
/// go take a client each.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

/// What a client and its leases share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) endpoints: Endpoints,
    pub(crate) keeper: Keeper,
    /// How many releases go on in the background.
    releases: watch::Sender<usize>,
}

impl Client {
    /// A client of the cluster whose nodes are at `urls` (`http://host:port`; some of them are enough). Nothing is sent yet:
    /// a cluster that cannot be reached shows in the first call.
    pub fn connect<S: AsRef<str>>(urls: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let endpoints = Endpoints::new(nodes(urls)?);
        let shared = Shared { endpoints, keeper: Keeper::default(), releases: watch::Sender::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The start of an acquire of `key`.
    pub fn lock(&self, key: impl AsRef<str>) -> Lock {
        self.lock_all([key])
    }

    /// The start of an acquire of several keys: all of them in one step, or none.
    pub fn lock_all<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) -> Lock {
        keys.into_iter().fold(Lock::new(Arc::clone(&self.shared)), Lock::and)
    }

    /// Renews a lease by its id, for its own time-to-live or another.
    pub async fn renew(&self, lease_id: LeaseId, ttl: Option<Duration>) -> Result<Grant, Error> {
        let ttl = ttl.map(ttl_of).transpose()?;
        self.shared.renew(lease_id, ttl).await.map(|(_, grant)| grant)
    }

    /// Releases a lease by its id, or takes it out of the queue. Also succeeds where there is no such lease, or it was
    /// released before; [`Error::Lost`] says that it had ended otherwise, and how. After [`Error::Unknown`] and
    /// [`Error::Unavailable`] it is repeated in the background.
    pub async fn release(&self, lease_id: LeaseId) -> Result<(), Error> {
        let released = self.shared.release(lease_id).await;
        if let Err(Error::Unknown { .. } | Error::Unavailable { .. }) = released {
            self.shared.release_later(lease_id, &Handle::current());
        }
        released
    }

    /// Waits until all that goes on in the background is released: leases that were dropped, acquires that were given up.
    /// For a program that is about to end, which else leaves them to end by themselves.
    pub async fn settle(&self) {
        // The sender is here, so there is no error.
        let _ = self.shared.releases.subscribe().wait_for(|releases| *releases == 0).await;
    }

    /// A lease as its owner sees it.
    pub async fn lease(&self, lease_id: LeaseId, consistency: Consistency) -> Result<LeaseView, Error> {
        let call = Call::get(format!("/v1/leases/{lease_id}?{}", consistency.query()));
        match read(&self.shared.endpoints, &call).await {
            Err(Error::Rejected(problem)) => Err(Error::refused(problem)),
            result => result,
        }
    }

    /// Who holds a key, and who waits for it.
    pub async fn key(&self, key: impl AsRef<str>, consistency: Consistency) -> Result<KeyView, Error> {
        let key = key_of(key.as_ref(), "key")?;
        let path = utf8_percent_encode(key.as_str(), PATH);
        let call = Call::get(format!("/v1/keys/{path}?{}", consistency.query()));
        read(&self.shared.endpoints, &call).await
    }

    /// The start of a listing of the keys that begin with `prefix` and are held or waited for.
    pub fn list(&self, prefix: impl Into<String>) -> Listing {
        Listing::new(Arc::clone(&self.shared), prefix.into())
    }

    /// The start of a watch of the keys that begin with `prefix`.
    pub fn watch(&self, prefix: impl Into<String>) -> Watch {
        Watch::new(Arc::clone(&self.shared), prefix.into())
    }

    /// What is known of a token. Whatever it says, it licenses no later write: that is what guards are for.
    pub async fn validate(
        &self,
        key: impl AsRef<str>,
        token: Token,
        consistency: Consistency,
    ) -> Result<Verdict, Error> {
        let key = key_of(key.as_ref(), "key")?;
        let wish = ValidateRequest { key: Some(key), token: Some(token), checks: None };
        read(&self.shared.endpoints, &validation(consistency).with(&wish)).await
    }

    /// What is known of many tokens, in their order. More than 1,000 go in several calls.
    pub async fn validate_many(
        &self,
        checks: &[Check],
        consistency: Consistency,
    ) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(checks.len());
        for checks in checks.chunks(MAX_BATCH) {
            let wish = ValidateRequest { key: None, token: None, checks: Some(checks.to_vec()) };
            let call = validation(consistency).with(&wish);
            let VerdictsAnswer { results } = read(&self.shared.endpoints, &call).await?;
            verdicts.extend(results);
        }
        Ok(verdicts)
    }

    /// Ends the live lease that holds `key` with `token`. It ends the lease, not the writer: raise the guard's number, too.
    /// [`ProblemKind::NotLive`] where there is none.
    pub async fn revoke(&self, key: impl AsRef<str>, token: Token) -> Result<(), Error> {
        let key = key_of(key.as_ref(), "key")?;
        let call = Call::new(Method::POST, "/v1/revoke").with(&RevokeRequest { key, token });
        let Definite { result, maybe_done_before } =
            definite(&self.shared.endpoints, &call, None, nothing).await?;
        match result {
            Ok(()) => Ok(()),
            // The repeat of one that was done finds it so, and it is what was asked for.
            Err(problem) if maybe_done_before && problem.kind == ProblemKind::NotLive => Ok(()),
            Err(problem) => Err(Error::Rejected(problem)),
        }
    }

    /// Up to 1,000 acquires, renewals and releases in one call, each on its own, and none waits: one that is to keep its place
    /// has it for 5 s, and is asked for again, or released. Every acquire has an id
    /// that you chose, so the whole batch may be repeated; this does so while its outcome is not known. What it acquired is
    /// yours to renew, and to release, also after [`Error::Unknown`].
    pub async fn batch(&self, operations: Vec<Operation>) -> Result<Vec<BatchResult>, Error> {
        let wish = BatchRequest { operations };
        wish.check()?;
        let call = Call::new(Method::POST, "/v1/batch").with(&wish);
        match definite(&self.shared.endpoints, &call, None, json::<BatchAnswer>).await?.result {
            Ok(answer) => Ok(answer.results),
            Err(problem) => Err(Error::Rejected(problem)),
        }
    }

    /// How the cluster does, as one node sees it.
    pub async fn cluster(&self) -> Result<ClusterStatus, Error> {
        read(&self.shared.endpoints, &Call::get("/v1/cluster")).await
    }

    /// How far the cluster has come, for one that is to take its place.
    pub async fn backup(&self) -> Result<Backup, Error> {
        read(&self.shared.endpoints, &Call::get("/v1/cluster/backup")).await
    }

    /// Takes in a node that was started to join, and whose peers reach it at `peer` (`host:port`).
    pub async fn add_member(&self, id: u64, peer: impl Into<String>) -> Result<(), Error> {
        let wish = AddMemberRequest { id, peer: peer.into() };
        wish.check()?;
        let call = Call::new(Method::POST, "/v1/cluster/members").with(&wish);
        once(&self.shared.endpoints, &call, nothing).await
    }

    /// Takes a node out of the cluster. Refused if no majority of the voters that are left has been heard lately.
    pub async fn remove_member(&self, id: u64) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, format!("/v1/cluster/members/{id}"));
        once(&self.shared.endpoints, &call, nothing).await
    }

    /// As [`Client::remove_member`], but also where the cluster stops by that, until enough of the nodes that are left are back.
    pub async fn force_remove_member(&self, id: u64) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, format!("/v1/cluster/members/{id}?force=true"));
        once(&self.shared.endpoints, &call, nothing).await
    }

    /// Makes another node the leader: `to`, or the one that lacks least of the log.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<(), Error> {
        let call = Call::new(Method::POST, "/v1/cluster/transfer").with(&TransferRequest { to });
        once(&self.shared.endpoints, &call, nothing).await
    }
}

impl Shared {
    /// Renews, and says when the request was sent that was answered.
    pub(crate) async fn renew(
        &self,
        lease_id: LeaseId,
        ttl_ms: Option<Ttl>,
    ) -> Result<(Moment, Grant), Error> {
        let call = Call::new(Method::POST, format!("/v1/leases/{lease_id}/renew"));
        let call = call.with(&RenewRequest { ttl_ms });
        definite(&self.endpoints, &call, Some(lease_id), granted).await?.result.map_err(Error::refused)
    }

    pub(crate) async fn release(&self, lease_id: LeaseId) -> Result<(), Error> {
        let released = definite(&self.endpoints, &deletion(lease_id), Some(lease_id), nothing).await?;
        released.result.map_err(Error::refused)
    }

    /// Releases in the background, as well as can be.
    pub(crate) fn release_later(self: &Arc<Self>, lease_id: LeaseId, runtime: &Handle) {
        let under_way = Release::begin(self);
        drop(runtime.spawn(async move {
            let Release(shared) = &under_way;
            let (begun, call, mut backoff) = (Instant::now(), deletion(lease_id), Backoff::default());
            let mut is_first = true;
            while begun.elapsed() < RELEASES_FOR {
                match attempt(&shared.endpoints, &call, ATTEMPT, mem::take(&mut is_first), nothing).await {
                    Fate::Done(()) | Fate::Refused(_) => return,
                    Fate::NotDone(_) | Fate::Unknown(_) => sleep(backoff.next()).await,
                }
            }
        }));
    }
}

/// A release that is counted until it is over, or its task is dropped: a runtime that has ended never polls it.
struct Release(Arc<Shared>);

impl Release {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.releases.send_modify(|releases| *releases += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        self.0.releases.send_modify(|releases| *releases -= 1);
    }
}

/// Reads the grant of an acquire or a renewal, and when it was asked for.
pub(crate) fn granted(answer: &Answer) -> serde_json::Result<(Moment, Grant)> {
    let grant: Grant = json(answer)?;
    match grant.expires_in_ms {
        Some(_) => Ok((answer.sent, grant)),
        None => Err(serde::de::Error::missing_field("expires_in_ms")),
    }
}

fn deletion(lease_id: LeaseId) -> Call {
    Call::new(Method::DELETE, format!("/v1/leases/{lease_id}"))
        .or_in_batch(Operation::Release(BatchRelease { lease_id }), Duration::ZERO)
}

fn validation(consistency: Consistency) -> Call {
    Call::new(Method::POST, format!("/v1/validate?{}", consistency.query()))
}

/// Checks a key, and names the field that it was meant for.
pub(crate) fn key_of(text: &str, field: &str) -> Result<Key, Error> {
    Key::new(text).map_err(|error| Error::invalid(field, format!("{text:?}: {error}")))
}

/// Checks a time-to-live.
pub(crate) fn ttl_of(ttl: Duration) -> Result<Ttl, Error> {
    let ms = u32::try_from(ttl.as_millis()).ok().and_then(Ttl::from_ms);
    ms.ok_or_else(|| Error::invalid("ttl", "a time-to-live is from 100 ms to 24 h"))
}

impl Consistency {
    pub(crate) fn query(self) -> &'static str {
        match self {
            Self::Linearizable => "consistency=linearizable",
            Self::Local => "consistency=local",
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tokio::time::timeout;

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// It was counted, and never again taken off.
    #[test]
    fn a_release_on_a_runtime_that_has_ended_is_not_waited_for() {
        let client = Client::connect(["http://127.0.0.1:1"]).unwrap();
        let ended = runtime();
        let handle = ended.handle().clone();
        drop(ended);
        client.shared.release_later(LeaseId::random(), &handle);
        let settled = runtime().block_on(async { timeout(Duration::from_secs(10), client.settle()).await });
        assert!(settled.is_ok());
    }
}
