//! A connection while it is served, and its request while it is answered.

use std::sync::Arc;

use tokio::time::Instant;

use super::table::Class;
use super::{Connection, Phase};
use crate::measure::{CloseReason, connection_closed};

/// A connection, while it is served.
pub(crate) struct Admitted(pub(crate) Arc<Connection>);

impl Admitted {
    /// Counts and logs that the node closed the connection.
    pub(crate) fn log_close(&self, reason: CloseReason) {
        connection_closed(reason);
        tracing::debug!(from = %self.0.from, ?reason, "closed an HTTP connection");
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let state = self.0.state();
        let mut table = self.0.connections.table();
        table.remove(&state.owner, state.order);
        table.open -= 1;
        self.0.connections.room.notify_one();
    }
}

/// A request, until all of its response is buffered.
pub(crate) struct InFlight(pub(crate) Arc<Connection>);

impl InFlight {
    /// The handler has returned a response.
    pub(crate) fn respond(&self) {
        let mut state = self.0.state();
        // The rest of the body may be missing.
        if state.order.class == Class::Quiet {
            self.0.put(&mut state, Class::Busy);
        }
        // The response has a share of its own from now on.
        (state.phase, state.since, state.memory) = (Phase::Responding, Instant::now(), None);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.phase, state.lasts, state.memory) = (Phase::Flushing, false, None);
    }
}
