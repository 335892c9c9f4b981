use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use ringfence_wire::ProblemKind;
use serde_json::json as object;
use tokio::time::sleep;

use crate::door::{Answer, Door, Request};
use crate::problems::Failed;
use crate::request::query::Query;
use crate::response::json;

/// A node whose Raft thread is stuck for longer should be restarted.
const MAX_HANG: Duration = Duration::from_secs(10);
/// The time that a stuck Raft thread has to show that it runs again.
const WAKES_WITHIN: Duration = Duration::from_secs(1);

/// `GET /livez`: the process runs and answers. A node without a leader is alive: restarting it would not help.
pub(crate) async fn live(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    let mut hangs_for = (door.options.hangs_for)();
    if hangs_for > MAX_HANG {
        // When the whole process was suspended, this thread may run before that one.
        sleep(WAKES_WITHIN).await;
        hangs_for = (door.options.hangs_for)();
    }
    if hangs_for > MAX_HANG {
        let detail = format!("the Raft thread has been blocked for {} s", hangs_for.as_secs());
        return Err(Failed::new(ProblemKind::Unavailable, detail));
    }
    Ok(is_live())
}

/// The response to `GET /livez`.
pub(crate) fn is_live() -> Response {
    json(StatusCode::OK, &object!({ "status": "live" }))
}

/// `GET /readyz`: whether to send requests here.
pub(crate) async fn ready(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    if door.is_draining() {
        return Err(Failed::new(ProblemKind::Unavailable, "this node is stopping"));
    }
    // Without a leader this takes a second.
    request.body().connection().lasts();
    if !door.cluster().is_ready().await {
        return Err(Failed::new(
            ProblemKind::Unavailable,
            "this node has no contact with a leader that has a quorum, or leads and cannot commit",
        ));
    }
    Ok(json(StatusCode::OK, &object!({ "status": "ready" })))
}
