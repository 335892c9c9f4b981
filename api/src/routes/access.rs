use axum::http::StatusCode;
use ringfence_service::Caller;

use crate::door::{Answer, Request};
use crate::request::query::Query;
use crate::response::json;

/// `GET /v1/access`: who the caller is, and what it may do.
pub(crate) fn get(caller: &Caller, request: &Request) -> Answer {
    Query::none(request.uri())?;
    Ok(json(StatusCode::OK, &caller.principal().view()))
}
