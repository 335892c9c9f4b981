use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use ringfence_wire::ProblemKind;
use serde_json::json as object;

use crate::door::{Answer, Door, json};
use crate::problems::Failed;
use crate::query::Query;

/// `GET /livez`: the process runs and answers. Whether it has a leader is no reason to restart it.
pub(crate) async fn live(_: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    Ok(is_live())
}

/// The answer to `GET /livez`.
pub(crate) fn is_live() -> Response {
    json(StatusCode::OK, &object!({ "status": "live" }))
}

/// `GET /readyz`: requests may be sent here.
pub(crate) async fn ready(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    if *door.options.draining.borrow() {
        return Err(Failed::new(ProblemKind::Unavailable, "this node is about to stop"));
    }
    if !door.handle.is_ready().await {
        return Err(Failed::new(
            ProblemKind::Unavailable,
            "no leader with a quorum behind it answers this node",
        ));
    }
    Ok(json(StatusCode::OK, &object!({ "status": "ready" })))
}
