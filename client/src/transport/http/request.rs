//! A request, as it is sent to one node or another.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use ringfence_wire::Operation;
use serde::Serialize;

/// A request that any node can take.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
    /// The same request as part of a batch.
    pub(in crate::transport) batched: Option<Batched>,
    /// Whether it must not be sent again while it may have been done.
    pub(crate) is_once: bool,
    /// Whether it asks for a sign of life.
    pub(super) is_probe: bool,
}

/// A request as one operation of a batch.
#[derive(Clone, Debug)]
pub(in crate::transport) struct Batched {
    pub(in crate::transport) operation: Operation,
    /// How long the request would wait in the cluster's queue. The operation does not wait.
    pub(in crate::transport) wait: Duration,
}

impl Request {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: Bytes::new(), batched: None, is_once: false, is_probe: false }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn post(path: impl Into<String>, body: &impl Serialize) -> Self {
        Self::new(Method::POST, path).with_body(body)
    }

    pub(crate) fn with_body(mut self, body: &impl Serialize) -> Self {
        self.body = serde_json::to_vec(body).expect("JSON can express every request").into();
        self
    }

    /// Allows sending it as an operation of a batch. Alone it would wait for `wait` in the cluster's queue.
    pub(crate) fn or_batched(self, operation: Operation, wait: Duration) -> Self {
        Self { batched: Some(Batched { operation, wait }), ..self }
    }

    /// Sends it at most once: it waits for the response even if the server is silent.
    pub(crate) fn once(self) -> Self {
        Self { is_once: true, ..self }
    }
}
