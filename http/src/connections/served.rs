//! A connection while it is served, and its request while it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;

use tokio::time::Instant;

use super::table::Class;
use super::{Connection, Phase, State};
use crate::measure::{CloseReason, connection_closed};
use crate::tenant::Tenant;
use crate::turns::Turns;

/// A connection, while it is served.
pub(crate) struct Admitted(pub(crate) Arc<Connection>);

impl Admitted {
    /// Counts and logs that the node closed the connection.
    pub(crate) fn log_close(&self, reason: CloseReason) {
        connection_closed(reason);
        tracing::debug!(from = %self.0.from, ?reason, "closed a connection");
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let state = self.0.state();
        let mut table = self.0.connections.table();
        table.remove(&state.tenant, &self.0.place);
        table.open -= 1;
        self.0.connections.room.notify_one();
    }
}

/// A request, until all of its response is buffered or, in a dialog, sent.
pub(crate) struct InFlight(pub(crate) Arc<Connection>);

impl InFlight {
    /// The handler has returned a response.
    pub(crate) fn respond(&self) {
        let mut state = self.0.state();
        // The rest of the body may be missing.
        if state.class == Class::Quiet {
            self.0.put(&mut state, Class::Busy);
        }
        // The response has a portion of its own from now on.
        (state.phase, state.since, state.memory) = (Phase::Responding, Instant::now(), None);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_flight -= 1;
        (state.lasts, state.memory) = (false, None);
        if state.in_flight == 0 {
            state.phase = Phase::Flushing;
        } else {
            state.phase = Phase::Handling;
            if state.class == Class::Blocked {
                self.0.put(&mut state, Class::Busy);
            }
        }
    }
}

/// A request that holds its connection back.
struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl State {
    /// Whether the connection may be idle for any time.
    pub(super) fn may_rest(&self) -> bool {
        self.is_dialog && (self.is_known || matches!(self.tenant, Tenant::Principal(_)))
    }

    /// Whether the connection must close because others need the memory of its unfinished request. Over HTTP, the handler answers instead.
    pub(super) fn is_unfinished_shed(&self) -> bool {
        self.is_dialog && self.is_body_shed
    }
}

impl Connection {
    /// The head of a request is complete, and it is its turn. Waits until all earlier responses are sent. hyper does not after a request
    /// that expects `100 Continue` and whose body nobody read, and a client that reads nothing could ask for any number of responses.
    /// Never returns if the connection is about to be closed for another one.
    pub(crate) async fn begin(self: &Arc<Self>) -> InFlight {
        loop {
            if let Some(in_flight) = self.begin_now() {
                return in_flight;
            }
            self.flushed.notified().await;
        }
    }

    /// Begins a request, beside those that are in flight. `None`: an earlier response is not sent, or the connection is about to be closed.
    pub(crate) fn begin_now(self: &Arc<Self>) -> Option<InFlight> {
        let mut state = self.state();
        if state.phase == Phase::Flushing || self.is_evicted() {
            state.begins = true;
            return None;
        }
        self.put(&mut state, Class::Busy);
        if state.in_flight == 0 {
            (state.is_body_shed, state.is_response_shed) = (false, false);
        }
        state.in_flight += 1;
        state.phase = Phase::Handling;
        Some(InFlight(Arc::clone(self)))
    }

    /// Notes that the thread with these turns serves it.
    pub(crate) fn is_served_in(&self, turns: &Arc<Turns>) {
        // A connection stays on its thread.
        let _ = self.turns.set(Arc::clone(turns));
    }

    /// Waits for another turn of the tenant. A request that works for longer than about 1 ms calls this from time to time, so that others
    /// get their turns meanwhile.
    pub async fn next_turn(&self) {
        if let Some(turns) = self.turns.get() {
            turns.take_another(self.tenant()).await;
        }
    }

    /// Marks a connection that speaks another protocol than HTTP. While it belongs to a principal, or to somebody who is
    /// [known](Self::is_known), it may be idle for any time.
    pub(crate) fn becomes_dialog(&self) {
        self.state().is_dialog = true;
    }

    /// Says whether its client may be here. If nobody has to say who it is, every client may.
    pub fn is_known(&self, is_known: bool) {
        self.state().is_known = is_known;
    }

    /// Whether it is about to be closed for another one.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evictions.load(Relaxed) > 0
    }

    /// Notes that the client has hung up while its request is being handled.
    pub(crate) fn hung_up(&self) {
        self.is_gone.store(true, Relaxed);
    }

    /// Whether the client is known to have hung up.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }

    /// Holds the connection back until `end`, for a request of a dialog: no further one begins, and nothing more is read.
    pub async fn hold_back(&self, end: impl Future<Output = ()>) {
        self.held_back.fetch_add(1, Relaxed);
        let _held = Held(&self.held_back);
        end.await;
    }

    /// Ready while one of its requests holds it back. Only they change that, so nobody is woken.
    pub(crate) fn poll_held_back(&self) -> Poll<()> {
        if self.held_back.load(Relaxed) > 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The request only waits from here on, and may wait for long.
    pub fn rests(&self) {
        self.takes_little();
        self.lasts();
    }
}
