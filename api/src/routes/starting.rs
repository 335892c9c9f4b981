//! The responses of a node that does not belong to a cluster yet.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use ringfence_http::Remote;
use ringfence_wire::ProblemKind;

use crate::problems::Failed;
use crate::routes::health::is_live;

/// Answers for a node that waits for the other members of a new cluster: it is alive, and everything else is certainly not
/// done. Each response closes its connection, so that the client's next one gets the routes of the API.
pub async fn starting<B>(request: Request<B>, _remote: Arc<Remote>) -> Result<Response, Infallible> {
    let mut response = match (request.method(), request.uri().path()) {
        (&(Method::GET | Method::HEAD), "/livez") => is_live(),
        _ => {
            let detail = "this node waits for the other members of a new cluster";
            Failed::new(ProblemKind::Unavailable, detail).into_response()
        }
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(response)
}
