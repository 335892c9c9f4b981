use axum::http::StatusCode;

use crate::door::{Answer, Request, Visit};
use crate::request::query::Query;
use crate::response::json;

/// `GET /v1/access`: who the caller is, and what it may do.
pub(crate) fn get(visit: &Visit<'_>, request: &Request) -> Answer {
    Query::none(request.uri())?;
    Ok(json(StatusCode::OK, &visit.caller().principal().view()))
}
