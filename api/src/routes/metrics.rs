use axum::http::StatusCode;

use crate::door::{Answer, Door, Request};
use crate::request::query::Query;
use crate::response::with_type;

/// `GET /metrics`. Gauges are set for each scrape, not kept up to date.
pub(crate) async fn get(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    door.service.measure()?;
    door.watchers.measure();
    door.options.connections.measure();
    let text = door.options.metrics.render();
    Ok(with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}
