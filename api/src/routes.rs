use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter};
use axum::{BoxError, Router};
use tower_service::Service;

use crate::asker::Asker;
use crate::door::{Answer, Door};
use crate::problems::{method_not_allowed, not_found};
use crate::{cluster, dashboard, health, keys, leases, many, measure, openapi, validate, watch};

/// The label of what is measured where no route takes a request.
const NO_ROUTE: &str = "none";

/// All routes. Those that clients take all the time are found without the router and its own work: captures that the
/// handlers do not use, and layers of boxed services, futures and bodies.
#[derive(Clone)]
pub struct Routes {
    door: Arc<Door>,
    router: Router,
}

impl Routes {
    pub(crate) fn new(door: Arc<Door>) -> Self {
        Self { router: router(Arc::clone(&door)), door }
    }

    /// Answers one request that came `from` there. To be polled inside a tokio runtime with timers.
    pub async fn answer<B>(self, mut request: Request<B>, from: SocketAddr) -> Result<Response, Infallible>
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let Self { door, mut router } = self;
        let asker = door.asker(&request, from);
        Ok(match Busy::of(request.method(), request.uri().path()) {
            Some(Busy::Put) => door.answer(LEASE, asker, request, leases::put).await,
            Some(Busy::Delete) => door.answer(LEASE, asker, request, leases::delete).await,
            Some(Busy::Renew) => door.answer(RENEW, asker, request, leases::renew).await,
            Some(Busy::Validate) => door.answer(VALIDATE, asker, request, validate::post).await,
            None => {
                request.extensions_mut().insert(asker);
                return router.call(request.map(Body::new)).await;
            }
        })
    }
}

const LEASE: &str = "/v1/leases/{lease_id}";
const RENEW: &str = "/v1/leases/{lease_id}/renew";
const VALIDATE: &str = "/v1/validate";

/// What clients ask for all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Put,
    Delete,
    Renew,
    Validate,
}

impl Busy {
    fn of(method: &Method, path: &str) -> Option<Self> {
        if path == VALIDATE {
            return (method == Method::POST).then_some(Self::Validate);
        }
        let lease = path.strip_prefix("/v1/leases/")?;
        let (lease, rest) = lease.split_once('/').map_or((lease, None), |(lease, rest)| (lease, Some(rest)));
        match rest {
            _ if lease.is_empty() => None,
            None if method == Method::PUT => Some(Self::Put),
            None if method == Method::DELETE => Some(Self::Delete),
            Some("renew") if method == Method::POST => Some(Self::Renew),
            _ => None,
        }
    }
}

fn router(door: Arc<Door>) -> Router {
    let add = |router: Router<_>, route: Route| router.route(route.path, route.methods);
    let nowhere = |State(door): State<Arc<Door>>, request: Request| {
        door.answer(NO_ROUTE, Asker::of(&request), request, not_found)
    };
    table().into_iter().chain(pages()).fold(Router::new(), add).fallback(nowhere).with_state(door)
}

/// The files of the dashboard, which are no part of the API.
fn pages() -> impl Iterator<Item = Route> {
    dashboard::FILES.iter().map(|&file| {
        Route::new(dashboard::ROUTE, file.path)
            .on(MethodFilter::GET, move |_, request| dashboard::get(file, request))
    })
}

/// Every route of the API. A GET answers HEAD too.
fn table() -> Vec<Route> {
    use MethodFilter as Method;
    let at = |path| Route::new(path, path);
    vec![
        at("/v1/leases").on(Method::POST, leases::post),
        at(LEASE)
            .on(Method::PUT, leases::put)
            .on(Method::GET, leases::get)
            .on(Method::DELETE, leases::delete),
        at(RENEW).on(Method::POST, leases::renew),
        at("/v1/renew").on(Method::POST, many::renew),
        at("/v1/batch").on(Method::POST, many::batch),
        at("/v1/keys").on(Method::GET, keys::list),
        Route::new("/v1/keys/{key}", "/v1/keys/{*key}").on(Method::GET, keys::get),
        // The wildcard takes no empty rest: so an empty key is refused like other texts that are no keys.
        Route::new("/v1/keys/{key}", "/v1/keys/").on(Method::GET, keys::get),
        at("/v1/revoke").on(Method::POST, keys::revoke),
        at(VALIDATE).on(Method::POST, validate::post),
        at("/v1/watch").on(Method::GET, watch::get),
        at("/v1/cluster").on(Method::GET, cluster::get),
        at("/v1/cluster/backup").on(Method::GET, cluster::backup),
        at("/v1/cluster/members").on(Method::POST, cluster::add),
        at("/v1/cluster/members/{id}").on(Method::DELETE, cluster::remove),
        at("/v1/cluster/transfer").on(Method::POST, cluster::transfer),
        at("/livez").on(Method::GET, health::live),
        at("/readyz").on(Method::GET, health::ready),
        at("/metrics").on(Method::GET, measure::get),
        at("/openapi.json").on(Method::GET, openapi::get),
    ]
}

/// One path and the handlers of its methods.
struct Route {
    /// As the OpenAPI document writes it; the label of what is measured.
    name: &'static str,
    /// As the router writes it.
    path: &'static str,
    methods: MethodRouter<Arc<Door>>,
}

impl Route {
    fn new(name: &'static str, path: &'static str) -> Self {
        let others = move |State(door): State<Arc<Door>>, request: Request| {
            door.answer(name, Asker::of(&request), request, method_not_allowed)
        };
        Self { name, path, methods: MethodRouter::new().fallback(others) }
    }

    fn on<W, F>(mut self, method: MethodFilter, work: W) -> Self
    where
        W: Fn(Arc<Door>, Request) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let name = self.name;
        let handler = move |State(door): State<Arc<Door>>, request: Request| {
            door.answer(name, Asker::of(&request), request, work)
        };
        self.methods = self.methods.on(method, handler);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_the_busy_routes_themselves_go_without_the_router() {
        let of = |method: &str, path: &str| Busy::of(&method.parse().unwrap(), path);
        let lease = "/v1/leases/0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
        assert_eq!(of("PUT", lease), Some(Busy::Put));
        assert_eq!(of("DELETE", lease), Some(Busy::Delete));
        assert_eq!(of("POST", &format!("{lease}/renew")), Some(Busy::Renew));
        assert_eq!(of("POST", "/v1/validate"), Some(Busy::Validate));
        for (method, path) in [
            ("GET", lease),
            ("POST", lease),
            ("PUT", "/v1/leases/"),
            ("PUT", "/v1/leases"),
            ("PUT", "/v1/leases//"),
            ("PUT", "/v1/leases/a/"),
            ("PUT", "/v1/leases/a/renew"),
            ("POST", "/v1/leases//renew"),
            ("POST", "/v1/leases/a/renew/"),
            ("GET", "/v1/validate"),
            ("POST", "/v1/validate/"),
        ] {
            assert_eq!(of(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn the_document_names_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let documented: BTreeSet<_> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routed: BTreeSet<_> = table().iter().map(|route| route.name).collect();
        assert_eq!(documented, routed);
    }
}
