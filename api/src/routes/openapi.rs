use std::sync::LazyLock;

use axum::http::StatusCode;
use bytes::Bytes;
use ringfence_http::takes_no_memory;

use crate::door::{Answer, Request};
use crate::request::query::Query;
use crate::response::with_type;

/// The document is written by hand, because the wire types have hand-written JSON formats. Tests compare it with them and
/// with the routes.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let document = include_str!("../../openapi.json");
    document
        .replacen("\"version\": \"0\"", concat!("\"version\": \"", env!("CARGO_PKG_VERSION"), "\""), 1)
        .into()
});

/// `GET /openapi.json`
pub(crate) async fn get(request: Request) -> Answer {
    Query::none(request.uri())?;
    Ok(takes_no_memory(with_type(StatusCode::OK, "application/json", DOCUMENT.clone())))
}
