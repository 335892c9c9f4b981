//! The client, and its calls.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_wire::{
    Access, AddMemberRequest, Backup, BatchAnswer, BatchRequest, BatchResult, Check, ClusterStatus, Grant,
    KeyView, LeaseId, MAX_BATCH, Operation, ProblemKind, RevokeRequest, Token, TransferRequest,
    UpgradeRequest, Upgraded, ValidateRequest, Verdict, VerdictsAnswer, Waiting,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::attempts::{ATTEMPT_TIMEOUT, RETRY_FOR, Repeat};
use crate::cluster::{Cluster, no_content};
use crate::held::Held;
use crate::lifetime::Lifetime;
use crate::list::Listing;
use crate::lock::{Lock, parse_key, parse_ttl};
use crate::release::ReleaseGuard;
use crate::renewal::Renewals;
use crate::transport::{Nodes, Request, Response, Tls};
use crate::watch::Watch;
use crate::{Consistency, Error, Lease};

/// What a path contains unescaped. A key keeps its slashes.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A lease as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LeaseView {
    /// It is granted.
    Granted(Box<Grant>),
    /// It is in the queue.
    Waiting(Waiting),
}

/// A client of one cluster. Clones are cheap and share everything: connections, and the task that renews leases.
///
/// It works on any tokio runtime with I/O and time enabled. A dropped lease is released on the runtime where it was acquired, or
/// by a thread if that has ended.
/// One task renews all leases, on the runtime of the first of them. If that runtime ends, or is not driven, no lease is
/// renewed until the next one is acquired. Calls that share a request go on the runtime of one of them. So use a client per
/// runtime if runtimes come and go.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) cluster: Arc<Cluster>,
    renewals: Arc<Renewals>,
}

impl Client {
    /// A client of the cluster whose nodes are at `urls` (`https://host:port` or `http://host:port`; some of the nodes are
    /// enough). A URL may have a path, as that of a gateway does (`https://gateway/ringfence`): the client then sends all
    /// requests there, and none to URLs that responses name. A slash at the end changes nothing. Sends nothing: the first call shows whether the cluster is reachable. With https, the nodes' certificates must
    /// be signed by an authority that this system trusts.
    pub fn connect<S: AsRef<str>>(urls: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::connect_with(urls, &Tls::default())
    }

    /// The same, with other authorities, a certificate or a credential. Reads the files, and again when they have changed.
    pub fn connect_with<S: AsRef<str>>(urls: impl IntoIterator<Item = S>, tls: &Tls) -> Result<Self, Error> {
        let nodes = Nodes::parse(urls, tls)?;
        let cluster = Arc::new(Cluster::new(nodes));
        let renewals = Arc::new(Renewals::new(Arc::clone(&cluster)));
        Ok(Self { cluster, renewals })
    }

    /// Prepares an acquire of `key`.
    pub fn lock(&self, key: impl AsRef<str>) -> Lock {
        self.lock_all([key])
    }

    /// Prepares an acquire of several keys: all of them in one step, or none.
    pub fn lock_all<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) -> Lock {
        keys.into_iter().fold(Lock::new(Arc::clone(&self.renewals)), Lock::and)
    }

    /// Renews a lease by its id, for its own time-to-live or another.
    pub async fn renew(&self, lease_id: LeaseId, ttl: Option<Duration>) -> Result<Grant, Error> {
        let ttl = ttl.map(parse_ttl).transpose()?;
        self.cluster.renew(lease_id, ttl).await.map(|confirmation| confirmation.grant)
    }

    /// Takes over a lease by its id, as [`Lease::into_id`] left it, perhaps in another process: renews it once, and from then on as if it
    /// had been acquired here. Nobody else may renew or release it. [`Error::Lost`] says that it has ended. After any other error, such as
    /// [`Error::Closed`], the caller still has to look after the lease, which may have been renewed.
    pub async fn adopt(&self, lease_id: LeaseId) -> Result<Lease, Error> {
        let confirmation = self.cluster.while_open(self.cluster.renew(lease_id, None)).await?;
        let lifetime = Lifetime::new(&confirmation);
        let held = Arc::new(Held::new(confirmation.grant, lifetime));
        let mut release = ReleaseGuard::new(&self.cluster, lease_id);
        let added = self.renewals.add(&held, None, &release.runtime);
        release.is_armed = added.is_ok();
        added?;
        Ok(Lease { held, renewals: Arc::clone(&self.renewals), release, mirrored: None })
    }

    /// Releases a lease by its id, or removes it from the queue. Also succeeds if there is no such lease, or it was released
    /// before; [`Error::Lost`] says that it ended otherwise, and how. After [`Error::Unknown`] and [`Error::Unavailable`] the
    /// release is repeated in the background.
    pub async fn release(&self, lease_id: LeaseId) -> Result<(), Error> {
        // `close` waits for this.
        let mut releasing = self.cluster.releases.count();
        let released = self.cluster.release(lease_id).await;
        match &released {
            Ok(()) | Err(Error::Lost(_) | Error::Closed) => {}
            Err(Error::Unknown { .. } | Error::Unavailable { .. }) => {
                self.cluster.release_in_background(lease_id, None, &Handle::current());
            }
            Err(_) => releasing.has_failed = true,
        }
        released
    }

    /// Closes the client and all of its clones. No new call begins, and calls that wait for a lease or for an [event](Watch::next) end with
    /// [`Error::Closed`]. Releases all leases that it holds, but none that was [left](Lease::into_id) or is being [adopted](Self::adopt).
    /// Their holders learn that they are lost, but `close` does not wait for them: finish your work before. Returns once all releases are
    /// done, also those that were under way, after `within` at the latest. Five seconds leave time for a second node.
    ///
    /// Returns how many leases could not be released: they end with their time-to-live. From then on nothing is released in the
    /// background. Other calls that had begun go on to their end. A later `close` has nothing left to do, and returns 0.
    ///
    /// ```
    /// # async fn example(client: ringfence_client::Client) {
    /// let left = client.close(std::time::Duration::from_secs(5)).await;
    /// if left > 0 {
    ///     eprintln!("others have to wait for {left} leases");
    /// }
    /// # }
    /// ```
    pub async fn close(&self, within: Duration) -> usize {
        let releases = &self.cluster.releases;
        if releases.are_over() {
            return 0;
        }
        let failed_before = releases.failed();
        self.cluster.close();
        for (lease_id, least) in self.renewals.close() {
            self.cluster.release_in_background(lease_id, least, &Handle::current());
        }
        let left = releases.settle(within).await.saturating_sub(failed_before);
        releases.end();
        self.cluster.nodes.disconnect();
        if left > 0 {
            tracing::warn!(
                left,
                "leases were not released when the client was closed: they end with their time-to-live"
            );
        }
        left
    }

    /// A lease as its owner sees it.
    pub async fn lease(&self, lease_id: LeaseId, consistency: Consistency) -> Result<LeaseView, Error> {
        self.cluster.read(&Request::get(format!("/v1/leases/{lease_id}?{}", consistency.query()))).await
    }

    /// Who holds a key, and who waits for it.
    pub async fn key(&self, key: impl AsRef<str>, consistency: Consistency) -> Result<KeyView, Error> {
        let key = parse_key(key.as_ref(), "key")?;
        let path = utf8_percent_encode(key.as_str(), PATH);
        self.cluster.read(&Request::get(format!("/v1/keys/{path}?{}", consistency.query()))).await
    }

    /// Prepares a listing of the keys under `prefix` that are held or waited for.
    pub fn list(&self, prefix: impl Into<String>) -> Listing {
        Listing::new(Arc::clone(&self.cluster), prefix.into())
    }

    /// Prepares a watch of the keys under `prefix`.
    pub fn watch(&self, prefix: impl Into<String>) -> Watch {
        Watch::new(Arc::clone(&self.cluster), prefix.into())
    }

    /// Asks each node that this client was made with, once, whether it is ready to serve clients (`GET /readyz`). For each URL, in their
    /// order: why it is not, or `None`.
    pub async fn readiness(&self) -> Vec<(String, Option<String>)> {
        let nodes = self.cluster.nodes.configured();
        let asked = nodes.iter().map(|node| async {
            let why = match node.server.send(&Request::get("/readyz"), ATTEMPT_TIMEOUT).await {
                Ok(response) if response.status == StatusCode::OK => None,
                Ok(response) => Some(match response.problem() {
                    Some(problem) => problem.detail,
                    None => format!("it answers {}", response.status),
                }),
                Err(failure) => Some(failure.to_string()),
            };
            let url = node.server.to_string();
            let why = why.map(|why| why.strip_prefix(&format!("{url}: ")).map_or(why.clone(), str::to_owned));
            (url, why)
        });
        join_all(asked).await
    }

    /// What the cluster knows of a token. No verdict permits a later write: that is the task of guards.
    pub async fn validate(
        &self,
        key: impl AsRef<str>,
        token: Token,
        consistency: Consistency,
    ) -> Result<Verdict, Error> {
        let key = parse_key(key.as_ref(), "key")?;
        let body = ValidateRequest { key: Some(key), token: Some(token), checks: None };
        self.cluster.read(&validation(&body, consistency)).await
    }

    /// What the cluster knows of many tokens, in their order. Takes a call per 1,000 of them.
    pub async fn validate_many(
        &self,
        checks: &[Check],
        consistency: Consistency,
    ) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(checks.len());
        for checks in checks.chunks(MAX_BATCH) {
            let body = ValidateRequest { key: None, token: None, checks: Some(checks.to_vec()) };
            let VerdictsAnswer { results } = self.cluster.read(&validation(&body, consistency)).await?;
            verdicts.extend(results);
        }
        Ok(verdicts)
    }

    /// Who the cluster takes this client for, and what it may do.
    pub async fn access(&self) -> Result<Access, Error> {
        self.cluster.read(&Request::get("/v1/access")).await
    }

    /// Ends the live lease that holds `key` with `token`. This ends the lease, not the writer: raise the guard's number, too.
    /// Fails with [`ProblemKind::NotLive`] if there is none.
    pub async fn revoke(&self, key: impl AsRef<str>, token: Token) -> Result<(), Error> {
        let key = parse_key(key.as_ref(), "key")?;
        let request = Request::post("/v1/revoke", &RevokeRequest { key, token });
        let mut attempts = self.cluster.attempts()?;
        match attempts.call(&request, Repeat::Harmless(None), RETRY_FOR, no_content).await {
            // An earlier attempt ended it.
            Err(Error::Rejected(problem)) if attempts.maybe_done && problem.kind == ProblemKind::NotLive => {
                Ok(())
            }
            result => result,
        }
    }

    /// Up to 1,000 acquires, renewals and releases in one call, each on its own. None waits: an acquire that keeps its place
    /// has it for 5 s, to be asked for again or released. You choose the id of every acquire, so the batch may be repeated;
    /// this does so while its outcome is unknown. Renewing and releasing what it acquired is up to you, also after
    /// [`Error::Unknown`].
    pub async fn batch(&self, operations: Vec<Operation>) -> Result<Vec<BatchResult>, Error> {
        let body = BatchRequest { operations };
        body.check()?;
        let request = Request::post("/v1/batch", &body);
        let answer =
            self.cluster.call(&request, Repeat::Harmless(None), Response::json::<BatchAnswer>).await?;
        Ok(answer.results)
    }

    /// The state of the cluster, as one node sees it.
    pub async fn cluster(&self) -> Result<ClusterStatus, Error> {
        self.cluster.read(&Request::get("/v1/cluster")).await
    }

    /// How far the cluster has come, for one that is to replace it.
    pub async fn backup(&self) -> Result<Backup, Error> {
        self.cluster.read(&Request::get("/v1/cluster/backup")).await
    }

    /// Adds a node that was started to join, and that its peers reach at `peer` (`host:port`); or says that a member has moved there.
    pub async fn add_member(&self, id: u64, peer: impl Into<String>) -> Result<(), Error> {
        let body = AddMemberRequest { id, peer: peer.into() };
        body.check()?;
        self.administer(Request::post("/v1/cluster/members", &body)).await
    }

    /// Removes a node. Fails unless a majority of the remaining voters was heard from lately.
    pub async fn remove_member(&self, id: u64) -> Result<(), Error> {
        self.administer(Request::new(Method::DELETE, format!("/v1/cluster/members/{id}"))).await
    }

    /// As [`Client::remove_member`], but even if the cluster then stops until enough of the remaining nodes are back.
    pub async fn force_remove_member(&self, id: u64) -> Result<(), Error> {
        self.administer(Request::new(Method::DELETE, format!("/v1/cluster/members/{id}?force=true"))).await
    }

    /// Makes another node the leader: `to`, or the one with the most complete log.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<(), Error> {
        self.administer(Request::post("/v1/cluster/transfer", &TransferRequest { to })).await
    }

    /// Raises the rules of the cluster to `to`; without it, to the newest that all members support. If `check`, only says what
    /// it would do.
    pub async fn upgrade(&self, to: Option<u8>, check: bool) -> Result<Upgraded, Error> {
        let request = Request::post("/v1/cluster/upgrade", &UpgradeRequest { to, check }).once();
        self.cluster.call(&request, Repeat::Harmful, Response::json::<Upgraded>).await
    }

    async fn administer(&self, request: Request) -> Result<(), Error> {
        self.cluster.call(&request.once(), Repeat::Harmful, no_content).await
    }
}

fn validation(body: &ValidateRequest, consistency: Consistency) -> Request {
    Request::post(format!("/v1/validate?{}", consistency.query()), body)
}
