//! What metrics and log lines, of target `ringfence::requests`, tell of a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfence_service::{Ending, Report, RequestLine, Service};

use crate::door::Door;
use crate::measure;
use crate::refused::Kind;

/// What the service and the log know of a request.
pub(crate) type Visit = ringfence_service::Visit<Requester>;

/// The sender of a request, and its command.
pub(crate) struct Requester {
    pub(crate) door: Arc<Door>,
    pub(crate) from: SocketAddr,
    pub(crate) command: &'static str,
    /// Why it was refused, if it was.
    refused: Option<Kind>,
}

impl Requester {
    pub(crate) fn new(door: Arc<Door>, from: SocketAddr, command: &'static str) -> Self {
        Self { door, from, command, refused: None }
    }

    /// Notes that the request is refused. Returns how it ends then.
    pub(crate) fn refuse(&mut self, kind: Kind) -> Ending {
        self.refused = Some(kind);
        match kind {
            Kind::Unauthenticated | Kind::Forbidden => Ending::Denied,
            Kind::RateLimited => Ending::Limited,
            Kind::NoLeader | Kind::Unavailable | Kind::Indeterminate => Ending::Failed,
            Kind::Gone => Ending::Abandoned,
            _ => Ending::Answered,
        }
    }
}

impl Report for Requester {
    fn service(&self) -> &Service {
        &self.door.service
    }

    fn measure(&self, took: Duration) {
        measure::ended(self.command, took);
        if let Some(kind) = self.refused {
            measure::refused(kind);
        }
    }

    fn log(&self, line: &RequestLine<'_>) {
        let Self { from, command, refused, .. } = self;
        let RequestLine { what, took_ms, principal, untold, .. } = line;
        tracing::warn!(
            target: "ringfence::requests",
            command, error = refused.map(Kind::name), took_ms, principal, %from, untold,
            "a request {what}"
        );
    }
}
