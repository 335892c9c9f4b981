use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use ringfence_wire::ProblemKind;
use serde::Serialize;
use serde_json::json as object;

use crate::door::{Answer, Door, json};
use crate::problems::Failed;
use crate::query::Query;

/// The body of `GET /livez`.
#[derive(Serialize)]
pub(crate) struct Live {
    status: &'static str,
}

pub(crate) const LIVE: &Live = &Live { status: "live" };

/// `GET /livez`: the process runs and answers. Whether it has a leader is no reason to restart it.
pub(crate) async fn live(_: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    Ok(json(StatusCode::OK, LIVE))
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
