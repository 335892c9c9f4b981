//! `GET /v1/watch`: the changes of the table as server-sent events.
//!
//! ```text
//!  apply ─▶ History ─▶ round ─▶ Group of each prefix: the latest changes as text ─▶ Stream of each watch ─▶ hyper
//!              │       (20 ms)  encoded once                                               ▲
//!              └────────────────────────────── a watch that is further behind reads by itself ┘
//! ```
//! The changes are numbered without a gap and are the same on every node, so a watch is no more than a number, and goes on
//! at any node from the last one that was told. What follows on it the watch finds in its group, if it is recent, and else
//! in the history, as fast as its client reads. It is cut off only when the history has gone past it, and the last event
//! says so.
//!
//! A round takes what is new, finds the prefixes of each key that somebody watches (one look for each length that such a
//! prefix has, however many watch), and encodes each change once for each of them. It gathers for a moment, because to
//! wake a watch costs more than all else. Those who read the history by themselves do so by turns: they share what is left
//! to them of the thread that makes the rounds, too. There is one task for all, and only while anybody watches.
//!
//! A client that is told nothing, as nothing happens under its prefix, still needs a number to go on from that the history
//! has not gone past. So what keeps a quiet connection alive is no comment but an `id` without data: it sets the
//! `Last-Event-ID` and is no event ([HTML, 9.2.6](https://html.spec.whatwg.org/multipage/server-sent-events.html)). A
//! stream begins with one, too.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::IntoResponse;
use ringfence_wire::{FieldError, Key, ProblemKind, Revision};

use crate::door::{Answer, Door, Request};
use crate::problems::Failed;
use crate::query::Query;

mod frame;
mod group;
mod rounds;
mod stream;
mod watchers;

pub(crate) use watchers::Watchers;

/// What a browser sends when it connects again: the last `id` that it was told.
const LAST_EVENT_ID: &str = "last-event-id";
/// Proxies that know it pass on each event as it comes.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// `GET /v1/watch`
pub(crate) async fn get(door: Arc<Door>, request: Request) -> Answer {
    let mut query = Query::of(request.uri(), &["prefix", "after"])?;
    let prefix = query.take("prefix").unwrap_or_default();
    Key::check_prefix(&prefix).map_err(|error| FieldError::new("prefix", error.to_string()))?;
    let after = query.take("after").map(|text| revision(&text, "after")).transpose()?;
    // A browser that connects again sends the same URL: the header is newer.
    let after = match request.headers().get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or("?")) {
        None | Some("") => after,
        Some(id) => Some(revision(id, "Last-Event-ID")?),
    };
    if *door.options.draining.borrow() {
        return Err(Failed::new(ProblemKind::Unavailable, "this node is about to stop"));
    }
    // Only so can this node tell what is newer than the cluster from what it has not applied yet.
    door.handle.linearize().await?;
    let stream = door.watchers.open(&prefix, after)?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        UNBUFFERED,
    ];
    Ok((headers, Body::new(stream)).into_response())
}

fn revision(text: &str, field: &str) -> Result<Revision, FieldError> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.map(Revision).ok_or_else(|| FieldError::new(field, "is a revision: a number, as an event's `id`"))
}

#[cfg(test)]
mod tests {
    use ringfence_lease::{Change, Event};
    use ringfence_wire::{LeaseId, Mode, Token};

    use super::*;

    pub(super) fn event(revision: u64, keys: &[&str]) -> Event {
        Event {
            revision: Revision(revision),
            lease_id: LeaseId::from_u128(1).unwrap(),
            change: Change::Granted,
            token: Some(Token(revision)),
            keys: keys.iter().map(|key| (Key::new(key).unwrap(), Mode::Exclusive, Token(1))).collect(),
            holder: None,
        }
    }
}
