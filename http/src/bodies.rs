//! Request and response bodies, and the memory that they hold for slow clients.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::BoxError;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use crate::connections::{Connection, InFlight, Portion};
use crate::socket::Reader;
use crate::turns::{PER_TURN, Pace, Turns};

/// Bytes of a request body that are kept at most. Longer bodies are read, but refused.
const MAX_KEPT: usize = 1 << 20;

/// The error of a request that was dropped because the budget of bodies was exceeded and its tenant held most of it.
#[derive(Debug, thiserror::Error)]
#[error("there are too many large requests, and this client's take most of the memory")]
pub struct Shed;

/// A request body as it arrives.
pub struct RequestBody {
    body: Incoming,
    reader: Arc<Reader>,
    /// The request changes nothing, so it may run although its client hung up.
    only_reads: bool,
    portion: Option<Portion>,
    kept: usize,
    is_dropped: bool,
    /// The handler waits, or has waited, for more of it.
    is_awaited: bool,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, reader: Arc<Reader>, only_reads: bool) -> Self {
        Self { body, reader, only_reads, portion: None, kept: 0, is_dropped: false, is_awaited: false }
    }

    /// The connection that it arrives on.
    pub fn connection(&self) -> &Arc<Connection> {
        self.reader.connection()
    }

    /// The same body, of which nothing is kept, so it needs no memory that is reserved.
    pub fn dropped(self) -> Self {
        Self { is_dropped: true, ..self }
    }

    /// All of it, `bytes`, has arrived: waits until large requests that are being handled leave memory for this one.
    ///
    /// # Errors
    /// [`Shed`]: nothing of the request was done.
    pub async fn handled(&self, bytes: usize) -> Result<(), Shed> {
        if !self.reader.connection().handles(bytes).await {
            return Err(Shed);
        }
        if bytes > PER_TURN && !self.only_reads {
            self.reader.check_connected().await;
        }
        Ok(())
    }

    /// Reserves memory for `data`. Not called for a body that arrived in one piece, which nothing holds up.
    fn reserve(&mut self, data: &Bytes) {
        let more = data.len().min(MAX_KEPT - self.kept);
        self.kept += more;
        self.reader.connection().keep_request(&mut self.portion, more);
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.portion.is_some() && this.reader.connection().is_body_shed() {
            return Poll::Ready(Some(Err(Shed.into())));
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending() {
            this.is_awaited = true;
            this.reader.connection().waits_for_body();
        }
        let frame = ready!(polled).transpose()?;
        let data = frame.as_ref().and_then(Frame::data_ref);
        let is_end = data.is_none() || this.body.is_end_stream();
        if is_end && std::mem::take(&mut this.is_awaited) {
            this.reader.connection().received_body();
            this.reader.allow_ahead();
        }
        if let Some(data) = data.filter(|_| !is_end && !this.is_dropped) {
            this.reserve(data);
        } else if is_end && !this.only_reads && this.reader.poll_hangup(cx).is_ready() {
            // The client is gone: the same poll ends the connection, and the request is never executed.
            return Poll::Pending;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Marks a response whose body takes no memory of its own.
#[derive(Clone, Copy)]
struct TakesNoMemory;

/// `response`, whose body is in memory anyway: clients that do not read it take no memory.
pub fn takes_no_memory(mut response: Response) -> Response {
    response.extensions_mut().insert(TakesNoMemory);
    response
}

/// Gives the body of a response to hyper.
pub(super) fn chunked(
    response: Response,
    in_flight: InFlight,
    turns: &Arc<Turns>,
) -> hyper::Response<ResponseBody> {
    let takes_memory = response.extensions().get::<TakesNoMemory>().is_none();
    response.map(|body| ResponseBody::new(body, in_flight, takes_memory, Pace::new(turns)))
}

/// A response body, given to hyper in chunks that are sent in a turn each. The first one is sent in the turn of the request.
pub(super) struct ResponseBody {
    body: Body,
    /// The rest of a large piece.
    rest: Bytes,
    pace: Pace,
    _portion: Option<Portion>,
    in_flight: InFlight,
}

impl ResponseBody {
    fn new(body: Body, in_flight: InFlight, takes_memory: bool, pace: Pace) -> Self {
        in_flight.respond();
        let bytes = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let portion = if takes_memory { in_flight.0.keep_one_of(1, bytes) } else { None };
        Self { body, rest: Bytes::new(), pace, _portion: portion, in_flight }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                None => return Poll::Ready(None),
                Some(Ok(data)) => this.rest = data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        ready!(this.pace.poll(cx, || this.in_flight.0.tenant()));
        let chunk = this.rest.split_to(this.rest.len().min(PER_TURN));
        this.pace.took(chunk.len());
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        let (lower, upper) = (hint.lower() + rest, hint.upper().map(|upper| upper + rest));
        // The upper bound first: a lower bound above it panics.
        if let Some(upper) = upper {
            hint.set_upper(upper);
        }
        hint.set_lower(lower);
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use axum::response::IntoResponse;
    use futures_util::FutureExt;

    use super::*;
    use crate::connections::Connections;

    #[tokio::test]
    async fn each_further_piece_of_a_response_is_sent_in_a_turn() {
        let connections = Connections::new(1);
        let (admitted, turns) = (connections.admit(([127, 0, 0, 1], 1).into()).await, Arc::default());
        let response = vec![7; 3 * PER_TURN].into_response();
        let mut response = chunked(response, admitted.0.begin().await, &turns).into_body();
        for piece in 0..3 {
            while turns.ask(admitted.0.tenant()).is_none() {}
            let mut next = poll_fn(|cx| Pin::new(&mut response).poll_frame(cx));
            let at_once = (&mut next).now_or_never();
            assert_eq!(at_once.is_some(), piece == 0, "there are no more turns now");
            let frame = match at_once {
                Some(frame) => frame,
                None => next.await,
            };
            assert_eq!(frame.unwrap().unwrap().into_data().unwrap().len(), PER_TURN);
        }
    }
}
