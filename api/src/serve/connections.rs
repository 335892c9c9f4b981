//! The connections of a node: how many there are, the phase of each, and when one is closed.
//!
//! ```text
//!         ┌────────────────────── flushed ◀──────────────── flushing ◀──┐
//!         ▼                                                             │ end of the response body
//!  ───▶ idle ─────────────▶ head ───────────▶ handling ───────────▶ responding
//!   accepted   first byte         whole head             response
//! ```
//! While a connection is idle, or its request head is incomplete, it has no request to lose. If there is no room for a new
//! connection, the one that has been in such a phase for longest is evicted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::budget::Budget;
use crate::measure::{CloseReason, connections_closed_total};

/// How long a connection may make no progress: no next request begins, or nothing more of a response can be sent because the
/// client does not read.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How many evicted connections may still be open when the next one is admitted.
pub(crate) const MAX_EVICTING: usize = 16;
/// The time for the head of a request, from its first byte.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of unfinished request bodies, and of large responses that are being sent.
const MAX_REQUEST_BODIES: usize = 64 << 20;
const MAX_RESPONSE_BODIES: usize = 64 << 20;

/// The connections of a node.
pub struct Connections {
    max: usize,
    table: Mutex<Table>,
    /// Notified when a connection has closed, or an evicted one stays after all.
    room: Notify,
    pub(super) request_bodies: Arc<Budget<Connection>>,
    pub(super) response_bodies: Arc<Budget<Connection>>,
}

#[derive(Default)]
struct Table {
    /// Connections that have a descriptor.
    open: usize,
    /// Those of them that are evicted.
    evicting: usize,
    /// Connections that wait for no response, longest first.
    idle: BTreeMap<u64, Arc<Connection>>,
    next: u64,
}

/// One connection.
pub(super) struct Connection {
    pub(super) connections: Arc<Connections>,
    pub(super) from: SocketAddr,
    state: Mutex<State>,
    /// Notified when the connection may have to close.
    close: Notify,
}

struct State {
    phase: Phase,
    /// When the phase began or, of a response, when something was last sent.
    since: Instant,
    /// The number in `Table::idle`.
    number: u64,
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
            table: Mutex::default(),
            room: Notify::new(),
            request_bodies: Budget::new(MAX_REQUEST_BODIES, Connection::shed_body),
            response_bodies: Budget::new(MAX_RESPONSE_BODIES, Connection::shed_response),
        })
    }

    /// The number of connections and its maximum.
    pub fn count(&self) -> (usize, usize) {
        let table = self.table();
        (table.open - table.evicting, self.max)
    }

    /// Admits a new connection, evicting an idle one where there is no room; `None` if none is idle. Waits while many evicted
    /// connections have not closed yet.
    pub(super) async fn admit(self: &Arc<Self>, from: SocketAddr) -> Option<Admitted> {
        loop {
            {
                let mut table = self.table();
                let too_many = (table.open - table.evicting + 1).saturating_sub(self.max);
                if table.idle.len() < too_many {
                    return None;
                }
                for _ in 0..too_many {
                    let Some((_, longest)) = table.idle.pop_first() else { break };
                    longest.close.notify_one();
                    table.evicting += 1;
                }
                if table.open < self.max + MAX_EVICTING {
                    return Some(self.add(&mut table, from));
                }
            }
            self.room.notified().await;
        }
    }

    fn add(self: &Arc<Self>, table: &mut Table, from: SocketAddr) -> Admitted {
        table.open += 1;
        let state = State {
            phase: Phase::Idle,
            since: Instant::now(),
            number: table.next,
            is_response_shed: false,
            is_body_shed: false,
        };
        let (connections, state) = (Arc::clone(self), Mutex::new(state));
        let connection = Arc::new(Connection { connections, from, state, close: Notify::new() });
        table.add_idle(Arc::clone(&connection));
        Admitted(connection)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics while the table is locked")
    }
}

impl Table {
    /// Appends `connection` to the idle ones. Returns its number.
    fn add_idle(&mut self, connection: Arc<Connection>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.idle.insert(number, connection);
        number
    }
}

impl Connection {
    /// Lock order: a connection's state, then the table.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the state is locked")
    }

    /// Bytes were read.
    pub(super) fn received(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle {
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
    }

    /// The head of a request is complete.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut state = self.state();
        if matches!(state.phase, Phase::Idle | Phase::Head) {
            let mut table = self.connections.table();
            if table.idle.remove(&state.number).is_none() {
                // It was evicted just before, and stays after all.
                table.evicting -= 1;
                self.connections.room.notify_one();
            }
        }
        (state.phase, state.is_body_shed, state.is_response_shed) = (Phase::Handling, false, false);
        InFlight(Arc::clone(self))
    }

    pub(super) fn is_handling(&self) -> bool {
        self.state().phase == Phase::Handling
    }

    /// Part of a response was sent.
    pub(super) fn sent(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Responding | Phase::Flushing) {
            state.since = Instant::now();
        }
    }

    /// Everything buffered was sent.
    pub(super) fn flushed(self: &Arc<Self>) {
        let mut state = self.state();
        if state.phase == Phase::Flushing {
            (state.phase, state.since) = (Phase::Idle, Instant::now());
            state.number = self.connections.table().add_idle(Arc::clone(self));
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
                let (timeout, reason) = match state.phase {
                    Phase::Idle | Phase::Head
                        if !self.connections.table().idle.contains_key(&state.number) =>
                    {
                        return CloseReason::Evicted;
                    }
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
        let state = self.0.state();
        let mut table = self.0.connections.table();
        table.open -= 1;
        if matches!(state.phase, Phase::Idle | Phase::Head) && table.idle.remove(&state.number).is_none() {
            table.evicting -= 1;
        }
        self.0.connections.room.notify_one();
    }
}

/// A request, until all of its response is buffered.
pub(super) struct InFlight(pub(super) Arc<Connection>);

impl InFlight {
    /// The handler has returned a response.
    pub(super) fn respond(&self) {
        let mut state = self.0.state();
        (state.phase, state.since) = (Phase::Responding, Instant::now());
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state().phase = Phase::Flushing;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt;

    use super::*;

    const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    /// Admits a connection, which must not wait.
    fn admit(connections: &Arc<Connections>) -> Option<Admitted> {
        connections.admit(FROM).now_or_never().expect("few evicted connections are open")
    }

    /// Whether it must be closed now.
    async fn is_closed(connection: &Connection) -> bool {
        timeout_at(Instant::now(), connection.until_closed()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_evicted_and_never_one_with_a_request() {
        let connections = Connections::new(3);
        let enter = || admit(&connections).map(|admitted| (Arc::clone(&admitted.0), admitted));
        let [(first, _first), (second, second_admitted), (third, _third)] = [0; 3].map(|_| enter().unwrap());
        let request = first.begin();
        third.received();
        let (fourth, _fourth) = enter().unwrap();
        assert!(!is_closed(&first).await && is_closed(&second).await && !is_closed(&third).await);
        drop(second_admitted);
        assert_eq!(connections.count(), (3, 3));

        // The rest of its head arrives just after it was evicted.
        let (fifth, _fifth) = enter().unwrap();
        let late = third.begin();
        assert!(!is_closed(&third).await);
        assert_eq!(connections.count(), (4, 3));

        let [of_fourth, of_fifth] = [fourth.begin(), fifth.begin()];
        assert!(enter().is_none(), "all have a request");
        // A response that is being sent still counts as a request.
        request.respond();
        drop(request);
        assert!(enter().is_none());
        first.flushed();
        assert!(enter().is_none(), "one too many is open, and only one is idle");
        late.respond();
        drop(late);
        third.flushed();
        let (_sixth, _sixth_admitted) = enter().unwrap();
        assert!(is_closed(&first).await && is_closed(&third).await);
        assert_eq!(connections.count(), (3, 3));
        drop((of_fourth, of_fifth));
    }

    /// Regression: the table lost count of evicted connections that stayed, until the node accepted nothing.
    #[tokio::test(start_paused = true)]
    async fn evicted_connections_that_stay_are_counted_once() {
        let connections = Connections::new(2);
        let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
        for _ in 0..2 * MAX_EVICTING {
            for evicted in [&first, &second] {
                let new = admit(&connections).unwrap();
                let request = evicted.0.begin();
                drop(new);
                assert_eq!(connections.count(), (2, 2));
                request.respond();
                drop(request);
                evicted.0.flushed();
            }
        }
        let table = connections.table();
        assert_eq!((table.open, table.evicting), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_waits_while_many_evicted_ones_are_open() {
        let connections = Connections::new(1);
        let mut all: VecDeque<Admitted> = (0..=MAX_EVICTING).map(|_| admit(&connections).unwrap()).collect();
        let mut next = Box::pin(connections.admit(FROM));
        assert!(timeout_at(Instant::now(), &mut next).await.is_err());
        all.pop_front();
        assert!(next.await.is_some());
    }
}
