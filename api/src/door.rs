use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ringfence_lease::{Attachment, Command, Outcome};
use ringfence_mutant::{Mutant, is};
use ringfence_raft::{Handle, Unanswered};
use ringfence_wire::{Grant, Revision, Token};
use serde::Serialize;
use uuid::Uuid;

use crate::problems::Failed;
use crate::request::asker::{Asker, REQUEST_ID};
use crate::request::head;
use crate::request::origin;
use crate::request::query::Consistency;
use crate::request_log::{Ended, RequestLog};
use crate::serve::Arriving;
use crate::watch::Watchers;
use crate::{Options, measure};

/// The header that names the leader's URL.
const LEADER: HeaderName = HeaderName::from_static("ringfence-leader");

/// A request, with its body as it comes.
pub(crate) type Request = axum::extract::Request<Arriving>;

/// What a handler makes of a request.
pub(crate) type Answer = Result<Response, Failed>;

/// What all handlers share.
pub(crate) struct Door {
    pub(crate) handle: Handle,
    pub(crate) options: Options,
    log: RequestLog,
    pub(crate) watchers: Arc<Watchers>,
    attachments: AtomicU64,
    requests: AtomicU64,
}

impl Door {
    pub(crate) fn new(handle: Handle, options: Options) -> Self {
        measure::begin();
        // Attachments are told apart only among the requests for one lease: from a random start, counting is enough.
        let (attachments, requests) = Uuid::new_v4().as_u64_pair();
        let log = RequestLog::new(options.slow_request);
        let (attachments, requests) = (AtomicU64::new(attachments), AtomicU64::new(requests));
        let watchers = Watchers::new(handle.clone(), options.draining.clone());
        Self { handle, options, log, watchers, attachments, requests }
    }

    /// A number for one request to acquire.
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment(self.attachments.fetch_add(1, Ordering::Relaxed))
    }

    /// Who sent this request, which came from there.
    pub(crate) fn asker(&self, request: &Request, from: SocketAddr) -> Asker {
        Asker::new(request.headers(), from, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// The outcome of a single command.
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, Unanswered> {
        let mut outcomes = self.handle.propose(vec![command]).await?;
        Ok(outcomes.pop().expect("one outcome per command"))
    }

    /// Whether what these grants changed stands in the mirror; `None` where grants do not wait for that.
    pub(crate) async fn mirrored<'a>(&self, grants: impl Iterator<Item = &'a Grant>) -> Option<bool> {
        let within = self.options.mirror.as_ref()?.before_answer?;
        let (mut keys, mut newest) = (Vec::new(), Token(0));
        for grant in grants {
            keys.extend(grant.keys.iter().map(|granted| granted.key.clone()));
            newest = newest.max(grant.token);
        }
        Some(keys.is_empty() || self.handle.stands(keys, Revision(newest.0), within).await)
    }

    /// Makes sure that this node's table may be read. Gives the clock for the read, `None` for a local one.
    pub(crate) async fn now_ms(&self, consistency: Consistency) -> Result<Option<u64>, Unanswered> {
        match consistency {
            Consistency::Linearizable if is(Mutant::ReadsLocally) => {
                Ok(Some(self.handle.view(|table| table.at_ms())))
            }
            Consistency::Linearizable => self.handle.linearize().await.map(Some),
            Consistency::Local => Ok(None),
        }
    }

    /// Does what every route does around its own `work`. `route` is the label of what is measured.
    pub(crate) async fn answer<F: Future<Output = Answer>>(
        self: &Arc<Self>,
        route: &'static str,
        asker: Asker,
        request: Request,
        work: impl FnOnce(Arc<Self>, Request) -> F,
    ) -> Response {
        let method = measure::method(request.method());
        let begun = Begun { door: self, asker: &asker, method, route, at: Instant::now(), has_ended: false };
        let checked = head::check(&request).map_err(Failed::from);
        let answer = match checked
            .and_then(|()| origin::check(&request, &self.options.hosts, || self.handle.status()))
        {
            Ok(()) => work(Arc::clone(self), request).await,
            Err(refused) => Err(refused),
        };
        let mut response = answer.unwrap_or_else(IntoResponse::into_response);
        if let Some(url) = self.handle.leader_url().and_then(|url| HeaderValue::try_from(url).ok()) {
            response.headers_mut().insert(LEADER, url);
        }
        if let Some(id) = asker.sent_id() {
            response.headers_mut().insert(REQUEST_ID, id.clone());
        }
        begun.ended(&response);
        response
    }
}

/// A request that is being answered. Dropped before that, its connection has closed.
struct Begun<'a> {
    door: &'a Door,
    asker: &'a Asker,
    method: &'static str,
    route: &'static str,
    at: Instant,
    has_ended: bool,
}

impl Begun<'_> {
    fn ended(mut self, response: &Response) {
        self.has_ended = true;
        self.report(Some(response));
    }

    fn report(&self, response: Option<&Response>) {
        let Self { door, asker, method, route, at, .. } = *self;
        let took = at.elapsed();
        measure::ended(method, route, response.map(Response::status), took);
        door.log.ended(&Ended { asker, method, route, response, took });
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.report(None);
        }
    }
}

/// The answer `body` as JSON.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body).expect("answers have nothing that JSON cannot say");
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
