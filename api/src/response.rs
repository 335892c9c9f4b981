use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A response with `body` as JSON.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body).expect("every answer is valid JSON");
    with_type(status, "application/json", body)
}

/// A response with `body` of this content type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: impl IntoResponse) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static(content_type))], body).into_response()
}
