//! Many renewals or operations in one request.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use ringfence_http::Connection;
use ringfence_service::{Done, Failure, Results};
use ringfence_wire::{
    BatchBody, BatchRenew, BatchRequest, BatchResult, LeaseId, Operation, RenewManyRequest,
};

use super::acquire::of_acquired;
use crate::door::{Answer, Door, Request, Visit};
use crate::problems::Failed;
use crate::request::body;
use crate::request::query::Query;
use crate::response::with_type;

/// `POST /v1/renew`
pub(crate) async fn renew(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let connection = Arc::clone(request.body().connection());
    let request = body::read(visit, request, RenewManyRequest::check).await?;
    let renew = |lease_id| Operation::Renew(BatchRenew { lease_id, ttl_ms: None });
    run(door, visit, &connection, request.lease_ids.into_iter().map(renew).collect()).await
}

/// `POST /v1/batch`
pub(crate) async fn batch(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let connection = Arc::clone(request.body().connection());
    let request = body::read(visit, request, BatchRequest::check).await?;
    run(door, visit, &connection, request.operations).await
}

/// Runs operations, whose body arrived on `connection`.
async fn run(
    door: &Door,
    visit: &mut Visit<'_>,
    connection: &Connection,
    operations: Vec<Operation>,
) -> Answer {
    let mut answer = BatchText { text: Vec::new(), counted: 0, connection };
    door.service.run(visit, operations, || connection.lasts(), &mut answer).await?;
    Ok(answer.response())
}

/// No further operations are done when the response is longer than this.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The JSON of a [`BatchAnswer`](ringfence_wire::BatchAnswer), written part by part.
struct BatchText<'a> {
    text: Vec<u8>,
    /// How much of it the connection knows to be taken.
    counted: usize,
    connection: &'a Connection,
}

impl Results for BatchText<'_> {
    fn put(&mut self, result: Result<Done, Failure>, of: Option<LeaseId>) {
        let before: &[u8] = if self.text.is_empty() { br#"{"results":["# } else { b"," };
        self.text.extend_from_slice(before);
        let result = result.map_or_else(|failure| problem(failure, of), result_of);
        serde_json::to_writer(&mut self.text, &result).expect("every result is valid JSON");
    }

    fn are_full(&mut self) -> bool {
        let more = self.text.len() - std::mem::replace(&mut self.counted, self.text.len());
        self.connection.takes_more(more) || self.text.len() > MAX_ANSWER_BYTES
    }
}

impl BatchText<'_> {
    fn response(mut self) -> Response {
        match self.text.is_empty() {
            true => self.text.extend_from_slice(br#"{"results":[]}"#),
            false => self.text.extend_from_slice(b"]}"),
        }
        with_type(StatusCode::OK, "application/json", self.text)
    }
}

/// The status and body that the operation would have had as a request of its own.
fn result_of(done: Done) -> BatchResult {
    let (status, body) = match done {
        Done::Acquired(acquired) => {
            let (status, body) = of_acquired(acquired);
            (status, Some(body))
        }
        Done::Renewed(grant) => (StatusCode::OK, Some(BatchBody::Grant(grant))),
        Done::Released => (StatusCode::NO_CONTENT, None),
    };
    BatchResult { status: status.as_u16(), body }
}

fn problem(failure: Failure, of: Option<LeaseId>) -> BatchResult {
    let failed = Failed::from(failure);
    let problem = of.into_iter().fold(failed, Failed::of_lease).into_problem();
    BatchResult { status: problem.status, body: Some(BatchBody::Problem(problem)) }
}
