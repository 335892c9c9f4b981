//! The route table of the API, and the `match` that calls the handlers.

mod access;
mod acquire;
mod audit;
mod cluster;
mod cursor;
mod dashboard;
mod health;
mod keys;
mod leases;
mod many;
mod metrics;
mod openapi;
pub(crate) mod starting;
mod validate;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::Method;
use axum::http::header::{ALLOW, HeaderValue};
use axum::response::{IntoResponse, Response};
use ringfence_access::{ClusterRight, KeyRight, Proof};
use ringfence_http::Remote;
use ringfence_service::{Report, Right};
use ringfence_wire::{PrincipalName, ProblemKind};
use tokio::runtime;

use crate::door::{Answer, Door, Request, Visit};
use crate::problems::{Failed, without_secrets};
use crate::request::{body, credential};

/// The `route` label of requests that match no route.
const NO_ROUTE: &str = "none";

/// All routes.
#[derive(Clone)]
pub struct Routes {
    door: Arc<Door>,
}

impl Routes {
    pub(crate) fn new(door: Arc<Door>) -> Self {
        Self { door }
    }

    /// Has watches go on, on `runtime`, if the thread that drives them hangs. To be called now and then, on a thread that serves nobody.
    pub fn look_after(&self, runtime: &runtime::Handle) {
        self.door.watchers.look_after(runtime);
    }

    /// Answers one request from `remote`. Must be polled in a tokio runtime with timers.
    pub async fn answer(self, request: Request, remote: Arc<Remote>) -> Result<Response, Infallible> {
        let (door, connection) = (&*self.door, Arc::clone(request.body().connection()));
        let (route, right, call) = find(request.method(), request.uri().path());
        let mut visit = door.visit(&request, route, &remote);
        let named = call.check(door, &request);
        let is_named = *named.as_ref().unwrap_or(&false);
        let admitted = named.and_then(|_| admit(&mut visit, &request, &remote, right));
        connection.belongs_to(visit.caller().name().map(PrincipalName::as_str));
        let answer = match admitted {
            Ok(()) => call.answer(door, &mut visit, request).await,
            Err(failed) => Err(body::discard(request, failed).await),
        };
        let (response, ending) = door.respond(answer, &visit.report().requester, is_named);
        visit.report_mut().status = Some(response.status());
        visit.ended(ending, || connection.rests()).await;
        Ok(response)
    }
}

/// Admits a request, unless it shows who sent it in a wrong way.
fn admit(visit: &mut Visit<'_>, request: &Request, remote: &Remote, right: Right) -> Result<(), Failed> {
    let is_asked = right != Right::Public && visit.report().service().has_rules();
    let proof = if is_asked { credential::proof(request.headers(), remote)? } else { Proof::default() };
    Ok(visit.admit(proof, Some(remote.host()), right)?)
}

const ACQUIRE: Right = Right::OnKeys(KeyRight::Acquire);
const READ: Right = Right::OnKeys(KeyRight::Read);
const VALIDATE: Right = Right::OnKeys(KeyRight::Validate);
const REVOKE: Right = Right::OnKeys(KeyRight::Revoke);
const OBSERVE: Right = Right::OnCluster(ClusterRight::Observe);
const OPERATE: Right = Right::OnCluster(ClusterRight::Operate);
const METRICS: Right = Right::OnCluster(ClusterRight::Metrics);

/// A method of a route, and the right that it requires.
type Handler = (Method, Right, Call);

/// The routes of the API, as in the OpenAPI document, with their methods. GET answers HEAD, too.
const ROUTES: &[(&str, &[Handler])] = &[
    (
        "/v1/leases/{lease_id}",
        &[
            (Method::PUT, ACQUIRE, Call::Acquire),
            (Method::DELETE, ACQUIRE, Call::Release),
            (Method::GET, ACQUIRE, Call::Lease),
        ],
    ),
    ("/v1/leases/{lease_id}/renew", &[(Method::POST, ACQUIRE, Call::Renew)]),
    ("/v1/validate", &[(Method::POST, VALIDATE, Call::Validate)]),
    ("/v1/batch", &[(Method::POST, ACQUIRE, Call::Batch)]),
    ("/v1/renew", &[(Method::POST, ACQUIRE, Call::RenewMany)]),
    ("/v1/leases", &[(Method::POST, ACQUIRE, Call::AcquireNew)]),
    ("/v1/keys", &[(Method::GET, READ, Call::Keys)]),
    ("/v1/keys/{key}", &[(Method::GET, READ, Call::Key)]),
    ("/v1/revoke", &[(Method::POST, REVOKE, Call::Revoke)]),
    ("/v1/watch", &[(Method::GET, READ, Call::Watch)]),
    ("/v1/access", &[(Method::GET, Right::Identity, Call::Access)]),
    ("/v1/cluster", &[(Method::GET, OBSERVE, Call::Cluster)]),
    ("/v1/cluster/backup", &[(Method::GET, OPERATE, Call::Backup)]),
    ("/v1/cluster/members", &[(Method::POST, OPERATE, Call::AddMember)]),
    ("/v1/cluster/members/{id}", &[(Method::DELETE, OPERATE, Call::RemoveMember)]),
    ("/v1/cluster/transfer", &[(Method::POST, OPERATE, Call::Transfer)]),
    ("/v1/cluster/upgrade", &[(Method::POST, OPERATE, Call::Upgrade)]),
    ("/livez", &[(Method::GET, Right::Public, Call::Live)]),
    ("/readyz", &[(Method::GET, Right::Public, Call::Ready)]),
    ("/metrics", &[(Method::GET, METRICS, Call::Metrics)]),
    ("/openapi.json", &[(Method::GET, Right::Public, Call::OpenApi)]),
];

/// A handler.
#[derive(Clone, Copy)]
enum Call {
    Acquire,
    AcquireNew,
    Renew,
    RenewMany,
    Release,
    Lease,
    Batch,
    Validate,
    Key,
    Keys,
    Revoke,
    Watch,
    Access,
    Cluster,
    Backup,
    AddMember,
    RemoveMember,
    Transfer,
    Upgrade,
    Live,
    Ready,
    Metrics,
    OpenApi,
    /// A file of the dashboard, which is not part of the API.
    File(dashboard::File),
    /// The route has only these methods: 405.
    OtherMethod(&'static [Handler]),
    /// No such route: 404.
    Nothing,
}

/// The `route` label of a request, the right that it requires, and its handler.
fn find(method: &Method, path: &str) -> (&'static str, Right, Call) {
    let (route, methods) = match ROUTES.iter().find(|(route, _)| is_at(route, path)) {
        Some(&(route, methods)) => (route, methods),
        None => match dashboard::FILES.iter().find(|file| file.path == path) {
            Some(&file) if matches!(*method, Method::GET | Method::HEAD) => {
                return (dashboard::ROUTE, Right::Public, Call::File(file));
            }
            Some(_) => (dashboard::ROUTE, &[(Method::GET, Right::Public, Call::Nothing)][..]),
            None => return (NO_ROUTE, Right::Public, Call::Nothing),
        },
    };
    let method = if method == Method::HEAD { &Method::GET } else { method };
    match methods.iter().find(|(other, ..)| other == method) {
        Some(&(_, right, call)) => (route, right, call),
        None => (route, Right::Public, Call::OtherMethod(methods)),
    }
}

/// Whether `path` matches `route`, which has one parameter at most. A `{key}` is the rest of the path, possibly empty, so nothing can follow
/// it; other parameters are one segment.
fn is_at(route: &str, path: &str) -> bool {
    let Some((before, rest)) = route.split_once('{') else { return path == route };
    let Some(found) = path.strip_prefix(before) else { return false };
    let (name, after) = rest.split_once('}').expect("every brace of a route is closed");
    let is_segment = |found: &str| !found.is_empty() && !found.contains('/');
    name == "key" || found.strip_suffix(after).is_some_and(is_segment)
}

impl Call {
    /// Checks what holds for every request. Whether it names this node.
    fn check(self, door: &Door, request: &Request) -> Result<bool, Failed> {
        match self {
            Self::Live => door.check_live(request),
            _ => door.check(request).map(|()| true),
        }
    }

    async fn answer(self, door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
        match self {
            Self::Acquire => acquire::put(door, visit, request).await,
            Self::AcquireNew => acquire::post(door, visit, request).await,
            Self::Renew => leases::renew(door, visit, request).await,
            Self::RenewMany => many::renew(door, visit, request).await,
            Self::Release => leases::delete(door, visit, request).await,
            Self::Lease => leases::get(door, visit, request).await,
            Self::Batch => many::batch(door, visit, request).await,
            Self::Validate => validate::post(door, visit, request).await,
            Self::Key => keys::get(door, visit, request).await,
            Self::Keys => keys::list(door, visit, request).await,
            Self::Revoke => keys::revoke(door, visit, request).await,
            Self::Watch => watch::get(door, visit, request).await,
            Self::Access => access::get(visit, &request),
            Self::Cluster => cluster::get(door, request).await,
            Self::Backup => cluster::backup(door, request).await,
            Self::AddMember => cluster::add(door, visit, request).await,
            Self::RemoveMember => cluster::remove(door, visit, request).await,
            Self::Transfer => cluster::transfer(door, visit, request).await,
            Self::Upgrade => cluster::upgrade(door, visit, request).await,
            Self::Live => health::live(door, request).await,
            Self::Ready => health::ready(door, request).await,
            Self::Metrics => metrics::get(door, request).await,
            Self::OpenApi => openapi::get(request).await,
            Self::File(file) => Ok(dashboard::get(file, &request)),
            Self::OtherMethod(methods) => Ok(method_not_allowed(request.method(), methods)),
            Self::Nothing => {
                let path = without_secrets(request.uri().path());
                let detail = format!("there is no route `{path}`: see /openapi.json");
                Err(Failed::new(ProblemKind::NotFound, detail))
            }
        }
    }
}

fn method_not_allowed(method: &Method, methods: &[Handler]) -> Response {
    let names = methods.iter().map(|(method, ..)| match *method {
        Method::GET => "GET,HEAD",
        ref other => other.as_str(),
    });
    let allowed = HeaderValue::try_from(names.collect::<Vec<_>>().join(","));
    let detail = format!("this route does not support {method}: see the header Allow");
    let mut response = Failed::new(ProblemKind::MethodNotAllowed, detail).into_response();
    response.headers_mut().insert(ALLOW, allowed.expect("the methods are valid header text"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_path_matches_one_route() {
        for (path, expected) in [
            ("/v1/leases", "/v1/leases"),
            ("/v1/leases/", NO_ROUTE),
            ("/v1/leases//", NO_ROUTE),
            ("/v1/leases/a", "/v1/leases/{lease_id}"),
            ("/v1/leases/a/", NO_ROUTE),
            ("/v1/leases/a/renew", "/v1/leases/{lease_id}/renew"),
            ("/v1/leases//renew", NO_ROUTE),
            ("/v1/leases/renew", "/v1/leases/{lease_id}"),
            ("/v1/leases/a/renew/", NO_ROUTE),
            ("/v1/keys", "/v1/keys"),
            ("/v1/keys/", "/v1/keys/{key}"),
            ("/v1/keys/a/b//c", "/v1/keys/{key}"),
            ("/v1/cluster/members", "/v1/cluster/members"),
            ("/v1/cluster/members/7", "/v1/cluster/members/{id}"),
            ("/v1/validate/", NO_ROUTE),
            ("/", dashboard::ROUTE),
            ("", NO_ROUTE),
        ] {
            assert_eq!(find(&Method::GET, path).0, expected, "{path}");
            let routes = ROUTES.iter().filter(|(route, _)| is_at(route, path)).count();
            assert!(routes <= 1, "{path}");
        }
    }

    #[test]
    fn every_route_is_found() {
        for (route, _) in ROUTES {
            let path = route.replace(['{', '}'], "");
            assert_eq!(find(&Method::GET, &path).0, *route, "{path} is at another route, or at none");
        }
    }

    #[test]
    fn get_answers_head_too() {
        for path in ["/livez", "/v1/keys/a", "/"] {
            assert!(!matches!(find(&Method::HEAD, path).2, Call::OtherMethod(_) | Call::Nothing), "{path}");
        }
        assert!(matches!(find(&Method::HEAD, "/v1/batch").2, Call::OtherMethod(_)));
    }

    #[test]
    fn the_document_has_exactly_these_routes_and_rights() {
        let document: serde_json::Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let mut documented = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in
                item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters")
            {
                let right = operation["x-right"].as_str().unwrap_or("is missing");
                documented.insert(format!("{} {path}: {right}", method.to_ascii_uppercase()));
            }
        }
        let name = |right: &Right| match right {
            Right::Public | Right::Stranger | Right::Identity | Right::AnyOf(_) => "none".to_owned(),
            Right::OnKeys(right) => right.to_string(),
            Right::OnCluster(right) => right.to_string(),
        };
        let of_route = |&(route, methods): &(&'static str, &'static [Handler])| {
            methods.iter().map(move |(method, right, _)| format!("{method} {route}: {}", name(right)))
        };
        assert_eq!(documented, ROUTES.iter().flat_map(of_route).collect());
    }
}
