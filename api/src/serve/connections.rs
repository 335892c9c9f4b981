//! The connections of a node: how many there are, the phase of each, and when one is closed.
//!
//! ```text
//!         ┌────────────────────── flushed ◀──────────────── flushing ◀──┐
//!         ▼                                                             │ end of the response body
//!  ───▶ idle ─────────────▶ head ───────────▶ handling ───────────▶ responding
//!   accepted   first byte         whole head             response
//! ```
//! While a connection is idle, or its request has not arrived in full, it has no request to lose. If there is no room for a
//! new connection, the one that has been in such a state for longest is evicted. If there is none, it is the one that has kept
//! responses unread for longest.
//!
//! A host that has a sixteenth of all connections loses its own first, and its new ones evict no others that were used a moment
//! ago. If there is nothing else to evict for other hosts, it also loses responses that it is reading, and requests that last:
//! those that wait for a lease, and watches.

mod table;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use self::table::{Class, Place, Table, UNREAD_FOR, host_of};
use super::budget::Budget;
use crate::measure::{CloseReason, connections_closed_total};

/// How long a connection may make no progress: no next request begins, or nothing more of a response can be sent because the
/// client does not read.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How many evicted connections may still be open when the next one is admitted.
pub(crate) const MAX_EVICTING: usize = 16;
/// The time for the head of a request, from its first byte.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a connection whose request body arrives gets a new place among those that may be evicted.
const BODY_TURN_MS: u64 = 1_000;
/// Bytes of unfinished request bodies, and of large responses that are being sent.
const MAX_REQUEST_BODIES: usize = 64 << 20;
const MAX_RESPONSE_BODIES: usize = 64 << 20;

/// The connections of a node.
pub struct Connections {
    max: usize,
    created: Instant,
    table: Mutex<Table>,
    /// Notified when a connection has closed, or an evicted one stays after all.
    room: Notify,
    pub(super) request_bodies: Arc<Budget<Connection>>,
    pub(super) response_bodies: Arc<Budget<Connection>>,
}

/// One connection.
pub(crate) struct Connection {
    pub(super) connections: Arc<Connections>,
    pub(super) from: SocketAddr,
    host: IpAddr,
    state: Mutex<State>,
    /// Notified when the connection may have to close.
    close: Notify,
    /// Notified when a request that waits for that may begin.
    flushed: Notify,
}

struct State {
    phase: Phase,
    /// When the phase began or, of a response, when something was last sent.
    since: Instant,
    /// For how long responses could not be sent on, less the time in between.
    unread_for: Duration,
    /// When a response could last be sent on or, while that is not so, since when, less the time of earlier ones.
    unread_since: Instant,
    /// Its place among the evictable, also after it was evicted.
    place: Option<Place>,
    /// Since when the request waits for a lease or is a watch, if it does or is.
    lasts_since: Option<Instant>,
    /// The next request waits until all of the response is sent.
    begins: bool,
    /// The response is not read, and others need its memory.
    is_response_shed: bool,
    /// The request body does not arrive, and others need its memory.
    is_body_shed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte of a request has arrived.
    Idle,
    /// Part of a request head has arrived.
    Head,
    /// A handler works on the request.
    Handling,
    /// The response is being sent.
    Responding,
    /// All of the response is buffered, but not yet sent.
    Flushing,
}

impl Connections {
    /// Admits at most `max` connections at a time.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            created: Instant::now(),
            table: Mutex::new(Table::new(max)),
            room: Notify::new(),
            request_bodies: Budget::new(MAX_REQUEST_BODIES, Connection::shed_body),
            response_bodies: Budget::new(MAX_RESPONSE_BODIES, Connection::shed_response),
        })
    }

    /// The number of connections and its maximum.
    pub fn count(&self) -> (usize, usize) {
        (self.table().count(), self.max)
    }

    /// Admits a new connection, evicting another where there is no room; `None` if none may be evicted. Waits while many
    /// evicted connections have not closed yet.
    pub(super) async fn admit(self: &Arc<Self>, from: SocketAddr) -> Option<Admitted> {
        let host = host_of(from);
        loop {
            {
                let mut table = self.table();
                if table.count() >= self.max {
                    table.evict(host, self.ms(Instant::now()))?.close.notify_one();
                }
                if table.open < self.max + MAX_EVICTING {
                    return Some(self.add(&mut table, from));
                }
            }
            self.room.notified().await;
        }
    }

    fn add(self: &Arc<Self>, table: &mut Table, from: SocketAddr) -> Admitted {
        let host = host_of(from);
        table.open(host);
        let now = Instant::now();
        let place = table.place(Class::Idle, self.ms(now));
        let state = State {
            phase: Phase::Idle,
            since: now,
            unread_for: Duration::ZERO,
            unread_since: now,
            place: Some(place),
            lasts_since: None,
            begins: false,
            is_response_shed: false,
            is_body_shed: false,
        };
        let (connections, state) = (Arc::clone(self), Mutex::new(state));
        let (close, flushed) = (Notify::new(), Notify::new());
        let connection = Arc::new(Connection { connections, from, host, state, close, flushed });
        table.add(place, &connection);
        Admitted(connection)
    }

    /// A time of a place.
    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.created).as_millis() as u64
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics while the table is locked")
    }
}

impl State {
    fn is_unread(&self) -> bool {
        self.place.is_some_and(|place| place.class == Class::Unread)
    }
}

impl Connection {
    /// Lock order: a connection's state, then the table.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the state is locked")
    }

    /// From now on, it may be evicted, in `class`.
    fn put(self: &Arc<Self>, state: &mut State, class: Class, since: Instant) {
        self.keep(state);
        let mut table = self.connections.table();
        let place = table.place(class, self.connections.ms(since));
        table.add(place, self);
        state.place = Some(place);
    }

    /// From now on, it may not be evicted.
    fn keep(&self, state: &mut State) {
        let Some(place) = state.place.take() else { return };
        if self.connections.table().keep(place, self.host) {
            self.connections.room.notify_one();
        }
    }

    /// From now on, it may be evicted only if its request lasts.
    fn keep_or_last(self: &Arc<Self>, state: &mut State) {
        match state.lasts_since {
            Some(since) => self.put(state, Class::Lasting, since),
            None => self.keep(state),
        }
    }

    /// Bytes were read.
    pub(super) fn received(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle {
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
    }

    /// The head of a request is complete. Waits until all earlier responses are sent. hyper does not after a request that expects
    /// `100 Continue` and whose body nobody read, and a client that reads nothing could ask for any number of responses.
    pub(super) async fn begin(self: &Arc<Self>) -> InFlight {
        loop {
            {
                let mut state = self.state();
                if state.phase != Phase::Flushing {
                    self.keep(&mut state);
                    (state.phase, state.is_body_shed, state.is_response_shed) =
                        (Phase::Handling, false, false);
                    return InFlight(Arc::clone(self));
                }
                state.begins = true;
            }
            self.flushed.notified().await;
        }
    }

    pub(super) fn is_handling(&self) -> bool {
        self.state().phase == Phase::Handling
    }

    /// The handler waits for more of the request's body.
    pub(super) fn waits_for_body(self: &Arc<Self>) {
        let (mut state, now) = (self.state(), Instant::now());
        // A new place for each of many small pieces would hold up all other connections.
        let is_old = |place: Place| place.since_ms + BODY_TURN_MS <= self.connections.ms(now);
        if state.phase == Phase::Handling && state.place.is_none_or(is_old) {
            self.put(&mut state, Class::Idle, now);
        }
    }

    /// All of the request's body has arrived.
    pub(super) fn received_body(&self) {
        self.keep(&mut self.state());
    }

    /// The request lasts, until its response ends.
    pub(crate) fn lasts(self: &Arc<Self>) {
        let mut state = self.state();
        state.lasts_since.get_or_insert_with(Instant::now);
        self.keep_or_last(&mut state);
    }

    /// Part of a response was sent.
    pub(super) fn sent(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Responding | Phase::Flushing) {
            state.since = Instant::now();
        }
    }

    /// Nothing more of a response can be sent before the client reads.
    pub(super) fn blocked(self: &Arc<Self>) {
        let mut state = self.state();
        if !state.is_unread() && matches!(state.phase, Phase::Responding | Phase::Flushing) {
            let now = Instant::now();
            let earlier = match state.lasts_since {
                // A watch is behind again and again.
                Some(_) => Duration::ZERO,
                None => state.unread_for.saturating_sub(state.unread_since.elapsed()),
            };
            state.unread_since = now.checked_sub(earlier).unwrap_or(now);
            let since = state.unread_since;
            self.put(&mut state, Class::Unread, since);
        }
    }

    /// Everything buffered was sent.
    pub(super) fn flushed(self: &Arc<Self>) {
        let mut state = self.state();
        let (is_unread, now) = (state.is_unread(), Instant::now());
        if is_unread && state.lasts_since.is_none() {
            state.unread_for = now.saturating_duration_since(state.unread_since).min(UNREAD_FOR);
            state.unread_since = now;
        }
        match state.phase {
            Phase::Flushing => {
                (state.phase, state.since) = (Phase::Idle, now);
                self.put(&mut state, Class::Idle, now);
                if std::mem::take(&mut state.begins) {
                    self.flushed.notify_one();
                }
            }
            Phase::Responding if is_unread => self.keep_or_last(&mut state),
            _ => {}
        }
    }

    fn shed_body(&self) {
        self.state().is_body_shed = true;
        self.close.notify_one();
    }

    /// Whether the body of the current request was shed.
    pub(super) fn is_body_shed(&self) -> bool {
        self.state().is_body_shed
    }

    fn shed_response(&self) {
        self.state().is_response_shed = true;
        self.close.notify_one();
    }

    /// Returns when the connection must be closed, and why.
    pub(super) async fn until_closed(&self) -> CloseReason {
        loop {
            // Checking from time to time costs less than a timer for each phase.
            let mut check_at = Instant::now() + HEAD_TIMEOUT;
            {
                let state = self.state();
                if state.place.is_some_and(|place| self.connections.table().is_evicted(place)) {
                    return CloseReason::Evicted;
                }
                let (timeout, reason) = match state.phase {
                    _ if state.is_response_shed => return CloseReason::Unread,
                    Phase::Idle => (IDLE_TIMEOUT, CloseReason::Silent),
                    Phase::Head => (HEAD_TIMEOUT, CloseReason::Late),
                    Phase::Handling => (Duration::MAX, CloseReason::Silent),
                    Phase::Responding | Phase::Flushing => (IDLE_TIMEOUT, CloseReason::Unread),
                };
                if let Some(deadline) = state.since.checked_add(timeout) {
                    if deadline <= Instant::now() {
                        return reason;
                    }
                    check_at = check_at.min(deadline);
                }
            }
            let _ = timeout_at(check_at, self.close.notified()).await;
        }
    }
}

/// A connection, while it is served.
pub(super) struct Admitted(pub(super) Arc<Connection>);

impl Admitted {
    /// Counts and logs that the node closed the connection.
    pub(super) fn log_close(&self, reason: CloseReason) {
        connections_closed_total(reason).increment(1);
        tracing::debug!(from = %self.0.from, ?reason, "closed an HTTP connection");
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.keep(&mut self.0.state());
        self.0.connections.table().close(self.0.host);
        self.0.connections.room.notify_one();
    }
}

/// A request, until all of its response is buffered.
pub(super) struct InFlight(pub(super) Arc<Connection>);

impl InFlight {
    /// The handler has returned a response.
    pub(super) fn respond(&self) {
        let mut state = self.0.state();
        // The rest of the body may be missing.
        self.0.keep_or_last(&mut state);
        (state.phase, state.since) = (Phase::Responding, Instant::now());
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.phase, state.lasts_since) = (Phase::Flushing, None);
    }
}
