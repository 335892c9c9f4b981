use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodFilter, MethodRouter};

use crate::door::{Answer, Door};
use crate::problems::{method_not_allowed, not_found};
use crate::{cluster, health, keys, leases, many, measure, openapi, validate};

/// What is measured of requests that no route takes.
const NO_ROUTE: &str = "none";

pub(crate) fn router(door: &Arc<Door>) -> Router {
    let router = table(door).into_iter().fold(Router::new(), |router, route| router.route(route.path, route.methods));
    let door = Arc::clone(door);
    router.fallback(move |request: Request| Arc::clone(&door).answer(NO_ROUTE, request, not_found))
}

/// Every route there is. A GET answers HEAD too.
fn table(door: &Arc<Door>) -> Vec<Route> {
    use MethodFilter as Method;
    let at = |path| Route::new(door, path, path);
    vec![
        at("/v1/leases").on(Method::POST, leases::post),
        at("/v1/leases/{lease_id}")
            .on(Method::PUT, leases::put)
            .on(Method::GET, leases::get)
            .on(Method::DELETE, leases::delete),
        at("/v1/leases/{lease_id}/renew").on(Method::POST, leases::renew),
        at("/v1/renew").on(Method::POST, many::renew),
        at("/v1/batch").on(Method::POST, many::batch),
        at("/v1/keys").on(Method::GET, keys::list),
        Route::new(door, "/v1/keys/{key}", "/v1/keys/{*key}").on(Method::GET, keys::get),
        // The wildcard takes no empty rest: an empty key is refused like other keys that are none.
        Route::new(door, "/v1/keys/{key}", "/v1/keys/").on(Method::GET, keys::get),
        at("/v1/revoke").on(Method::POST, keys::revoke),
        at("/v1/validate").on(Method::POST, validate::post),
        at("/v1/cluster").on(Method::GET, cluster::get),
        at("/livez").on(Method::GET, health::live),
        at("/readyz").on(Method::GET, health::ready),
        at("/metrics").on(Method::GET, measure::get),
        at("/openapi.json").on(Method::GET, openapi::get),
    ]
}

/// One path and the handlers of its methods.
struct Route {
    door: Arc<Door>,
    /// As the OpenAPI document writes it; the label of what is measured.
    name: &'static str,
    /// As the router writes it.
    path: &'static str,
    methods: MethodRouter,
}

impl Route {
    fn new(door: &Arc<Door>, name: &'static str, path: &'static str) -> Self {
        let shared = Arc::clone(door);
        let others = move |request: Request| Arc::clone(&shared).answer(name, request, method_not_allowed);
        Self { door: Arc::clone(door), name, path, methods: MethodRouter::new().fallback(others) }
    }

    fn on<W, F>(mut self, method: MethodFilter, work: W) -> Self
    where
        W: Fn(Arc<Door>, Request) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let door = Arc::clone(&self.door);
        let name = self.name;
        self.methods = self.methods.on(method, move |request: Request| Arc::clone(&door).answer(name, request, work));
        self
    }
}
