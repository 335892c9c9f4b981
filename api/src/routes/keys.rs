use axum::body::HttpBody;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ringfence_lease::Sieve;
use ringfence_service::Page;
use ringfence_wire::{FieldError, Key, KeyList, RevokeRequest};
use serde::Serialize;

use super::audit::{Act, Subject};
use super::cursor::Cursor;
use crate::door::{Answer, Door, Request, Visit};
use crate::problems::Failed;
use crate::request::query::Query;
use crate::request::{body, number, path};
use crate::response::json;

/// Keys per page.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;

/// `GET /v1/keys/{key}`
pub(crate) async fn get(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let caller = visit.caller();
    let key = path::key(request.uri())?;
    let key = caller.allow_key(&key)?;
    let view = door.service.key(caller, key, Query::consistency_only(request.uri())?).await?;
    Ok(found(visit, &view))
}

/// `GET /v1/keys`
pub(crate) async fn list(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let caller = visit.caller();
    let names = ["prefix", "find", "contended", "after", "limit", "consistency"];
    let mut query = Query::of(request.uri(), &names)?;
    let prefix = query.take("prefix").unwrap_or_default();
    if prefix.len() > Key::MAX_BYTES {
        return Err(FieldError::new("prefix", "must have at most 512 bytes of UTF-8").into());
    }
    let find = query.take("find").unwrap_or_default();
    if find.len() > Key::MAX_BYTES {
        return Err(FieldError::new("find", "must have at most 512 bytes of UTF-8").into());
    }
    let sieve = Sieve { text: &find, is_contended: query.flag("contended")? };
    let prefix = caller.allow_under(&prefix)?;
    let after = query.take("after").map(|text| text.parse::<Cursor>()).transpose()?;
    let limit = match query.take("limit").map(|text| usize::try_from(number(&text)?).ok()) {
        None => DEFAULT_LIMIT,
        Some(Some(limit @ 1..=MAX_LIMIT)) => limit,
        Some(_) => return Err(FieldError::new("limit", "must be a number from 1 to 1,000").into()),
    };
    let behind = after.as_ref().map(|cursor| &cursor.last);
    let page = door.service.keys(caller, prefix, sieve, behind, limit, query.consistency()?).await?;
    let Page { keys, last, revision } = page;
    // Of nodes that lag, a later page may show an older view. An invented cursor is not believed.
    let revision = after.map_or(revision, |cursor| revision.min(cursor.revision));
    let next = last.map(|last| Cursor { revision, last }.to_string());
    Ok(found(visit, &KeyList { keys, next, revision }))
}

/// The response to a read, which may be large.
fn found(visit: &Visit<'_>, found: &impl Serialize) -> Response {
    let response = json(StatusCode::OK, found);
    let bytes = response.body().size_hint().exact().unwrap_or_default();
    visit.shows(bytes as usize);
    response
}

/// `POST /v1/revoke`
pub(crate) async fn revoke(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let RevokeRequest { key, token } = body::read(visit, request, |_| Ok(())).await?;
    let subject =
        Subject { act: "revoke", key: Some(key.clone()), token: Some(token.0), ..Subject::default() };
    let act = Act::begin(door, visit, subject);
    let revoked = door.service.revoke(visit.caller(), key, token).await;
    act.ended(revoked.map(|()| StatusCode::NO_CONTENT.into_response()).map_err(Failed::from))
}
