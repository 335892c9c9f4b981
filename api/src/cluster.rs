use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;

use crate::door::{Answer, Door, json};
use crate::query::Query;

/// `GET /v1/cluster`
pub(crate) async fn get(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    Ok(json(StatusCode::OK, &door.handle.status()))
}
