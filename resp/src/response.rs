//! Makes responses to requests.

use std::sync::Arc;

use bytes::Bytes;
use ringfence_http::{Answer, Connection, Portion, Response};
use ringfence_service::{Ending, Transacted, Unsent};

use crate::refused::Refused;
use crate::reply::{Protocol, Reply};
use crate::requester::Visit;

/// The longest reply, in bytes.
pub(crate) const MAX_REPLY: usize = 64 << 10;

/// A reply as it is sent.
#[derive(Default)]
pub(crate) struct Encoded {
    bytes: Bytes,
    kept: Option<Portion>,
}

impl Encoded {
    /// # Errors
    /// The reply would be too long.
    pub(crate) fn of(
        reply: &Reply,
        protocol: Protocol,
        connection: &Arc<Connection>,
    ) -> Result<Self, Refused> {
        let mut bytes = Vec::new();
        protocol.encode(reply, &mut bytes, MAX_REPLY).map_err(|_| too_long())?;
        let kept = connection.keep_response(bytes.len());
        Ok(Self { bytes: bytes.into(), kept })
    }
}

/// No answer, as to an empty request.
pub(crate) fn none() -> Answer {
    Answer { is_last: false, respond: Box::new(Response::default) }
}

/// A refusal, after which the connection may close.
pub(crate) fn refusal(refused: &Refused, is_last: bool) -> Answer {
    let bytes = error(refused);
    Answer { is_last, respond: Box::new(|| Response { bytes, ..Response::default() }) }
}

/// The answer to a request that took no lease. The connection may close after it.
pub(crate) fn answer(encoded: Encoded, is_last: bool, visit: Visit) -> Answer {
    let response = respond(encoded, None, visit);
    Answer { is_last, respond: Box::new(|| response) }
}

/// The answer to a request whose leases count from when it is sent.
pub(crate) fn of_transacted(transacted: Transacted<Encoded>, mut visit: Visit) -> Answer {
    let respond = move || match transacted.in_time() {
        Ok((encoded, unsent)) => respond(encoded, unsent, visit),
        Err(failure) => {
            let refused = Refused::from(failure);
            let ending = visit.report_mut().refuse(refused.kind());
            visit.answered(ending);
            Response { bytes: error(&refused), ..Response::default() }
        }
    };
    Answer { is_last: false, respond: Box::new(respond) }
}

fn respond(Encoded { bytes, kept }: Encoded, unsent: Option<Unsent>, visit: Visit) -> Response {
    visit.answered(Ending::Answered);
    let sent = unsent.map(|unsent| Box::new(|| unsent.sent()) as Box<dyn FnOnce() + Send>);
    Response { bytes, kept, sent }
}

fn error(refused: &Refused) -> Bytes {
    let mut bytes = Vec::new();
    // Both versions of the protocol encode errors alike.
    let encoded = Protocol::Resp2.encode(&Reply::error(refused.text()), &mut bytes, MAX_REPLY);
    encoded.expect("the text of a refusal is short");
    bytes.into()
}

fn too_long() -> Refused {
    Refused::arguments("ERR ringfence: the reply would have more than 64 KiB")
}
