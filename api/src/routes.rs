use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::{MethodFilter, MethodRouter};

use crate::door::{Answer, Door};
use crate::problems::{method_not_allowed, not_found};
use crate::{cluster, health, keys, leases, many, measure, openapi, validate};

/// The label of what is measured where no route takes a request.
const NO_ROUTE: &str = "none";

pub(crate) fn router(door: Arc<Door>) -> Router {
    let add = |router: Router<_>, route: Route| router.route(route.path, route.methods);
    let nowhere = |State(door): State<Arc<Door>>, request: Request| door.answer(NO_ROUTE, request, not_found);
    table().into_iter().fold(Router::new(), add).fallback(nowhere).with_state(door)
}

/// Every route there is. A GET answers HEAD too.
fn table() -> Vec<Route> {
    use MethodFilter as Method;
    let at = |path| Route::new(path, path);
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
        Route::new("/v1/keys/{key}", "/v1/keys/{*key}").on(Method::GET, keys::get),
        // The wildcard takes no empty rest: so an empty key is refused like other texts that are no keys.
        Route::new("/v1/keys/{key}", "/v1/keys/").on(Method::GET, keys::get),
        at("/v1/revoke").on(Method::POST, keys::revoke),
        at("/v1/validate").on(Method::POST, validate::post),
        at("/v1/cluster").on(Method::GET, cluster::get),
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
            door.answer(name, request, method_not_allowed)
        };
        Self { name, path, methods: MethodRouter::new().fallback(others) }
    }

    fn on<W, F>(mut self, method: MethodFilter, work: W) -> Self
    where
        W: Fn(Arc<Door>, Request) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let name = self.name;
        let handler = move |State(door): State<Arc<Door>>, request: Request| door.answer(name, request, work);
        self.methods = self.methods.on(method, handler);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_names_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let documented: BTreeSet<_> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routed: BTreeSet<_> = table().iter().map(|route| route.name).collect();
        assert_eq!(documented, routed);
    }
}
