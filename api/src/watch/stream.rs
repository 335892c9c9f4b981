use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::Frame;

use super::rounds::Next;
use super::watchers::Watchers;

/// The body of the answer to one watch. Dropping it ends the watch.
pub(crate) struct Stream {
    pub(super) watchers: Arc<Watchers>,
    pub(super) number: u64,
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.watchers.next(self.number, cx) {
            Next::Text(text) => Poll::Ready(Some(Ok(Frame::data(text)))),
            Next::End => Poll::Ready(None),
            Next::Nothing => Poll::Pending,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.watchers.leave(self.number);
    }
}
