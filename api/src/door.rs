pub(crate) mod access;
pub(crate) mod usage;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use ringfence_access::{KeyRight, Principal};
use ringfence_http::{Remote, RequestBody};
use ringfence_lease::{self as lease, Attachment, Command, LeaseState, LeaseTable, Outcome, Refusal};
use ringfence_raft::{Handle, LeaseWait, Unanswered};
use ringfence_wire::{CLUSTER_HEADER, Grant, LEADER_HEADER, LeaseId, Revision, Token};
use uuid::Uuid;

use self::access::{Access, Allowed, Caller};
use self::usage::{Counted, Usages};

use crate::problems::Failed;
use crate::request::query::Consistency;
use crate::request::requester::{REQUEST_ID, Requester};
use crate::request::{head, origin};
use crate::request_log::RequestLog;
use crate::watch::Watchers;
use crate::{Options, measure};

/// The unit in which bodies count as requests, and reads of keys against their own limit: JSON is work to parse and to write.
pub(crate) const BYTES_OF_A_REQUEST: usize = 4 << 10;
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const LEADER: HeaderName = HeaderName::from_static(LEADER_HEADER);
const CLUSTER: HeaderName = HeaderName::from_static(CLUSTER_HEADER);

/// A request whose body may still be arriving.
pub(crate) type Request = axum::extract::Request<RequestBody>;

/// What a handler returns.
pub(crate) type Answer = Result<Response, Failed>;

/// What all handlers share.
pub(crate) struct Door {
    handle: Handle,
    access: Access,
    usages: Arc<Usages>,
    pub(crate) options: Options,
    pub(crate) log: RequestLog,
    pub(crate) watchers: Arc<Watchers>,
    attachments: AtomicU64,
    requests: AtomicU64,
    /// The cluster's id, once there is one.
    cluster: OnceLock<HeaderValue>,
}

impl Door {
    pub(crate) fn new(handle: Handle, options: Options) -> Self {
        measure::register();
        ringfence_http::register();
        // Attachments must differ only among the requests for one lease: a counter with a random start is enough.
        let (attachments, requests) = Uuid::new_v4().as_u64_pair();
        let (attachments, requests) = (AtomicU64::new(attachments), AtomicU64::new(requests));
        let log = RequestLog::new(options.slow_request);
        let watchers = Watchers::new(handle.clone(), options.draining.clone());
        let access = Access::new(options.access.clone());
        let usages = Arc::default();
        Self {
            handle,
            access,
            usages,
            options,
            log,
            watchers,
            attachments,
            requests,
            cluster: OnceLock::new(),
        }
    }

    /// A new number for one request to acquire.
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment(self.attachments.fetch_add(1, Ordering::Relaxed))
    }

    /// What log lines say about the sender of `request`.
    pub(crate) fn requester(&self, request: &Request, remote: &Remote) -> Requester {
        Requester::new(request.headers(), remote.address, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Who sent `request`.
    pub(crate) fn caller(&self, request: &Request, remote: &Remote) -> Result<Caller, Failed> {
        self.access.caller(request.headers(), remote)
    }

    /// Counts a request, which may be one too many.
    pub(crate) fn count_request(&self, caller: &Caller) -> Result<(), Failed> {
        self.usages.count_request(caller.principal())
    }

    /// Holds back a client that was refused for the rate of its requests.
    pub(crate) async fn hold_back(&self, principal: &Principal) {
        self.usages.hold_back(principal).await;
    }

    /// Takes a line of the audit log for something that was refused to `principal`: how many were left out before it, if it is logged.
    pub(crate) fn take_refusal_line(&self, principal: &Principal) -> Option<u64> {
        self.usages.take_refusal_line(principal)
    }

    /// Counts a batch or a large body as `more` requests, too. Of these it was `counted` for some before. An error if others have used
    /// up what is allowed.
    pub(crate) fn count_more(&self, caller: &Caller, more: usize, counted: usize) -> Result<(), Failed> {
        self.usages.count_more(caller.principal(), more, counted)
    }

    /// An error if other reads of `caller` have used up what is allowed.
    pub(crate) fn check_reads(&self, caller: &Caller) -> Result<(), Failed> {
        self.usages.check_reads(caller.principal())
    }

    /// Counts `bytes` that `caller` reads. Returns whether they are many.
    pub(crate) fn count_read(&self, caller: &Caller, bytes: usize) -> bool {
        let more = bytes / BYTES_OF_A_REQUEST;
        if more > 0 {
            self.usages.count_read(caller.principal(), more);
        }
        more > 0
    }

    /// A place for a watch of `caller`.
    pub(crate) fn watch_place(&self, caller: &Caller) -> Result<Counted, Failed> {
        self.usages.watch_place(caller.principal())
    }

    /// Checks what holds for every route.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Failed> {
        head::check(request)?;
        origin::check(request, &self.options.hosts, || self.handle.status())
    }

    /// Adds the headers that every response has.
    pub(crate) fn add_headers(&self, response: &mut Response, requester: &Requester) {
        // An old answer about a lease is a wrong one.
        response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_STORE);
        response.headers_mut().entry(X_CONTENT_TYPE_OPTIONS).or_insert(NO_SNIFF);
        // A caller that the node does not know learns nothing of other nodes.
        let is_stranger =
            matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::MISDIRECTED_REQUEST);
        let leader = (!is_stranger).then(|| self.handle.leader_url()).flatten();
        if let Some(url) = leader.and_then(|url| HeaderValue::try_from(url).ok()) {
            response.headers_mut().insert(LEADER, url);
        }
        if let Some(id) = self.cluster_header() {
            response.headers_mut().insert(CLUSTER, id.clone());
        }
        if let Some(id) = requester.sent_id() {
            response.headers_mut().insert(REQUEST_ID, id.clone());
        }
    }

    fn cluster_header(&self) -> Option<&HeaderValue> {
        let id = self.cluster.get();
        id.or_else(|| {
            let id = Some(self.handle.cluster_id()).filter(|id| !id.is_nil())?;
            let header = HeaderValue::try_from(id.to_string()).ok()?;
            Some(self.cluster.get_or_init(|| header))
        })
    }

    /// The table, for routes that require a right on the cluster, or none.
    pub(crate) fn cluster(&self) -> &Handle {
        &self.handle
    }

    /// The outcomes of commands of `caller`, in their order.
    pub(crate) async fn propose_all(
        &self,
        caller: &Caller,
        commands: Vec<Allowed<Command>>,
    ) -> Result<Vec<Outcome>, Unanswered> {
        let commands = commands.into_iter().map(Allowed::into_inner).collect();
        self.handle.propose(lease::Request { by: caller.owner(), commands }).await
    }

    /// The outcome of one command of `caller`.
    pub(crate) async fn propose(&self, caller: &Caller, command: Command) -> Result<Outcome, Failed> {
        let allowed = caller.allow_commands(self, vec![command]).await?;
        let allowed = allowed.into_iter().collect::<Result<_, _>>()?;
        let mut outcomes = self.propose_all(caller, allowed).await?;
        Ok(outcomes.pop().expect("one outcome per command"))
    }

    /// Adds to the holders that `failed` names the principals that they are, as far as this node's table has them.
    pub(crate) fn name_principals(&self, mut failed: Failed) -> Failed {
        let holders = failed.holders_mut();
        if !holders.is_empty() {
            self.handle.view(|table| {
                for holder in holders {
                    holder.by = table.principal_of_holder(&holder.key, holder.token).cloned();
                }
            });
        }
        failed
    }

    /// Looks at this node's table, for a caller who is allowed to see something of it.
    pub(crate) fn view<R>(&self, _: &Allowed<KeyRight>, look: impl FnOnce(&LeaseTable) -> R) -> R {
        self.handle.view(look)
    }

    /// How many keys each of `commands` of `caller` touches; 0 if it is not allowed.
    pub(crate) fn keys_of(
        &self,
        caller: &Caller,
        commands: &[Result<Allowed<Command>, Failed>],
    ) -> Vec<usize> {
        let keys = |table: &LeaseTable, command: &Result<Allowed<Command>, Failed>| {
            command.as_ref().map_or(0, |command| table.keys_of(caller.owner_name(), command.get()))
        };
        self.handle.view(|table| commands.iter().map(|command| keys(table, command)).collect())
    }

    /// Waits for a lease whose acquire by `caller` was proposed.
    pub(crate) fn wait_for(&self, caller: &Caller, lease_id: LeaseId) -> LeaseWait {
        self.handle.wait_for(caller.owner_name().cloned(), lease_id)
    }

    /// A lease whose acquire by `caller` was proposed, as this node's table has it.
    pub(crate) fn proposed(&self, caller: &Caller, lease_id: LeaseId) -> Result<LeaseState, Refusal> {
        self.handle.view(|table| table.lease(caller.owner_name(), lease_id, Some(table.at_ms())))
    }

    /// Takes back an acquire by `caller` that was proposed, unless the lease is asked for again.
    pub(crate) fn detach_later(&self, caller: &Caller, lease_id: LeaseId, attachment: Attachment) {
        self.handle.detach_later(caller.owner(), lease_id, attachment);
    }

    /// Waits until this node's table is as new as the cluster's.
    pub(crate) async fn catch_up(&self) -> Result<(), Unanswered> {
        self.handle.linearize().await.map(drop)
    }

    /// How long the grants of a request wait for the mirror at most; `None` if grants do not wait for it.
    pub(crate) fn mirror_timeout(&self) -> Option<Duration> {
        self.options.mirror.as_ref()?.before_answer
    }

    /// Waits until the mirror has the fences of `grants`, for at most `within`. Returns whether it does.
    pub(crate) async fn mirrored<'a>(
        &self,
        grants: impl Iterator<Item = &'a Grant>,
        within: Duration,
    ) -> bool {
        let (mut keys, mut newest) = (Vec::new(), Token(0));
        for grant in grants {
            keys.extend(grant.keys.iter().map(|granted| granted.key.clone()));
            newest = newest.max(grant.token);
        }
        keys.is_empty() || self.handle.stands(keys, Revision(newest.0), within).await
    }

    /// Waits until this node's table may be read. Returns the cluster time of the read, `None` for a local one.
    pub(crate) async fn now_ms(&self, consistency: Consistency) -> Result<Option<u64>, Unanswered> {
        match consistency {
            Consistency::Linearizable => self.handle.linearize().await.map(Some),
            Consistency::Local => Ok(None),
        }
    }
}
