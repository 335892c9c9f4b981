//! A connection while it is served, and its request while it is answered.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use tokio::time::Instant;

use super::table::Class;
use super::{Connection, MOST_IN_FLIGHT, Phase, State};
use crate::budget::Share;
use crate::handled::Memory;
use crate::measure::{CloseReason, connection_closed};
use crate::owner::Owner;
use crate::room::{Portion, Room};
use crate::turns::{PER_TURN, Turns};

/// Handling a request takes this many times its size in memory. Measured with batches, whose keys are short.
const TIMES_HANDLED: usize = 5;
/// Responses up to this many bytes count as nothing: as many as may be in flight on a connection take what a turn sends.
const SHORT_RESPONSE: usize = PER_TURN / MOST_IN_FLIGHT;

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
        table.remove(&state.owner, state.order);
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
        state.in_flight -= 1;
        (state.lasts, state.memory) = (false, None);
        if state.in_flight == 0 {
            state.phase = Phase::Flushing;
        } else {
            state.phase = Phase::Handling;
            if state.order.class == Class::Blocked {
                self.0.put(&mut state, Class::Busy);
            }
        }
    }
}

impl State {
    /// Whether the connection may be idle for any time.
    pub(super) fn may_rest(&self) -> bool {
        self.is_dialog && (self.is_known || matches!(self.owner, Owner::Principal(_)))
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

    /// Waits for another turn of the owner. A request that works for longer than about 1 ms calls this from time to time, so that others
    /// get their turns meanwhile.
    pub async fn next_turn(&self) {
        if let Some(turns) = self.turns.get() {
            turns.take_another(self.owner()).await;
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

    /// Takes memory for a response of `bytes`, until the share is dropped. If all responses take too much, the connection closes on which
    /// the owner of most holds its oldest share. What is short takes none.
    pub fn keep_response(self: &Arc<Self>, bytes: usize) -> Option<Share<Self>> {
        (bytes > SHORT_RESPONSE).then(|| {
            let share = self.connections.response_bodies.share(self.owner(), self);
            share.grow(bytes);
            share
        })
    }

    /// Takes `bytes` of `room` for the owner. `None`: there is no room.
    pub fn portion(&self, room: &Arc<Room>, bytes: usize) -> Option<Portion> {
        room.take(self.owner(), bytes)
    }

    /// Waits until there is memory for handling a request of `bytes`, all of which has arrived. Returns `false` if others were given the
    /// memory in which it arrived first.
    pub(crate) async fn handles(&self, bytes: usize) -> bool {
        let mut memory = pin!(self.connections.handled.take(self.owner(), TIMES_HANDLED * bytes));
        let memory = poll_fn(|cx| match self.is_body_shed() {
            true => Poll::Ready(None),
            false => memory.as_mut().poll(cx).map(Some),
        });
        let memory = memory.await;
        let is_given = memory.is_some();
        if let Some(memory) = memory {
            self.takes(memory);
        }
        is_given
    }

    /// Gives the request this memory while it is being handled.
    pub(crate) fn takes(&self, memory: Memory) {
        self.state().memory = Some(memory);
    }

    /// Gives the request `bytes` more while it is being handled. Returns whether all requests together take far too much.
    pub fn takes_more(&self, bytes: usize) -> bool {
        let of = &self.connections.handled;
        bytes > 0 && self.state().memory.get_or_insert_with(|| Memory::none(of)).grow(bytes)
    }

    /// The request only waits from here on, and may wait for long.
    pub fn rests(&self) {
        self.takes_little();
        self.lasts();
    }

    /// Gives back the memory of the request, so that others can begin. From here on, the request only waits.
    pub fn takes_little(&self) {
        self.state().memory = None;
    }
}
