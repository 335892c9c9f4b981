use std::sync::LazyLock;

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;

use crate::door::{Answer, Request};
use crate::request::query::Query;

/// The document as it is kept, by hand: the wire types write their own JSON, so nothing could be derived from them.
/// Tests hold it to what they read and write, and to the routes.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let document = include_str!("../../openapi.json");
    document
        .replacen("\"version\": \"0\"", concat!("\"version\": \"", env!("CARGO_PKG_VERSION"), "\""), 1)
        .into()
});

/// `GET /openapi.json`
pub(crate) async fn get(request: Request) -> Answer {
    Query::none(request.uri())?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT.clone()).into_response())
}
