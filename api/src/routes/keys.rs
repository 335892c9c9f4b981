use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_lease::{Command, Outcome};
use ringfence_wire::{FieldError, Key, KeyList, RevokeRequest};

use crate::door::{Answer, Door, Request, json};
use crate::request::asker::Asker;
use crate::request::body;
use crate::request::path;
use crate::request::query::Query;
use crate::routes::audit::{Act, Wish};
use crate::routes::cursor::Cursor;

/// How many keys a page has where the client does not say.
const DEFAULT_LIMIT: usize = 100;
/// The most keys of a page.
const MAX_LIMIT: usize = 1_000;

/// `GET /v1/keys/{key}`
pub(crate) async fn get(door: Arc<Door>, request: Request) -> Answer {
    let key = path::key(request.uri())?;
    let consistency = Query::consistency_only(request.uri())?;
    let now_ms = door.now_ms(consistency).await?;
    let view = door.handle.view(|table| table.key(&key, now_ms));
    Ok(json(StatusCode::OK, &view))
}

/// `GET /v1/keys`
pub(crate) async fn list(door: Arc<Door>, request: Request) -> Answer {
    let mut query = Query::of(request.uri(), &["prefix", "after", "limit", "consistency"])?;
    let prefix = query.take("prefix").unwrap_or_default();
    if prefix.len() > Key::MAX_BYTES {
        return Err(FieldError::new("prefix", "a prefix has at most 512 bytes of UTF-8").into());
    }
    let after = query.take("after").map(|text| text.parse::<Cursor>()).transpose()?;
    let limit = match query.take("limit").map(|text| text.parse()) {
        None => DEFAULT_LIMIT,
        Some(Ok(limit @ 1..=MAX_LIMIT)) => limit,
        Some(_) => return Err(FieldError::new("limit", "is a number from 1 to 1,000").into()),
    };
    let now_ms = door.now_ms(query.consistency()?).await?;
    let (keys, last, revision) = door.handle.view(|table| {
        let after = after.as_ref().map(|cursor| cursor.last.as_str());
        let (keys, last) = table.keys(&prefix, after, limit, now_ms);
        (keys, last, table.revision())
    });
    let revision = after.map_or(revision, |cursor| cursor.revision);
    let next = last.map(|last| Cursor { revision, last }.to_string());
    Ok(json(StatusCode::OK, &KeyList { keys, next, revision }))
}

/// `POST /v1/revoke`
pub(crate) async fn revoke(door: Arc<Door>, asker: Asker, request: Request) -> Answer {
    Query::none(request.uri())?;
    let RevokeRequest { key, token } = body::read(request, |_| Ok(())).await?;
    let act = Act::begin(asker, Wish::Revoke { key: key.clone(), token });
    act.ended(match door.propose(Command::Revoke { key, token }).await {
        Ok(Outcome::Refused(refusal)) => Err(refusal.into()),
        Ok(_) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(unanswered) => Err(unanswered.into()),
    })
}
