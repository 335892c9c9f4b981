//! Losses and errors, as the protocol words them.

use ringfence_client::wire::{EndReason, Problem};
use ringfence_client::{Error, Loss};
use serde_json::{Value, json};

use crate::Failure;

pub(crate) fn word(loss: Loss) -> &'static str {
    match loss {
        Loss::Ended(EndReason::Released) => "released",
        Loss::Ended(EndReason::Expired) => "expired",
        Loss::Ended(EndReason::Revoked) => "revoked",
        Loss::Ended(EndReason::Abandoned) => "abandoned",
        Loss::Forgotten => "forgotten",
        Loss::Unconfirmed => "unconfirmed",
        Loss::MaxHold => "max-hold",
        Loss::Stale => "stale",
        _ => "unknown to this adapter",
    }
}

/// An error as the protocol has it.
pub(crate) fn described(failure: &Failure) -> Value {
    let (kind, message) = match failure {
        Failure::Body => ("Body", "the body failed".to_owned()),
        Failure::Deadline => ("TimedOut", "not done in time".to_owned()),
        Failure::Internal(why) => ("Internal", why.clone()),
        Failure::Client(error) => (kind(error), error.to_string()),
    };
    let mut told = json!({"kind": kind, "message": message});
    match failure {
        Failure::Client(Error::Held { holders, .. }) => told["holders"] = json!(holders),
        Failure::Deadline => told["reason"] = json!("timeout"),
        Failure::Client(Error::TimedOut { .. }) => told["reason"] = json!("wait"),
        Failure::Client(Error::Lost(loss)) => told["reason"] = json!(word(*loss)),
        Failure::Client(Error::Unknown { lease_id: Some(lease_id), .. }) => {
            told["lease_id"] = json!(lease_id.to_string());
        }
        _ => {}
    }
    told
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Invalid(_) => "Invalid",
        Error::Held { .. } => "Held",
        Error::TimedOut { .. } => "TimedOut",
        Error::Lost(_) => "Lost",
        Error::Unavailable { .. } => "Unavailable",
        Error::Unknown { .. } => "Unknown",
        Error::Closed => "Closed",
        Error::Rejected(problem) if is_denial(problem) => "Unauthorized",
        Error::Rejected(_) => "Rejected",
        _ => "Internal",
    }
}

fn is_denial(problem: &Problem) -> bool {
    problem.kind.is_denial()
}
