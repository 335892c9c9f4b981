use std::convert::Infallible;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use ringfence_wire::{FieldError, Key, ProblemKind, Revision};

use crate::door::{Answer, Door, Request, Visit};
use crate::problems::Failed;
use crate::request::number;
use crate::request::query::Query;

/// What a browser sends when it reconnects: the last `id` that it received.
const LAST_EVENT_ID: &str = "last-event-id";
/// Tells nginx and others to pass on each event at once.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// `GET /v1/watch`
pub(crate) async fn get(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let caller = visit.caller();
    let mut query = Query::of(request.uri(), &["prefix", "after"])?;
    let prefix = query.take("prefix").unwrap_or_default();
    Key::check_prefix(&prefix).map_err(|error| FieldError::new("prefix", error.to_string()))?;
    let allowed = caller.allow_under(&prefix)?;
    let after = query.take("after").map(|text| revision(&text, "after")).transpose()?;
    // A browser that reconnects sends the same URL, so the header is newer.
    let after = match request.headers().get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or("?")) {
        None | Some("") => after,
        Some(id) => Some(revision(id, "Last-Event-ID")?),
    };
    if door.is_draining() {
        return Err(Failed::new(ProblemKind::Unavailable, "this node is stopping"));
    }
    let lasts = || request.body().connection().lasts();
    let stream = door.watchers.open(caller, allowed, after, lasts).await?;
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("text/event-stream")), UNBUFFERED];
    Ok((headers, Body::from_stream(stream.map(Ok::<_, Infallible>))).into_response())
}

fn revision(text: &str, field: &str) -> Result<Revision, FieldError> {
    number(text)
        .map(Revision)
        .ok_or_else(|| FieldError::new(field, "must be a revision, as in the `id` of an event"))
}
