use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use ringfence_lease::{Attachment, Command, Outcome};
use ringfence_raft::{Handle, Unanswered};
use ringfence_wire::{Grant, Revision, Token};
use uuid::Uuid;

use crate::problems::Failed;
use crate::request::query::Consistency;
use crate::request::requester::{REQUEST_ID, Requester};
use crate::request::{head, origin};
use crate::request_log::RequestLog;
use crate::serve::RequestBody;
use crate::watch::Watchers;
use crate::{Options, measure};

/// The header with the leader's URL.
const LEADER: HeaderName = HeaderName::from_static("ringfence-leader");

/// A request whose body may still be arriving.
pub(crate) type Request = axum::extract::Request<RequestBody>;

/// What a handler returns.
pub(crate) type Answer = Result<Response, Failed>;

/// What all handlers share.
pub(crate) struct Door {
    pub(crate) handle: Handle,
    pub(crate) options: Options,
    pub(crate) log: RequestLog,
    pub(crate) watchers: Arc<Watchers>,
    attachments: AtomicU64,
    requests: AtomicU64,
}

impl Door {
    pub(crate) fn new(handle: Handle, options: Options) -> Self {
        measure::register();
        // Attachments must differ only among the requests for one lease: a counter with a random start is enough.
        let (attachments, requests) = Uuid::new_v4().as_u64_pair();
        let (attachments, requests) = (AtomicU64::new(attachments), AtomicU64::new(requests));
        let log = RequestLog::new(options.slow_request);
        let watchers = Watchers::new(handle.clone(), options.draining.clone());
        Self { handle, options, log, watchers, attachments, requests }
    }

    /// A new number for one request to acquire.
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment(self.attachments.fetch_add(1, Ordering::Relaxed))
    }

    /// The sender of `request`, whose connection comes `from` there.
    pub(crate) fn requester(&self, request: &Request, from: SocketAddr) -> Requester {
        Requester::new(request.headers(), from, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Checks what holds for every route.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Failed> {
        head::check(request)?;
        origin::check(request, &self.options.hosts, || self.handle.status())
    }

    /// Adds the headers that every response has.
    pub(crate) fn add_headers(&self, response: &mut Response, requester: &Requester) {
        if let Some(url) = self.handle.leader_url().and_then(|url| HeaderValue::try_from(url).ok()) {
            response.headers_mut().insert(LEADER, url);
        }
        if let Some(id) = requester.sent_id() {
            response.headers_mut().insert(REQUEST_ID, id.clone());
        }
    }

    /// The outcome of a single command.
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, Unanswered> {
        let mut outcomes = self.handle.propose(vec![command]).await?;
        Ok(outcomes.pop().expect("one outcome per command"))
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
