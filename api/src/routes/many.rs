//! Many renewals or operations in one request.
//!
//! Those of few keys stand in one log entry together. To apply an entry is a step on the thread that runs Raft, and to put
//! what came of it into JSON one on a thread that serves others: so operations of very many keys are proposed one part after
//! the other. A request of which the first part has no outcomes fails as a whole, with 503 or 504; where a later one has none,
//! its operations are answered so, and those behind it are certainly not done.

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use ringfence_lease::{Acquire, Command, Outcome};
use ringfence_raft::Unanswered;
use ringfence_wire::{
    BatchAcquire, BatchBody, BatchRenew, BatchRequest, BatchResult, Grant, LeaseId, MAX_KEYS, MirroredGrant,
    Operation, ProblemKind, RenewManyRequest, Wait,
};

use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::problems::Failed;
use crate::request::body;
use crate::request::query::Query;
use crate::routes::leases::{released, renewed};
use crate::routes::take_back::TakeBack;

/// `POST /v1/renew`
pub(crate) async fn renew(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let wish = body::read(request, RenewManyRequest::check).await?;
    let renew = |lease_id| Operation::Renew(BatchRenew { lease_id, ttl_ms: None });
    run(&door, wish.lease_ids.into_iter().map(renew).collect()).await
}

/// `POST /v1/batch`
pub(crate) async fn batch(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let wish = body::read(request, BatchRequest::check).await?;
    run(&door, wish.operations).await
}

/// What an outcome is the outcome of.
enum Kind {
    Acquire(LeaseId),
    Renew,
    Release,
}

fn command(door: &Door, operation: Operation) -> (Command, Kind) {
    match operation {
        Operation::Acquire(wish) => {
            let lease_id = wish.lease_id;
            (Command::Acquire(Box::new(once(door, wish))), Kind::Acquire(lease_id))
        }
        Operation::Renew(wish) => (Command::Renew { lease_id: wish.lease_id, ttl: wish.ttl_ms }, Kind::Renew),
        Operation::Release(wish) => (Command::Release { lease_id: wish.lease_id }, Kind::Release),
    }
}

/// An acquire that does not wait for its turn.
fn once(door: &Door, wish: BatchAcquire) -> Acquire {
    Acquire {
        lease_id: wish.lease_id,
        claims: wish.keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
        ttl: wish.ttl_ms,
        wait: Wait::default(),
        keep_place: wish.keep_place,
        holder: wish.holder,
        metadata: wish.metadata,
        attachment: door.attachment(),
    }
}

/// How many keys the operations of one part have together, if it is not a single one.
const MAX_KEYS_AT_ONCE: usize = 4_096;
/// An answer that has become so long takes the results of no further part.
const MAX_ANSWER_BYTES: usize = 8 << 20;

async fn run(door: &Door, operations: Vec<Operation>) -> Answer {
    let are_few = operations.len() * MAX_KEYS <= MAX_KEYS_AT_ONCE;
    let operations = operations.into_iter().map(|operation| command(door, operation));
    let parts = match are_few {
        true => parts(operations, |_| 0),
        false => door.handle.view(|table| parts(operations, |(command, _)| table.keys_of(command))),
    };
    let mut results = Results::default();
    let (mut unanswered, mut refused) = (Vec::new(), None::<Failed>);
    for (number, part) in parts.into_iter().enumerate() {
        let (commands, kinds): (Vec<_>, Vec<_>) = part.into_iter().unzip();
        if refused.is_none() && results.text.len() > MAX_ANSWER_BYTES {
            let detail = "the answer has become too long for this: it was not done, ask for fewer at once";
            refused = Some(Failed::new(ProblemKind::TooLarge, detail));
        }
        if let Some(refused) = &refused {
            kinds.into_iter().for_each(|kind| results.put(&kind.refused(refused)));
            continue;
        }
        let acquires = commands.iter().filter_map(|command| match command {
            Command::Acquire(acquire) => Some((acquire.lease_id, acquire.attachment)),
            _ => None,
        });
        unanswered.push(TakeBack::unless_answered(&door.handle, acquires.collect()));
        match door.handle.propose(commands).await {
            Ok(outcomes) => {
                let mirrored = mirrored(door, &kinds, &outcomes).await;
                for (kind, outcome) in kinds.into_iter().zip(outcomes) {
                    results.put(&kind.result(outcome, mirrored));
                }
            }
            Err(failure) => {
                let failed = Failed::from(failure);
                kinds.iter().for_each(|kind| kind.failed(&failed));
                if number == 0 {
                    unanswered.into_iter().for_each(TakeBack::answered);
                    return Err(failed);
                }
                kinds.into_iter().for_each(|kind| results.put(&kind.refused(&failed)));
                let detail = "an operation before this one has no outcome: this was certainly not done";
                refused = Some(Failed::new(ProblemKind::Unavailable, detail));
            }
        }
    }
    unanswered.into_iter().for_each(TakeBack::answered);
    Ok(results.answer())
}

/// The operations in their order, in parts that have few keys.
fn parts<T>(operations: impl Iterator<Item = T>, keys_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut keys = 0;
    for operation in operations {
        let more = keys_of(&operation);
        match parts.last_mut() {
            Some(part) if keys + more <= MAX_KEYS_AT_ONCE => {
                keys += more;
                part.push(operation);
            }
            _ => {
                keys = more;
                parts.push(vec![operation]);
            }
        }
    }
    parts
}

/// A [`BatchAnswer`](ringfence_wire::BatchAnswer) as JSON, part by part.
#[derive(Default)]
struct Results {
    text: Vec<u8>,
}

impl Results {
    fn put(&mut self, result: &BatchResult) {
        let before: &[u8] = if self.text.is_empty() { br#"{"results":["# } else { b"," };
        self.text.extend_from_slice(before);
        serde_json::to_writer(&mut self.text, result).expect("answers have nothing that JSON cannot say");
    }

    fn answer(mut self) -> Response {
        match self.text.is_empty() {
            true => self.text.extend_from_slice(br#"{"results":[]}"#),
            false => self.text.extend_from_slice(b"]}"),
        }
        let content_type = HeaderValue::from_static("application/json");
        (StatusCode::OK, [(CONTENT_TYPE, content_type)], self.text).into_response()
    }
}

/// Whether all grants of a batch stand in the mirror; `None` where grants do not wait for that. New ones are looked up
/// together: one entry of the log made them, and no view shows only some of them. Older ones may long stand there, each
/// at a revision of its own.
async fn mirrored(door: &Door, kinds: &[Kind], outcomes: &[Outcome]) -> Option<bool> {
    let grants = kinds.iter().zip(outcomes).filter_map(|(kind, outcome)| match (kind, outcome) {
        (Kind::Acquire(_), Outcome::Granted(grant)) => Some((true, &**grant)),
        (Kind::Acquire(_), Outcome::Standing(grant)) => Some((false, &**grant)),
        _ => None,
    });
    let (new, older): (Vec<_>, Vec<_>) = grants.partition(|(is_new, _)| *is_new);
    if !door.mirrored(new.into_iter().map(|(_, grant)| grant)).await? {
        return Some(false);
    }
    let older = join_all(older.into_iter().map(|(_, grant)| door.mirrored(std::iter::once(grant)))).await;
    Some(older.into_iter().all(|mirrored| mirrored == Some(true)))
}

impl Kind {
    /// Counts that the operation failed with all others.
    fn failed(&self, failed: &Failed) {
        match self {
            Self::Acquire(_) => measure::acquired(Err(failed)),
            Self::Renew => measure::renewed(Some(failed)),
            Self::Release => {}
        }
    }

    /// The answer to an operation that has no outcome.
    fn refused(self, refused: &Failed) -> BatchResult {
        let refused = refused.clone();
        problem(match self {
            Self::Acquire(lease_id) => refused.of_lease(lease_id),
            Self::Renew | Self::Release => refused,
        })
    }

    /// What the operation would have been answered on its own.
    fn result(self, outcome: Outcome, mirrored: Option<bool>) -> BatchResult {
        match self {
            Self::Acquire(lease_id) => {
                let tried = tried(outcome, mirrored).map_err(|failed| failed.of_lease(lease_id));
                measure::acquired(tried.as_ref().map(|(status, _)| *status));
                tried.map_or_else(problem, |(status, body)| done(status, body))
            }
            Self::Renew => {
                let renewed = renewed(outcome);
                measure::renewed(renewed.as_ref().err());
                renewed.map_or_else(problem, |grant| done(StatusCode::OK, BatchBody::Grant(grant)))
            }
            Self::Release => {
                measure::released();
                released(outcome)
                    .map_or_else(problem, |status| BatchResult { status: status.as_u16(), body: None })
            }
        }
    }
}

fn tried(outcome: Outcome, mirrored: Option<bool>) -> Result<(StatusCode, BatchBody), Failed> {
    let granted = |grant: Box<Grant>| match mirrored {
        Some(mirrored) => BatchBody::Mirrored(Box::new(MirroredGrant { grant: *grant, mirrored })),
        None => BatchBody::Grant(grant),
    };
    match outcome {
        Outcome::Granted(grant) => Ok((StatusCode::CREATED, granted(grant))),
        Outcome::Standing(grant) => Ok((StatusCode::OK, granted(grant))),
        Outcome::Waiting(place) | Outcome::Kept(place) => {
            Ok((StatusCode::ACCEPTED, BatchBody::Waiting(place)))
        }
        Outcome::Refused(refusal) => Err(refusal.into()),
        // No table answers an acquire so.
        Outcome::Done => Err(Unanswered::Indeterminate.into()),
    }
}

fn done(status: StatusCode, body: BatchBody) -> BatchResult {
    BatchResult { status: status.as_u16(), body: Some(body) }
}

fn problem(failed: Failed) -> BatchResult {
    let problem = failed.into_problem();
    BatchResult { status: problem.status, body: Some(BatchBody::Problem(problem)) }
}
