//! Measures requests, and logs those that were slow, denied, abandoned, or failed in the cluster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ringfence_access::Principal;
use ringfence_service::{Ending, RequestLine};

use crate::measure;
use crate::node::Node;
use crate::refused::Kind;

/// A request that is being answered. Dropping it measures and logs its end. If it has no answer then, its connection closed.
pub(crate) struct OpenRequest {
    node: Arc<Node>,
    from: SocketAddr,
    principal: Option<Arc<Principal>>,
    command: &'static str,
    begun: Instant,
    ending: Ending,
    refused: Option<Kind>,
}

impl OpenRequest {
    pub(crate) fn new(node: Arc<Node>, from: SocketAddr, command: &'static str) -> Self {
        let (begun, ending) = (Instant::now(), Ending::Abandoned);
        Self { node, from, principal: None, command, begun, ending, refused: None }
    }

    /// Notes which principal sent it.
    pub(crate) fn is_of(&mut self, principal: &Arc<Principal>) {
        self.principal = Some(Arc::clone(principal));
    }

    pub(crate) fn answered(mut self) {
        self.ending = Ending::Answered;
    }

    pub(crate) fn refused(mut self, kind: Kind) {
        self.refused = Some(kind);
        self.ending = match kind {
            Kind::Unauthenticated | Kind::Forbidden => Ending::Denied,
            Kind::NoLeader | Kind::Unavailable | Kind::Indeterminate => Ending::Failed,
            Kind::Gone => Ending::Abandoned,
            _ => Ending::Answered,
        };
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let Self { from, command, begun, ending, refused, .. } = *self;
        let took = begun.elapsed();
        measure::ended(command, took);
        if let Some(kind) = refused {
            measure::refused(kind);
        }
        let Some(RequestLine { what, untold }) = self.node.log.take(ending, took) else { return };
        let principal = self.principal.as_ref().and_then(|principal| Some(principal.name()?.as_str()));
        tracing::warn!(
            target: "ringfence::requests",
            command, error = refused.map(Kind::name), took_ms = took.as_millis() as u64, principal, %from, untold,
            "a request {what}"
        );
    }
}
