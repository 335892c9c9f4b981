//! What a node answers before it belongs to a cluster.

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ringfence_wire::ProblemKind;

use crate::health::is_live;
use crate::problems::Failed;

/// The routes of a node that waits for the other members of a new cluster: it lives, and everything else is certainly
/// not done. Each answer ends its connection: the next one finds the routes of the API.
pub fn starting_router() -> Router {
    let live = || async { closing(is_live()) };
    let not_yet = || async {
        let detail = "this node waits for the other members of a new cluster";
        closing(Failed::new(ProblemKind::Unavailable, detail).into_response())
    };
    Router::new().route("/livez", get(live)).fallback(not_yet)
}

fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
