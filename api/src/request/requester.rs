//! What log lines say about the sender of a request.
//!
//! Few requests are logged, so this only keeps the headers, and parses them when a line is written.

use std::borrow::Cow;
use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::request::trace_context::TraceContext;

/// The id of the request in the logs of the client or of a proxy.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longer ids are ignored.
const MAX_BYTES: usize = 128;

/// The sender of a request.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The peer address of its connection.
    pub(crate) from: SocketAddr,
    /// Unique among the requests of a node.
    number: u64,
    sent_id: Option<HeaderValue>,
    traceparent: Option<HeaderValue>,
}

impl Requester {
    pub(crate) fn new(headers: &HeaderMap, from: SocketAddr, number: u64) -> Self {
        let is_id = |id: &&HeaderValue| {
            (1..=MAX_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        Self {
            from,
            number,
            sent_id: only(headers, REQUEST_ID).filter(is_id).cloned(),
            traceparent: only(headers, TRACEPARENT).cloned(),
        }
    }

    /// The id that the request was sent with.
    pub(crate) fn sent_id(&self) -> Option<&HeaderValue> {
        self.sent_id.as_ref()
    }

    /// The id that the request was sent with, or one made from its number.
    pub(crate) fn request_id(&self) -> Cow<'_, str> {
        match self.sent_id.as_ref().and_then(|id| id.to_str().ok()) {
            Some(id) => id.into(),
            None => format!("{:016x}", self.number).into(),
        }
    }

    /// The ids of the request's trace and of its sender's span.
    pub(crate) fn trace(&self) -> (Option<&str>, Option<&str>) {
        let text = self.traceparent.as_ref().and_then(|header| header.to_str().ok());
        match text.and_then(TraceContext::parse) {
            Some(TraceContext { trace_id, span_id }) => (Some(trace_id), Some(span_id)),
            None => (None, None),
        }
    }
}

/// A header that occurs once. Two are ambiguous.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut all = headers.get_all(name).iter();
    all.next().filter(|_| all.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requester(headers: &[(HeaderName, &str)]) -> Requester {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::try_from(*value).unwrap());
        }
        Requester::new(&map, "127.0.0.1:9".parse().unwrap(), 0x2a)
    }

    #[test]
    fn a_request_has_the_id_that_was_sent_or_a_generated_one() {
        let longest = "x".repeat(MAX_BYTES);
        for id in ["a", "req-7/b:2", "{\"a\":1}", &longest] {
            assert_eq!(requester(&[(REQUEST_ID, id)]).request_id(), id);
            assert_eq!(requester(&[(REQUEST_ID, id)]).sent_id().unwrap(), id);
        }
        let too_long = "x".repeat(MAX_BYTES + 1);
        for wrong in ["", "two words", "tab\there", "é", &too_long] {
            assert_eq!(requester(&[(REQUEST_ID, wrong)]).request_id(), "000000000000002a", "{wrong}");
            assert_eq!(requester(&[(REQUEST_ID, wrong)]).sent_id(), None, "{wrong}");
        }
        assert_eq!(requester(&[(REQUEST_ID, "a"), (REQUEST_ID, "b")]).sent_id(), None);
    }

    #[test]
    fn the_trace_is_read_from_a_single_traceparent() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let ids = (Some("0af7651916cd43dd8448eb211c80319c"), Some("b7ad6b7169203331"));
        assert_eq!(requester(&[(TRACEPARENT, header)]).trace(), ids);
        assert_eq!(requester(&[(TRACEPARENT, header), (TRACEPARENT, header)]).trace(), (None, None));
        assert_eq!(requester(&[(TRACEPARENT, "00-1-2-01")]).trace(), (None, None));
        assert_eq!(requester(&[]).trace(), (None, None));
    }
}
