//! Makes responses to requests.

use std::sync::Arc;

use bytes::Bytes;
use ringfence_http::{Answer, Connection, Response, Share};
use ringfence_service::{Transacted, Unsent};

use crate::refused::Refused;
use crate::reply::{Protocol, Reply};
use crate::request_log::OpenRequest;

/// The longest reply, in bytes.
pub(crate) const MAX_REPLY: usize = 64 << 10;

/// A reply as it is sent.
#[derive(Default)]
pub(crate) struct Encoded {
    bytes: Bytes,
    kept: Option<Share<Connection>>,
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

/// A refusal after which the connection closes.
pub(crate) fn last(refused: &Refused) -> Answer {
    let bytes = error(refused);
    Answer { is_last: true, respond: Box::new(|| Response { bytes, ..Response::default() }) }
}

/// The answer to a request that took no lease.
pub(crate) fn answer(result: Result<Encoded, Refused>, open: OpenRequest) -> Answer {
    let response = respond(result.map(|encoded| (encoded, None)), open);
    Answer { is_last: false, respond: Box::new(|| response) }
}

/// The answer to a request whose leases count from when it is sent.
pub(crate) fn of_transacted(transacted: Transacted<Encoded>, open: OpenRequest) -> Answer {
    let respond = || respond(transacted.in_time().map_err(Refused::from), open);
    Answer { is_last: false, respond: Box::new(respond) }
}

fn respond(result: Result<(Encoded, Option<Unsent>), Refused>, open: OpenRequest) -> Response {
    match result {
        Ok((Encoded { bytes, kept }, unsent)) => {
            open.answered();
            let sent = unsent.map(|unsent| Box::new(|| unsent.sent()) as Box<dyn FnOnce() + Send>);
            Response { bytes, kept, sent }
        }
        Err(refused) => {
            open.refused(refused.kind());
            Response { bytes: error(&refused), ..Response::default() }
        }
    }
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
