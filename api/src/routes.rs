//! The route table of the API, and the `match` that calls the handlers.

mod abandon;
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
mod outcome;
pub(crate) mod starting;
mod validate;
mod watch;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::Method;
use axum::http::header::{ALLOW, HeaderValue};
use axum::response::{IntoResponse, Response};
use ringfence_wire::ProblemKind;

use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::problems::Failed;
use crate::request::requester::Requester;

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

    /// Answers one request, whose connection comes `from` there. Must be polled in a tokio runtime with timers.
    pub async fn answer(self, request: Request, from: SocketAddr) -> Result<Response, Infallible> {
        let door = &*self.door;
        let requester = door.requester(&request, from);
        let (route, call) = find(request.method(), request.uri().path());
        let open = door.log.open(&requester, measure::method(request.method()), route);
        let answer = match door.check(&request) {
            Ok(()) => call.answer(door, &requester, request).await,
            Err(failed) => Err(failed),
        };
        let mut response = answer.unwrap_or_else(IntoResponse::into_response);
        door.add_headers(&mut response, &requester);
        open.answered(&response);
        Ok(response)
    }
}

/// The routes of the API, as in the OpenAPI document, with their methods. GET answers HEAD, too.
const ROUTES: &[(&str, &[(Method, Call)])] = &[
    (
        "/v1/leases/{lease_id}",
        &[(Method::PUT, Call::Acquire), (Method::DELETE, Call::Release), (Method::GET, Call::Lease)],
    ),
    ("/v1/leases/{lease_id}/renew", &[(Method::POST, Call::Renew)]),
    ("/v1/validate", &[(Method::POST, Call::Validate)]),
    ("/v1/batch", &[(Method::POST, Call::Batch)]),
    ("/v1/renew", &[(Method::POST, Call::RenewMany)]),
    ("/v1/leases", &[(Method::POST, Call::AcquireNew)]),
    ("/v1/keys", &[(Method::GET, Call::Keys)]),
    ("/v1/keys/{key}", &[(Method::GET, Call::Key)]),
    ("/v1/revoke", &[(Method::POST, Call::Revoke)]),
    ("/v1/watch", &[(Method::GET, Call::Watch)]),
    ("/v1/cluster", &[(Method::GET, Call::Cluster)]),
    ("/v1/cluster/backup", &[(Method::GET, Call::Backup)]),
    ("/v1/cluster/members", &[(Method::POST, Call::AddMember)]),
    ("/v1/cluster/members/{id}", &[(Method::DELETE, Call::RemoveMember)]),
    ("/v1/cluster/transfer", &[(Method::POST, Call::Transfer)]),
    ("/v1/cluster/upgrade", &[(Method::POST, Call::Upgrade)]),
    ("/livez", &[(Method::GET, Call::Live)]),
    ("/readyz", &[(Method::GET, Call::Ready)]),
    ("/metrics", &[(Method::GET, Call::Metrics)]),
    ("/openapi.json", &[(Method::GET, Call::OpenApi)]),
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
    OtherMethod(&'static [(Method, Call)]),
    /// No such route: 404.
    Nothing,
}

/// The handler of a request, and its `route` label.
fn find(method: &Method, path: &str) -> (&'static str, Call) {
    let (route, methods) = match ROUTES.iter().find(|(route, _)| is_at(route, path)) {
        Some(&(route, methods)) => (route, methods),
        None => match dashboard::FILES.iter().find(|file| file.path == path) {
            Some(&file) if matches!(*method, Method::GET | Method::HEAD) => {
                return (dashboard::ROUTE, Call::File(file));
            }
            Some(_) => return (dashboard::ROUTE, Call::OtherMethod(&[(Method::GET, Call::Nothing)])),
            None => return (NO_ROUTE, Call::Nothing),
        },
    };
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let call = methods.iter().find(|(other, _)| other == method).map(|(_, call)| *call);
    (route, call.unwrap_or(Call::OtherMethod(methods)))
}

/// Whether `path` matches `route`. A `{key}` is the rest of the path, possibly empty; other parameters are one segment.
fn is_at(route: &str, path: &str) -> bool {
    let Some((before, rest)) = route.split_once('{') else { return path == route };
    let Some(found) = path.strip_prefix(before) else { return false };
    let (name, after) = rest.split_once('}').expect("every brace of a route is closed");
    let is_segment = |found: &str| !found.is_empty() && !found.contains('/');
    name == "key" || found.strip_suffix(after).is_some_and(is_segment)
}

impl Call {
    async fn answer(self, door: &Door, requester: &Requester, request: Request) -> Answer {
        match self {
            Self::Acquire => acquire::put(door, request).await,
            Self::AcquireNew => acquire::post(door, request).await,
            Self::Renew => leases::renew(door, request).await,
            Self::RenewMany => many::renew(door, request).await,
            Self::Release => leases::delete(door, request).await,
            Self::Lease => leases::get(door, request).await,
            Self::Batch => many::batch(door, request).await,
            Self::Validate => validate::post(door, request).await,
            Self::Key => keys::get(door, request).await,
            Self::Keys => keys::list(door, request).await,
            Self::Revoke => keys::revoke(door, requester, request).await,
            Self::Watch => watch::get(door, request).await,
            Self::Cluster => cluster::get(door, request).await,
            Self::Backup => cluster::backup(door, request).await,
            Self::AddMember => cluster::add(door, requester, request).await,
            Self::RemoveMember => cluster::remove(door, requester, request).await,
            Self::Transfer => cluster::transfer(door, requester, request).await,
            Self::Upgrade => cluster::upgrade(door, requester, request).await,
            Self::Live => health::live(door, request).await,
            Self::Ready => health::ready(door, request).await,
            Self::Metrics => metrics::get(door, request).await,
            Self::OpenApi => openapi::get(request).await,
            Self::File(file) => Ok(dashboard::get(file, &request)),
            Self::OtherMethod(methods) => Ok(method_not_allowed(request.method(), methods)),
            Self::Nothing => {
                let detail = format!("there is no route `{}`: see /openapi.json", request.uri().path());
                Err(Failed::new(ProblemKind::NotFound, detail))
            }
        }
    }
}

fn method_not_allowed(method: &Method, methods: &[(Method, Call)]) -> Response {
    let names = methods.iter().map(|(method, _)| match *method {
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
    fn get_answers_head_too() {
        for path in ["/livez", "/v1/keys/a", "/"] {
            assert!(!matches!(find(&Method::HEAD, path).1, Call::OtherMethod(_) | Call::Nothing), "{path}");
        }
        assert!(matches!(find(&Method::HEAD, "/v1/batch").1, Call::OtherMethod(_)));
    }

    #[test]
    fn the_document_has_exactly_these_routes() {
        let document: serde_json::Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let mut documented = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let methods = item.as_object().unwrap().keys().filter(|name| *name != "parameters");
            documented.extend(methods.map(|method| format!("{} {path}", method.to_ascii_uppercase())));
        }
        let routes =
            ROUTES.iter().flat_map(|(route, methods)| methods.iter().map(move |(method, _)| (route, method)));
        let routed: BTreeSet<_> = routes.map(|(route, method)| format!("{method} {route}")).collect();
        assert_eq!(documented, routed);
    }
}
