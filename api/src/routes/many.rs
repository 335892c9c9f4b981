//! Many renewals or operations in one request.
//!
//! Operations on few keys share one log entry. Applying an entry blocks the Raft thread, and encoding its outcomes blocks a
//! thread that serves other connections. So operations on very many keys are proposed in parts, one after the other. If the
//! first part has no outcome, the whole request fails with 503 or 504. If a later part has no outcome, its operations get
//! that error, and the operations after it are certainly not done.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::{join, join_all};
use ringfence_http::Connection;
use ringfence_lease::{Acquire, Command, Outcome};
use ringfence_raft::Unanswered;
use ringfence_wire::{
    BatchBody, BatchRenew, BatchRequest, BatchResult, LeaseId, MAX_KEYS, Operation, ProblemKind,
    RenewManyRequest, Wait,
};
use tokio::time::Instant;

use super::abandon::AbandonGuard;
use super::outcome;
use crate::door::access::{Allowed, Caller};
use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::problems::Failed;
use crate::request::body;
use crate::request::query::Query;
use crate::response::with_type;

/// `POST /v1/renew`
pub(crate) async fn renew(door: &Door, caller: &Caller, request: Request) -> Answer {
    Query::none(request.uri())?;
    let connection = Arc::clone(request.body().connection());
    let (request, counted) = body::read_counted(door, caller, request, RenewManyRequest::check).await?;
    let renew = |lease_id| Operation::Renew(BatchRenew { lease_id, ttl_ms: None });
    run(door, caller, &connection, request.lease_ids.into_iter().map(renew).collect(), counted).await
}

/// `POST /v1/batch`
pub(crate) async fn batch(door: &Door, caller: &Caller, request: Request) -> Answer {
    Query::none(request.uri())?;
    let connection = Arc::clone(request.body().connection());
    let (request, counted) = body::read_counted(door, caller, request, BatchRequest::check).await?;
    run(door, caller, &connection, request.operations, counted).await
}

/// The kind of an operation, which its outcome does not tell.
enum Kind {
    Acquire {
        lease_id: LeaseId,
        /// Whether a refusal may name those who hold the keys.
        sees_holders: bool,
    },
    Renew,
    Release,
}

fn command(door: &Door, caller: &Caller, operation: Operation) -> (Command, Kind) {
    match operation {
        Operation::Acquire(acquire) => {
            let lease_id = acquire.lease_id;
            let sees_holders = caller.sees_holders(acquire.keys.iter().map(|claim| &claim.key));
            let command = Acquire {
                lease_id,
                claims: acquire.keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
                ttl: acquire.ttl_ms,
                wait: Wait::default(),
                keep_place: acquire.keep_place,
                holder: acquire.holder,
                metadata: acquire.metadata,
                attachment: door.attachment(),
            };
            (Command::Acquire(Box::new(command)), Kind::Acquire { lease_id, sees_holders })
        }
        Operation::Renew(BatchRenew { lease_id, ttl_ms }) => {
            (Command::Renew { lease_id, ttl: ttl_ms }, Kind::Renew)
        }
        Operation::Release(release) => (Command::Release { lease_id: release.lease_id }, Kind::Release),
    }
}

/// The maximum number of keys of a part with more than one operation.
const MAX_KEYS_AT_ONCE: usize = 4_096;
/// No further part is proposed when the response is longer than this.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Runs operations. Their body arrived on `connection`, and was `counted` for so many requests.
async fn run(
    door: &Door,
    caller: &Caller,
    connection: &Arc<Connection>,
    operations: Vec<Operation>,
    counted: usize,
) -> Answer {
    door.count_more(caller, operations.len().saturating_sub(1), counted)?;
    let are_few = operations.len() * MAX_KEYS <= MAX_KEYS_AT_ONCE;
    let operations = operations.into_iter().map(|operation| command(door, caller, operation));
    let (commands, kinds): (Vec<_>, Vec<_>) = operations.unzip();
    let allowed = caller.allow_commands(door, commands).await?;
    let keys = if are_few { vec![0; allowed.len()] } else { door.keys_of(caller, &allowed) };
    let parts = parts(allowed.into_iter().zip(kinds).zip(keys));
    let mut results = Results::default();
    // `failed`: why all further operations are not done.
    let (mut guards, mut failed) = (Vec::new(), None::<Failed>);
    // All parts share it: a mirror that is down holds the request up once.
    let mut mirror_timeout = door.mirror_timeout();
    for (number, part) in parts.into_iter().enumerate() {
        let (commands, kinds): (Vec<_>, Vec<_>) = part.into_iter().unzip();
        if failed.is_none() && results.text.len() > MAX_ANSWER_BYTES {
            let detail = "the response became too large before this operation, which was not done: send fewer operations at once";
            failed = Some(Failed::new(ProblemKind::TooLarge, detail));
        }
        if let Some(failed) = &failed {
            kinds.into_iter().for_each(|kind| results.put(&kind.failed(failed)));
            continue;
        }
        let acquires = commands.iter().flatten().filter_map(Allowed::attachment);
        guards.push(AbandonGuard::new(door, caller, acquires.collect()));
        match propose(door, caller, commands).await {
            Ok(outcomes) => {
                let mirrored = match &mut mirror_timeout {
                    Some(left) if kinds.iter().any(Kind::is_acquire) => {
                        connection.lasts();
                        Some(mirrored(door, &kinds, &outcomes, left).await)
                    }
                    _ => None,
                };
                for (kind, outcome) in kinds.into_iter().zip(outcomes) {
                    results.put(&match outcome {
                        Ok(outcome) => kind.result(door, outcome, mirrored),
                        Err(denied) => kind.failed(&denied),
                    });
                }
            }
            Err(unanswered) => {
                let unanswered = Failed::from(unanswered);
                kinds.iter().for_each(|kind| kind.count_failed(&unanswered));
                if number == 0 {
                    guards.into_iter().for_each(AbandonGuard::answered);
                    return Err(unanswered);
                }
                kinds.into_iter().for_each(|kind| results.put(&kind.failed(&unanswered)));
                let detail = "an earlier operation has no outcome, so this one was certainly not done";
                failed = Some(Failed::new(ProblemKind::Unavailable, detail));
            }
        }
    }
    guards.into_iter().for_each(AbandonGuard::answered);
    Ok(results.answer())
}

/// The outcomes of the commands that are allowed, and why the others are not.
async fn propose(
    door: &Door,
    caller: &Caller,
    commands: Vec<Result<Allowed<Command>, Failed>>,
) -> Result<Vec<Result<Outcome, Failed>>, Unanswered> {
    let mut allowed = Vec::with_capacity(commands.len());
    let denied: Vec<_> =
        commands.into_iter().map(|command| command.map(|command| allowed.push(command)).err()).collect();
    let mut outcomes = match allowed.is_empty() {
        true => Vec::new(),
        false => door.propose_all(caller, allowed).await?,
    }
    .into_iter();
    let outcome = |denied: Option<Failed>| match denied {
        None => Ok(outcomes.next().expect("one outcome per command")),
        Some(failed) => Err(failed),
    };
    Ok(denied.into_iter().map(outcome).collect())
}

/// Splits operations, each with its number of keys, into parts of at most [`MAX_KEYS_AT_ONCE`] keys, in order.
fn parts<T>(operations: impl Iterator<Item = (T, usize)>) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut keys = 0;
    for (operation, more) in operations {
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

/// The JSON of a [`BatchAnswer`](ringfence_wire::BatchAnswer), written part by part.
#[derive(Default)]
struct Results {
    text: Vec<u8>,
}

impl Results {
    fn put(&mut self, result: &BatchResult) {
        let before: &[u8] = if self.text.is_empty() { br#"{"results":["# } else { b"," };
        self.text.extend_from_slice(before);
        serde_json::to_writer(&mut self.text, result).expect("every result is valid JSON");
    }

    fn answer(mut self) -> Response {
        match self.text.is_empty() {
            true => self.text.extend_from_slice(br#"{"results":[]}"#),
            false => self.text.extend_from_slice(b"]}"),
        }
        with_type(StatusCode::OK, "application/json", self.text)
    }
}

/// Whether the mirror has all grants of a part. Takes the time that it waits from `left`. New grants are waited for together:
/// one log entry made them, and no view shows only some of them. Older ones are probably mirrored, each at its own revision.
async fn mirrored(
    door: &Door,
    kinds: &[Kind],
    outcomes: &[Result<Outcome, Failed>],
    left: &mut Duration,
) -> bool {
    let grants = kinds.iter().zip(outcomes).filter_map(|(kind, outcome)| match (kind, outcome) {
        (Kind::Acquire { .. }, Ok(Outcome::Granted(grant))) => Some((true, &**grant)),
        (Kind::Acquire { .. }, Ok(Outcome::Standing(grant))) => Some((false, &**grant)),
        _ => None,
    });
    let (new, older): (Vec<_>, Vec<_>) = grants.partition(|(is_new, _)| *is_new);
    let (began, within) = (Instant::now(), *left);
    let new = door.mirrored(new.into_iter().map(|(_, grant)| grant), within);
    let older = older.into_iter().map(|(_, grant)| door.mirrored(std::iter::once(grant), within));
    let (new, older) = join(new, join_all(older)).await;
    *left = left.saturating_sub(began.elapsed());
    new && older.into_iter().all(|is_mirrored| is_mirrored)
}

impl Kind {
    fn is_acquire(&self) -> bool {
        matches!(self, Self::Acquire { .. })
    }

    /// Counts an operation that failed with its whole part.
    fn count_failed(&self, failed: &Failed) {
        match self {
            Self::Acquire { .. } => measure::acquired(Err(failed)),
            Self::Renew => measure::renewed(Some(failed)),
            Self::Release => {}
        }
    }

    /// The result of an operation that has no outcome.
    fn failed(self, failed: &Failed) -> BatchResult {
        let failed = failed.clone();
        problem(match self {
            Self::Acquire { lease_id, .. } => failed.of_lease(lease_id),
            Self::Renew | Self::Release => failed,
        })
    }

    /// The response that the operation would have had on its own.
    fn result(self, door: &Door, outcome: Outcome, mirrored: Option<bool>) -> BatchResult {
        match self {
            Self::Acquire { lease_id, sees_holders } => {
                let acquired = outcome::acquired(door, outcome, mirrored, sees_holders);
                measure::acquired(acquired.as_ref().map(|(status, _)| *status));
                acquired.map_or_else(
                    |failed| problem(failed.of_lease(lease_id)),
                    |(status, body)| done(status, Some(body)),
                )
            }
            Self::Renew => {
                let renewed = outcome::renewed(outcome);
                measure::renewed(renewed.as_ref().err());
                renewed.map_or_else(problem, |grant| done(StatusCode::OK, Some(BatchBody::Grant(grant))))
            }
            Self::Release => {
                measure::released();
                outcome::ended(outcome).map_or_else(problem, |status| done(status, None))
            }
        }
    }
}

fn done(status: StatusCode, body: Option<BatchBody>) -> BatchResult {
    BatchResult { status: status.as_u16(), body }
}

fn problem(failed: Failed) -> BatchResult {
    let problem = failed.into_problem();
    BatchResult { status: problem.status, body: Some(BatchBody::Problem(problem)) }
}
