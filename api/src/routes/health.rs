use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use ringfence_wire::{FieldError, ProblemKind, WITHIN_HEADER};
use serde_json::json as object;
use tokio::time::sleep;

use crate::door::{Answer, Door, Request};
use crate::problems::Failed;
use crate::request::number;
use crate::request::query::Query;
use crate::response::json;

/// A node of which a thread hangs for longer should be restarted.
const MAX_HANG: Duration = Duration::from_secs(10);
/// A node of which a thread hangs for longer should get no requests.
const READY_HANG: Duration = Duration::from_secs(2);
/// The shortest time that a client may ask for.
const MIN_HANG: Duration = Duration::from_millis(500);
/// The time that threads have to show that they run again, as a part of the time for which they may hang.
const WAKES_WITHIN: u32 = 10;

/// `GET /livez`: all threads of the process run. A thread that hangs is a node that hangs: a client that waits does not know which
/// thread has its request. A node without a leader is alive: restarting it would not help.
pub(crate) async fn live(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    let most = request.headers().get(WITHIN_HEADER).map_or(Ok(MAX_HANG), within)?.min(MAX_HANG);
    check_threads(door, most).await?;
    Ok(is_live())
}

/// Fails if a thread has hung for longer than that.
async fn check_threads(door: &Door, most: Duration) -> Result<(), Failed> {
    let mut hang = (door.options.hangs)();
    if hang.time > most {
        // When the whole process was suspended, this thread may run before the others.
        sleep(most / WAKES_WITHIN).await;
        hang = (door.options.hangs)();
    }
    if hang.time > most {
        let detail = format!("{} has been blocked for {:.1} s", hang.thread, hang.time.as_secs_f64());
        return Err(Failed::new(ProblemKind::Unavailable, detail));
    }
    Ok(())
}

fn within(header: &HeaderValue) -> Result<Duration, FieldError> {
    let time = header.to_str().ok().and_then(number).map(Duration::from_millis);
    let why = || format!("must be a number of milliseconds, {} at least", MIN_HANG.as_millis());
    time.filter(|time| *time >= MIN_HANG).ok_or_else(|| FieldError::new(WITHIN_HEADER, why()))
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
    check_threads(door, READY_HANG).await?;
    // Without a leader this takes a second.
    request.body().connection().lasts();
    if !door.service.is_ready().await {
        return Err(Failed::new(
            ProblemKind::Unavailable,
            "this node has no contact with a leader that has a quorum, or leads and cannot commit",
        ));
    }
    Ok(json(StatusCode::OK, &object!({ "status": "ready" })))
}
