use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ringfence_http::{Remote, RequestBody};
use ringfence_service::{Ending, Service, Watchers};
use ringfence_wire::{CLUSTER_HEADER, LEADER_HEADER};
use uuid::Uuid;

use crate::Options;
use crate::asked::Asked;
use crate::frame::Frames;
use crate::measure;
use crate::problems::Failed;
use crate::request::requester::{REQUEST_ID, Requester};
use crate::request::{head, origin};

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const LEADER: HeaderName = HeaderName::from_static(LEADER_HEADER);
const CLUSTER: HeaderName = HeaderName::from_static(CLUSTER_HEADER);

/// A request whose body may still be arriving.
pub(crate) type Request = axum::extract::Request<RequestBody>;

/// What the service and the log know of a request.
pub(crate) type Visit<'a> = ringfence_service::Visit<Asked<'a>>;

/// What a handler returns.
pub(crate) type Answer = Result<Response, Failed>;

/// What all handlers share.
pub(crate) struct Door {
    pub(crate) service: Arc<Service>,
    pub(crate) options: Options,
    pub(crate) watchers: Arc<Watchers<Frames>>,
    requests: AtomicU64,
    /// The cluster's id, once there is one.
    cluster: OnceLock<HeaderValue>,
}

impl Door {
    pub(crate) fn new(service: Arc<Service>, options: Options) -> Self {
        let (requests, _) = Uuid::new_v4().as_u64_pair();
        let watchers = Watchers::new(Arc::clone(&service));
        let requests = AtomicU64::new(requests);
        Self { service, options, watchers, requests, cluster: OnceLock::new() }
    }

    /// A visit by `request`, which is at `route`.
    pub(crate) fn visit(&self, request: &Request, route: &'static str, remote: &Remote) -> Visit<'_> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let requester = Requester::new(request.headers(), remote.address, number);
        let (service, method) = (&*self.service, measure::method(request.method()));
        Visit::new(Asked { service, requester, method, route, status: None })
    }

    /// Checks what holds for every route.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Failed> {
        head::check(request)?;
        origin::check(request, &self.options.hosts, |host| {
            Ok(origin::is_of_a_member(host, &self.service.status()?))
        })
    }

    /// Checks what holds for the question whether this node lives, which may use any name. Whether it is known to be a name of this node.
    /// Those of the members are not looked for: that takes the table, which a thread that hangs may have.
    pub(crate) fn check_live(&self, request: &Request) -> Result<bool, Failed> {
        head::check(request)?;
        match origin::check(request, &self.options.hosts, |_| Ok(false)) {
            Err(failed) if !failed.is_misdirected() => Err(failed),
            checked => Ok(checked.is_ok()),
        }
    }

    /// The response to a request, and how the request ends. It `is_named` by what is known to be a name of this node.
    pub(crate) fn respond(
        &self,
        answer: Answer,
        requester: &Requester,
        is_named: bool,
    ) -> (Response, Ending) {
        let answer = answer.map_err(|failed| if is_named { failed } else { failed.for_a_stranger() });
        let is_limited = answer.as_ref().is_err_and(Failed::is_rate_limited);
        let mut response = answer.unwrap_or_else(IntoResponse::into_response);
        self.add_headers(&mut response, requester, is_named);
        let ending = if is_limited { Ending::Limited } else { Asked::ending(response.status()) };
        (response, ending)
    }

    /// Adds the headers that every response has.
    fn add_headers(&self, response: &mut Response, requester: &Requester, is_named: bool) {
        // An old answer about a lease is a wrong one.
        response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_STORE);
        response.headers_mut().entry(X_CONTENT_TYPE_OPTIONS).or_insert(NO_SNIFF);
        // A caller that the node does not know learns nothing of other nodes.
        let is_stranger = !is_named || response.status() == StatusCode::UNAUTHORIZED;
        let leader = (!is_stranger).then(|| self.service.leader_url()).flatten();
        if let Some(url) = leader.and_then(|url| HeaderValue::try_from(url.as_str()).ok()) {
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
            let header = HeaderValue::try_from(self.service.cluster_id()?).ok()?;
            Some(self.cluster.get_or_init(|| header))
        })
    }

    /// Whether the process is about to stop.
    pub(crate) fn is_draining(&self) -> bool {
        *self.service.draining().borrow()
    }
}
