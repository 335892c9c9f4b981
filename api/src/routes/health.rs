use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use ringfence_wire::ProblemKind;
use serde_json::json as object;
use tokio::time::sleep;

use crate::door::{Answer, Door, Request, json};
use crate::problems::Failed;
use crate::request::query::Query;

/// A node that has hung for so long may be restarted.
const HANGS: Duration = Duration::from_secs(10);
/// The time that the thread that runs Raft has to show that it goes on.
const WAKES_WITHIN: Duration = Duration::from_secs(1);

/// `GET /livez`: the process runs and answers. Whether it has a leader is no reason to restart it.
pub(crate) async fn live(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let mut hangs_for = (door.options.hangs_for)();
    if hangs_for > HANGS {
        // After a suspend of the whole process, this thread may run before that one.
        sleep(WAKES_WITHIN).await;
        hangs_for = (door.options.hangs_for)();
    }
    if hangs_for > HANGS {
        let detail = format!("the thread that runs Raft has hung for {} s", hangs_for.as_secs());
        return Err(Failed::new(ProblemKind::Unavailable, detail));
    }
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
