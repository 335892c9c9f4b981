//! Outcomes of commands as statuses and bodies, for single requests and batches.

use axum::http::StatusCode;
use ringfence_lease::Outcome;
use ringfence_raft::Unanswered;
use ringfence_wire::{BatchBody, Grant, MirroredGrant};

use crate::door::Door;
use crate::problems::Failed;

/// The response to an acquire. `mirrored`: whether the mirror has the grant; `None` if grants do not wait for it.
/// `sees_holders`: whether a refusal may name those who hold the keys.
pub(crate) fn acquired(
    door: &Door,
    outcome: Outcome,
    mirrored: Option<bool>,
    sees_holders: bool,
) -> Result<(StatusCode, BatchBody), Failed> {
    let body = |grant: Box<Grant>| match mirrored {
        Some(mirrored) => BatchBody::Mirrored(Box::new(MirroredGrant { grant: *grant, mirrored })),
        None => BatchBody::Grant(grant),
    };
    match outcome {
        Outcome::Granted(grant) => Ok((StatusCode::CREATED, body(grant))),
        Outcome::Standing(grant) => Ok((StatusCode::OK, body(grant))),
        Outcome::Waiting(place) | Outcome::Kept(place) => {
            Ok((StatusCode::ACCEPTED, BatchBody::Waiting(place)))
        }
        Outcome::Refused(refusal) => {
            let failed = Failed::from(refusal);
            Err(if sees_holders { door.name_principals(failed) } else { failed.without_holders() })
        }
        // Not an outcome of an acquire.
        Outcome::Done => Err(Unanswered::Indeterminate.into()),
    }
}

/// The response to a renewal.
pub(crate) fn renewed(outcome: Outcome) -> Result<Box<Grant>, Failed> {
    match outcome {
        Outcome::Standing(grant) => Ok(grant),
        Outcome::Refused(refusal) => Err(refusal.into()),
        // Not outcomes of a renewal.
        Outcome::Granted(_) | Outcome::Waiting(_) | Outcome::Kept(_) | Outcome::Done => {
            Err(Unanswered::Indeterminate.into())
        }
    }
}

/// The response to a release or revocation. If the lease ended otherwise before, its holder must learn that.
pub(crate) fn ended(outcome: Outcome) -> Result<StatusCode, Failed> {
    match outcome {
        Outcome::Refused(refusal) => Err(refusal.into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
