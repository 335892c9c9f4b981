//! Calls that are repeated until their answer is definite, or patience ends.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use ringfence_wire::{LeaseId, Problem};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::Error;
use crate::backoff::Backoff;
use crate::endpoints::Endpoints;
use crate::exchange::{Answer, Call, Node};
use crate::fate::{Doubt, Fate, PATIENCE, fate};
use crate::gather::exchange;

/// How long one node may take where another can be asked as well. An election takes about a second, and a node gives up
/// by itself after 5 s only.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(2);

/// Attempts, each at the node that is best then, with a pause whenever all had their turn.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    endpoints: &'a Endpoints,
    failed: usize,
    backoff: Backoff,
}

/// How a call came to a definite end.
#[derive(Debug)]
pub(crate) struct Definite<T> {
    pub(crate) result: Result<T, Box<Problem>>,
    /// Whether an earlier attempt may have been done.
    pub(crate) maybe_done_before: bool,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(endpoints: &'a Endpoints) -> Self {
        Self { endpoints, failed: 0, backoff: Backoff::default() }
    }

    /// One attempt, and what it says.
    pub(crate) async fn attempt<T>(
        &mut self,
        call: &Call,
        within: Duration,
        read: impl FnOnce(&Answer) -> serde_json::Result<T>,
    ) -> Fate<T> {
        if self.failed > 0 && self.failed.is_multiple_of(self.endpoints.count()) {
            sleep(self.backoff.next()).await;
        }
        let fate = attempt(self.endpoints, call, within, self.failed == 0, read).await;
        match fate {
            Fate::Done(_) | Fate::Refused(_) => {
                self.failed = 0;
                self.backoff.reset();
            }
            Fate::NotDone(_) | Fate::Unknown(_) => self.failed += 1,
        }
        fate
    }
}

/// One attempt at the node that is best now; the first may go along with other calls.
pub(crate) async fn attempt<T>(
    endpoints: &Endpoints,
    call: &Call,
    within: Duration,
    is_first: bool,
    read: impl FnOnce(&Answer) -> serde_json::Result<T>,
) -> Fate<T> {
    let node: Arc<Node> = endpoints.best();
    let came = match is_first && endpoints.may_share() {
        true => exchange(&node, call, within).await,
        false => node.exchange(call, within).await,
    };
    let leader = came.as_ref().ok().and_then(|answer| answer.leader.clone());
    let fate = fate(came, read);
    match &fate {
        Fate::Done(_) | Fate::Refused(_) => endpoints.answered(&node, leader.as_ref()),
        Fate::NotDone(_) | Fate::Unknown(_) => endpoints.failed(&node),
    }
    fate
}

/// Repeats `call` until its answer is definite.
pub(crate) async fn definite<T>(
    endpoints: &Endpoints,
    call: &Call,
    lease_id: Option<LeaseId>,
    read: impl Fn(&Answer) -> serde_json::Result<T>,
) -> Result<Definite<T>, Error> {
    let (begun, mut doubt, mut attempts) = (Instant::now(), Doubt::default(), Attempts::new(endpoints));
    loop {
        match attempts.attempt(call, within(endpoints, begun), &read).await {
            Fate::Done(value) => {
                return Ok(Definite { result: Ok(value), maybe_done_before: doubt.maybe_done() });
            }
            Fate::Refused(problem) => {
                return Ok(Definite { result: Err(problem), maybe_done_before: doubt.maybe_done() });
            }
            Fate::NotDone(why) => doubt.not_done(why),
            Fate::Unknown(why) => doubt.unknown(why),
        }
        if begun.elapsed() >= PATIENCE {
            return Err(doubt.into_error(lease_id));
        }
    }
}

/// The same for a call whose repeat is not harmless: it is repeated only while it was certainly not done.
pub(crate) async fn once<T>(
    endpoints: &Endpoints,
    call: &Call,
    read: impl Fn(&Answer) -> serde_json::Result<T>,
) -> Result<T, Error> {
    let (begun, mut attempts) = (Instant::now(), Attempts::new(endpoints));
    loop {
        // As long as a change of the members may take; given up, it would be unknown.
        match attempts.attempt(call, 12 * PATIENCE, &read).await {
            Fate::Done(value) => return Ok(value),
            Fate::Refused(problem) => return Err(Error::Rejected(problem)),
            Fate::Unknown(why) => return Err(Error::Unknown { lease_id: None, why }),
            Fate::NotDone(why) if begun.elapsed() >= PATIENCE => return Err(Error::Unavailable { why }),
            Fate::NotDone(_) => {}
        }
    }
}

/// The same for a read: what is not known of it has changed nothing.
pub(crate) async fn read<T: DeserializeOwned>(endpoints: &Endpoints, call: &Call) -> Result<T, Error> {
    match definite(endpoints, call, None, json).await {
        Ok(Definite { result: Ok(value), .. }) => Ok(value),
        Ok(Definite { result: Err(problem), .. }) => Err(Error::Rejected(problem)),
        Err(Error::Unknown { why, .. }) => Err(Error::Unavailable { why }),
        Err(error) => Err(error),
    }
}

/// How long the next attempt may take: all that is left where no other node can be asked.
pub(crate) fn within(endpoints: &Endpoints, begun: Instant) -> Duration {
    let left = PATIENCE.saturating_sub(begun.elapsed()).max(Duration::from_millis(100));
    if endpoints.has_another() { left.min(ATTEMPT) } else { left }
}

/// Reads the body of an answer.
pub(crate) fn json<T: DeserializeOwned>(answer: &Answer) -> serde_json::Result<T> {
    serde_json::from_slice(&answer.body)
}

/// Reads an answer that has no body.
pub(crate) fn nothing(answer: &Answer) -> serde_json::Result<()> {
    match answer.status {
        StatusCode::NO_CONTENT => Ok(()),
        status => Err(serde::de::Error::custom(format!("{status} in place of 204"))),
    }
}
