//! The connections of a server: what each one is doing, and which one is closed if there is no room.
//!
//! ```text
//!         ┌───────────────────────── flushed ◀─────────────────────── flushing ◀──┐
//!         ▼                                                                       │ end of the response body
//!  ───▶ idle ─────────────▶ head ───────────▶ turn ──────▶ handling ───────────▶ responding
//!   accepted   first byte         whole head     its turn             response
//! ```
//! A connection belongs to the principal of its last request or, if it has none, to the host that it comes from. If there is no room for a
//! new one, another one is closed:
//!
//! - one of no principal, if these are a quarter of all or more; else one of a principal. So strangers take no connection from
//!   principals that have three quarters together;
//! - of those, one of the tenant that has most;
//! - of the tenant's, by what it is doing: see [`Class`]. Its own waits go before the connections on which it renews.

mod memory;
mod served;
mod table;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

pub(super) use self::memory::BESIDE;
use self::memory::Memory;
pub use self::memory::{Portion, Room};
pub(super) use self::served::{Admitted, InFlight};
use self::table::{Class, Order, Place, STEPS, Table};
use crate::measure::{CONNECTIONS, CONNECTIONS_MOST, CloseReason};
use crate::tenant::Tenant;
use crate::turns::Turns;

/// How long a connection may make no progress: no next request begins, or nothing more of a response can be sent because the
/// client does not read.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How many evicted connections may still be open when the next one is admitted.
const MAX_EVICTING: usize = 16;
/// How long a new connection waits for evicted ones to close, before one must though it is being answered, and before the next one must.
const PATIENCE: Duration = Duration::from_millis(20);
/// The time for the head of a request, from its first byte.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most requests of a dialog that are in flight at a time.
pub(super) const MOST_IN_FLIGHT: usize = 64;
/// The connections of a server.
pub struct Connections {
    max: usize,
    /// How many orders were given to connections.
    orders: AtomicU64,
    table: Mutex<Table>,
    /// Notified when a connection has closed.
    room: Notify,
    pub(super) memory: Memory,
}

/// One connection.
pub struct Connection {
    pub(super) connections: Arc<Connections>,
    pub(super) from: SocketAddr,
    /// The turns of the thread that serves it.
    turns: OnceLock<Arc<Turns>>,
    /// How often it was told to close for another one: once, when it is answered; twice, as that one waits, at once.
    evictions: AtomicUsize,
    /// Its client has hung up.
    is_gone: AtomicBool,
    /// How many of its requests hold it back.
    held_back: AtomicUsize,
    place: Place,
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
    tenant: Tenant,
    class: Class,
    /// How many requests have begun, and have no response that is buffered or sent. Only dialogs have several.
    in_flight: usize,
    /// The request waits for a lease or is a watch, or the like.
    lasts: bool,
    /// The next request waits until all of the response is sent.
    begins: bool,
    /// It speaks another protocol than HTTP.
    is_dialog: bool,
    /// Its client is no stranger, though it may have no name.
    is_known: bool,
    /// The response is not read, and others need its memory.
    is_response_shed: bool,
    /// The request body does not arrive, and others need its memory.
    is_body_shed: bool,
    /// What the request takes while it is being handled, if that is much.
    memory: Option<Portion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte of a request has arrived.
    Idle,
    /// Part of a request head has arrived.
    Head,
    /// All of it has, and it is not its turn yet.
    Turn,
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
            orders: AtomicU64::new(0),
            table: Mutex::new(Table::new(max)),
            room: Notify::new(),
            memory: Memory::new(),
        })
    }

    /// Sets the gauges of connections.
    pub fn measure(&self) {
        let (count, max) = self.count();
        CONNECTIONS.get().set(count as f64);
        CONNECTIONS_MOST.get().set(max as f64);
    }

    /// The number of connections and its maximum.
    pub fn count(&self) -> (usize, usize) {
        (self.table().count(), self.max)
    }

    /// Admits a new connection, and closes another one for it where there is no room. While many such are still open, it waits; soon the
    /// longest evicted one closes although its request is being answered, which can take seconds.
    pub(super) async fn admit(self: &Arc<Self>, from: SocketAddr) -> Admitted {
        let (tenant, mut is_patient) = (Tenant::host(from), true);
        // Enough for all connections. Those that are used meanwhile could go on for ever.
        let mut rounds = self.max / STEPS + 1;
        loop {
            let is_settled = {
                let mut table = self.table();
                let is_settled = table.settle_for(&tenant) || rounds == 0;
                if is_settled && table.open < self.max + MAX_EVICTING {
                    if let Some(evicted) = table.evict_for(&tenant) {
                        evicted.evict();
                    }
                    return self.add(&mut table, from, tenant);
                }
                if is_settled
                    && !is_patient
                    && let Some(overdue) = table.longest_evicted()
                {
                    overdue.evict();
                }
                is_settled
            };
            if !is_settled {
                rounds -= 1;
                yield_now().await;
                continue;
            }
            // A thread that is busy does not hold up connections that others could close.
            is_patient = timeout(PATIENCE, self.room.notified()).await.is_ok();
        }
    }

    fn add(self: &Arc<Self>, table: &mut Table, from: SocketAddr, tenant: Tenant) -> Admitted {
        let state = State {
            phase: Phase::Idle,
            since: Instant::now(),
            tenant: tenant.clone(),
            class: Class::Quiet,
            in_flight: 0,
            lasts: false,
            begins: false,
            is_dialog: false,
            is_known: false,
            is_response_shed: false,
            is_body_shed: false,
            memory: None,
        };
        let connection = Arc::new(Connection {
            connections: Arc::clone(self),
            from,
            turns: OnceLock::new(),
            evictions: AtomicUsize::new(0),
            is_gone: AtomicBool::new(false),
            held_back: AtomicUsize::new(0),
            place: Place::new(self.order(Class::Quiet)),
            state: Mutex::new(state),
            close: Notify::new(),
            flushed: Notify::new(),
        });
        table.open += 1;
        table.add(&tenant, Arc::clone(&connection));
        Admitted(connection)
    }

    fn order(&self, class: Class) -> Order {
        Order::new(class, self.orders.fetch_add(1, Relaxed))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics while the table is locked")
    }
}

impl Connection {
    /// Lock order: a connection's state, then the table.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the state is locked")
    }

    /// Gives it a new order.
    fn put(&self, state: &mut State, class: Class) {
        state.class = class;
        if self.place.change(self.connections.order(class)) {
            self.connections.table().list(&state.tenant, &self.place);
        }
        if self.is_evicted() {
            self.close.notify_one();
        }
    }

    fn evict(&self) {
        self.evictions.fetch_add(1, Relaxed);
        self.close.notify_one();
    }

    /// A request is this principal's, or nobody's, and so is the connection until the next one. A proxy may send those of many on it.
    pub fn belongs_to(&self, principal: Option<&str>) {
        let mut state = self.state();
        let tenant = match (principal, &state.tenant) {
            (Some(name), Tenant::Principal(own)) if **own == *name => return,
            (None, Tenant::Host(_)) => return,
            (Some(name), _) => Tenant::Principal(name.into()),
            (None, Tenant::Principal(_)) => Tenant::host(self.from),
        };
        let mut table = self.connections.table();
        if let Some(connection) = table.remove(&state.tenant, &self.place) {
            table.add(&tenant, connection);
        }
        state.tenant = tenant;
    }

    pub(super) fn tenant(&self) -> Tenant {
        self.state().tenant.clone()
    }

    /// Bytes were read.
    pub(super) fn received(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle {
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
    }

    /// Gives the client more time, as much more of its request has arrived.
    pub(super) fn received_much(&self) {
        let mut state = self.state();
        if state.phase == Phase::Head {
            state.since = Instant::now();
        }
    }

    /// The head of a request is complete, and waits for its turn: the client is not late, and nothing is missing.
    pub(super) fn waits_for_turn(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Idle | Phase::Head) {
            state.phase = Phase::Turn;
            self.put(&mut state, Class::Quiet);
        }
    }

    pub(super) fn is_handling(&self) -> bool {
        self.state().phase == Phase::Handling
    }

    /// The handler waits for more of the request's body.
    pub(super) fn waits_for_body(&self) {
        let mut state = self.state();
        if state.phase == Phase::Handling {
            self.put(&mut state, Class::Quiet);
        }
    }

    /// All of the request's body has arrived.
    pub(super) fn received_body(&self) {
        self.put(&mut self.state(), Class::Busy);
    }

    /// The request lasts, until its response ends: it waits for a lease, or is a watch. Nothing changes if others are in flight.
    pub fn lasts(&self) {
        let mut state = self.state();
        if state.in_flight == 1 && !std::mem::replace(&mut state.lasts, true) {
            self.put(&mut state, Class::Lasting);
        }
    }

    /// Part of a response was sent.
    pub(super) fn sent(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Responding | Phase::Flushing) {
            state.since = Instant::now();
        }
    }

    /// Nothing more of a response can be sent before the client reads.
    pub(super) fn blocked(&self) {
        let mut state = self.state();
        if state.class == Class::Busy && matches!(state.phase, Phase::Responding | Phase::Flushing) {
            self.put(&mut state, Class::Blocked);
        }
    }

    /// Everything buffered was sent.
    pub(super) fn flushed(&self) {
        let mut state = self.state();
        if state.phase == Phase::Flushing {
            (state.phase, state.since) = (Phase::Idle, Instant::now());
            self.put(&mut state, Class::Quiet);
            if std::mem::take(&mut state.begins) {
                self.flushed.notify_one();
            }
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
                let enough = if state.class == Class::Busy { 2 } else { 1 };
                if self.evictions.load(Relaxed) >= enough {
                    return CloseReason::Evicted;
                }
                let (timeout, reason) = match state.phase {
                    _ if state.is_response_shed => return CloseReason::Unread,
                    _ if state.is_unfinished_shed() => return CloseReason::Late,
                    Phase::Idle if state.may_rest() => (Duration::MAX, CloseReason::Silent),
                    Phase::Idle => (IDLE_TIMEOUT, CloseReason::Silent),
                    Phase::Head => (HEAD_TIMEOUT, CloseReason::Late),
                    Phase::Turn | Phase::Handling => (Duration::MAX, CloseReason::Silent),
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
