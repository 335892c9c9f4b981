//! The bodies of requests and answers, and the memory that they hold while a client is slow.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use super::budget::Share;
use super::connections::{Connection, Connections, Open};
use super::socket::Ear;

/// So much of an answer is buffered at a time. A smaller answer needs no share of the memory.
const PIECE: usize = 16 << 10;
/// Of a body that is longer than is read, no more is kept.
const MOST_KEPT: usize = 1 << 20;

/// The body of a request that did not arrive soon enough, while too many others were on their way.
#[derive(Debug, thiserror::Error)]
#[error("too many bodies were on their way, and this one for longest")]
pub(crate) struct Late;

/// The body of a request, as it comes.
pub struct Arriving {
    body: Incoming,
    ear: Arc<Ear>,
    /// Whether the request changes nothing: then its client may have gone.
    only_reads: bool,
    connections: Arc<Connections>,
    share: Option<Share<Connection>>,
    kept: usize,
}

impl Arriving {
    pub(super) fn new(
        body: Incoming,
        ear: Arc<Ear>,
        only_reads: bool,
        connections: Arc<Connections>,
    ) -> Self {
        Self { body, ear, only_reads, connections, share: None, kept: 0 }
    }

    /// Holds memory for `data`. What came in one piece is not waited for, and needs no share.
    fn keep(&mut self, data: &Bytes) {
        let more = data.len().min(MOST_KEPT - self.kept);
        self.kept += more;
        let new = || self.connections.arriving.share(self.ear.connection());
        // What is put together from pieces takes up to twice its size.
        self.share.get_or_insert_with(new).grow(2 * more);
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.share.is_some() && this.ear.connection().is_late() {
            return Poll::Ready(Some(Err(Late.into())));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx)).transpose()?;
        if !this.body.is_end_stream() {
            if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
                this.keep(data);
            }
        } else if !this.only_reads && this.ear.poll_gone(cx).is_ready() {
            // Nobody waits for what this would do: the connection ends in this step.
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

/// The body of an answer, as it goes.
pub(super) struct Leaving {
    body: Body,
    /// What is left of a large piece.
    rest: Bytes,
    _share: Option<Share<Connection>>,
    _open: Open,
}

impl Leaving {
    pub(super) fn new(body: Body, open: Open, connections: &Connections) -> Self {
        open.answering();
        let bytes = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let share = (bytes > PIECE).then(|| {
            let share = connections.leaving.share(&open.0);
            share.grow(bytes);
            share
        });
        Self { body, rest: Bytes::new(), _share: share, _open: open }
    }
}

impl HttpBody for Leaving {
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
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        let (lower, upper) = (hint.lower() + rest, hint.upper().map(|upper| upper + rest));
        // In this order: a lower bound must not be above the upper one.
        if let Some(upper) = upper {
            hint.set_upper(upper);
        }
        hint.set_lower(lower);
        hint
    }
}
