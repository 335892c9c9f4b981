//! How a node answers a client, without HTTP.

use std::sync::Arc;
use std::time::Duration;

use ringfence_laws::history::{Asked, Came};
use ringfence_lease::{Acquire, Attachment, Command, LeaseState, Outcome, Refusal};
use ringfence_raft::{Handle, Settled, Unanswered};
use ringfence_wire::{EndReason, LeaseId, Metadata, ProblemKind, Ttl, Verdict, VerdictName, Wait, Waiting};
use tokio::time::{Instant, sleep_until};

/// Cluster time stands still without a leader: a waiting request is given up this long after its wait.
const GRACE: Duration = Duration::from_secs(10);

/// What `handle` answers. `attachment` names this request, if it is an acquire, and the lease has `bytes` of metadata.
pub(crate) async fn serve(handle: &Handle, asked: Asked, attachment: Attachment, bytes: usize) -> Came {
    match answer(handle, asked, attachment, bytes).await {
        Ok(came) => came,
        Err(Unanswered::Unavailable) => Came::NotDone { why: "unavailable".to_owned() },
        Err(Unanswered::Indeterminate) => Came::Unknown { why: "indeterminate".to_owned() },
    }
}

async fn answer(
    handle: &Handle,
    asked: Asked,
    attachment: Attachment,
    bytes: usize,
) -> Result<Came, Unanswered> {
    match asked {
        Asked::Acquire { lease, keys, ttl_ms, wait_ms, keep_place } => {
            let acquire = Acquire {
                lease_id: lease,
                claims: keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
                ttl: Ttl::from_ms(ttl_ms).expect("clients draw times that may be asked for"),
                wait: Wait::from_ms(wait_ms).expect("clients draw waits that may be asked for"),
                keep_place,
                holder: None,
                metadata: metadata(bytes),
                attachment,
            };
            let began = Instant::now();
            let outcome = propose(handle, Command::Acquire(Box::new(acquire))).await?;
            let keep_place = keep_place || matches!(outcome, Outcome::Kept(_));
            let wait = Duration::from_millis(wait_ms.into());
            Ok(match outcome {
                Outcome::Waiting(place) | Outcome::Kept(place) if wait_ms > 0 => {
                    let until = if keep_place { began + wait } else { Instant::now() + wait + GRACE };
                    waited(handle, lease, place, until, keep_place).await
                }
                outcome => came(outcome),
            })
        }
        Asked::Renew { lease, ttl_ms } => {
            let ttl = ttl_ms.map(|ms| Ttl::from_ms(ms).expect("clients draw times that may be asked for"));
            Ok(match propose(handle, Command::Renew { lease_id: lease, ttl }).await? {
                Outcome::Standing(grant) => Came::Granted { grant: *grant, standing: true, mirrored: None },
                outcome => came(outcome),
            })
        }
        Asked::Release { lease } => Ok(came(propose(handle, Command::Release { lease_id: lease }).await?)),
        Asked::Revoke { key, token } => Ok(came(propose(handle, Command::Revoke { key, token }).await?)),
        Asked::Lease { lease, local } => {
            let now_ms = now_ms(handle, local).await?;
            Ok(match handle.view(|table| table.lease(None, lease, now_ms)) {
                Ok(LeaseState::Granted(grant)) => Came::Granted { grant, standing: true, mirrored: None },
                Ok(LeaseState::Waiting(place)) => Came::Waiting { ahead: place.ahead },
                Err(refusal) => refused(refusal),
            })
        }
        Asked::Key { key, local } => {
            let now_ms = now_ms(handle, local).await?;
            Ok(Came::Key { view: handle.view(|table| table.key(&key, now_ms)) })
        }
        Asked::Validate { key, token, local } => {
            now_ms(handle, local).await?;
            let verdict = handle.view(|table| {
                let verdict = match (table.is_live(&key, token), local) {
                    (true, false) => VerdictName::Live,
                    (false, _) if token.0 <= table.revision().0 => VerdictName::Stale,
                    _ => VerdictName::Unknown,
                };
                Verdict { verdict, fence: table.fence(&key) }
            });
            Ok(Came::Verdict { verdict })
        }
        Asked::Transfer { .. } | Asked::Read { .. } | Asked::Write { .. } => {
            Ok(Came::NotDone { why: "no client asks a node for this".to_owned() })
        }
    }
}

fn metadata(bytes: usize) -> Metadata {
    let entries = (bytes > 0).then(|| ("m".to_owned(), "-".repeat(bytes)));
    Metadata::new(entries.into_iter().collect()).expect("plans have metadata of a size that is allowed")
}

async fn now_ms(handle: &Handle, local: bool) -> Result<Option<u64>, Unanswered> {
    if local { Ok(None) } else { handle.linearize().await.map(Some) }
}

async fn propose(handle: &Handle, command: Command) -> Result<Outcome, Unanswered> {
    let mut outcomes = handle.propose(vec![command]).await?;
    Ok(outcomes.pop().expect("one outcome per command"))
}

/// As a request in the queue is answered over HTTP.
async fn waited(handle: &Handle, lease: LeaseId, place: Waiting, until: Instant, keep_place: bool) -> Came {
    let mut wait = handle.wait_for(None, lease);
    let settled = tokio::select! {
        biased;
        settled = wait.settled() => settled,
        () = sleep_until(until) => None,
    };
    match settled {
        Some(Settled::Granted(grant)) => {
            Came::Granted { grant: Arc::unwrap_or_clone(grant), standing: false, mirrored: None }
        }
        Some(Settled::TimedOut) => refused(Refusal::WaitTimeout),
        Some(Settled::Ended(reason)) => refused(Refusal::Gone(reason)),
        None => match handle.view(|table| table.lease(None, lease, Some(table.at_ms()))) {
            Ok(LeaseState::Granted(grant)) => Came::Granted { grant, standing: false, mirrored: None },
            Ok(LeaseState::Waiting(place)) if keep_place => Came::Waiting { ahead: place.ahead },
            Err(Refusal::Unknown) if keep_place => Came::Waiting { ahead: place.ahead },
            Ok(LeaseState::Waiting(_)) | Err(Refusal::Unknown) => {
                Came::Unknown { why: "the node stopped waiting".to_owned() }
            }
            Err(refusal) => refused(refusal),
        },
    }
}

fn came(outcome: Outcome) -> Came {
    match outcome {
        Outcome::Granted(grant) => Came::Granted { grant: *grant, standing: false, mirrored: None },
        Outcome::Standing(grant) => Came::Granted { grant: *grant, standing: true, mirrored: None },
        Outcome::Waiting(place) | Outcome::Kept(place) => Came::Waiting { ahead: place.ahead },
        Outcome::Done => Came::Done,
        Outcome::Refused(refusal) => refused(refusal),
    }
}

fn refused(refusal: Refusal) -> Came {
    let gone = |reason: EndReason| (ProblemKind::LeaseGone, Some(reason));
    let (problem, reason) = match refusal {
        Refusal::Held { .. } => (ProblemKind::Held, None),
        Refusal::WaitTimeout => (ProblemKind::WaitTimeout, None),
        Refusal::Mismatch => (ProblemKind::LeaseMismatch, None),
        Refusal::NotGranted => (ProblemKind::NotGranted, None),
        Refusal::NotLive => (ProblemKind::NotLive, None),
        Refusal::Gone(reason) => gone(reason),
        Refusal::Unknown => (ProblemKind::UnknownLease, None),
        Refusal::Overloaded
        | Refusal::TooManyLeases { .. }
        | Refusal::TooManyWaiting { .. }
        | Refusal::TooManyBytes { .. }
        | Refusal::Full => (ProblemKind::Overloaded, None),
    };
    Came::Refused { problem, reason }
}
