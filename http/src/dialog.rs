//! Connections that speak another protocol than HTTP: one request after the other, each with one response.

use std::sync::Arc;

use bytes::Bytes;

use crate::connections::Connection;

/// One side of a connection's conversation.
pub trait Dialog: Send + 'static {
    /// The length of the first whole request in `received`, if it is there: from 1 to all of `received`. Called again with more bytes until
    /// it is, so it keeps its place itself. It is never called with no bytes.
    ///
    /// # Errors
    /// The last response: nothing can be understood from here on, and the connection closes.
    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Bytes>;

    /// Answers a request. Dropped before its end if the client hangs up, or the connection must close.
    fn answer(&mut self, request: Bytes, connection: &Arc<Connection>) -> impl Future<Output = Reply> + Send;
}

/// The response to a request.
pub struct Reply {
    /// May be empty.
    pub bytes: Bytes,
    /// The connection closes behind it.
    pub is_last: bool,
    /// Called once the kernel has all of the bytes; else dropped.
    pub sent: Option<Box<dyn FnOnce() + Send>>,
}
