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
//! A host that has more than a sixteenth of all connections loses its own first, and its new ones evict no others. If there is
//! nothing else to evict for other hosts, it also loses responses that it is reading, and requests that last: those that wait
//! for a lease, and watches.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::budget::Budget;
use crate::measure::{CloseReason, connections_closed_total};

/// How long a connection may make no progress: no next request begins, or nothing more of a response can be sent because the
/// client does not read.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// A client that has kept responses unread for so long may be evicted. Those with shorter pauses between them count together.
const UNREAD_FOR: Duration = Duration::from_secs(2);
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
    created: Instant,
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
    evictable: Evictable,
    hosts: HashMap<IpAddr, Host>,
    /// Those with more than their share of the connections: a few.
    crowded: BTreeSet<IpAddr>,
    next: u64,
}

/// The connections of one host.
#[derive(Default)]
struct Host {
    open: usize,
    evictable: Evictable,
}

/// Connections that may be evicted, in the order of their places.
#[derive(Default)]
struct Evictable(BTreeMap<Place, Arc<Connection>>);

/// The place of a connection among those that may be evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    class: Class,
    /// When the connection became idle, its request began to last, or, less the time of earlier ones, its response could not
    /// be sent on. In milliseconds since the node started.
    since_ms: u64,
    /// Makes it unique.
    number: u64,
}

/// Why a connection may be evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// It waits for no response, or is to send the rest of a request.
    Idle,
    /// It is to read more of its response.
    Unread,
    /// Its request lasts.
    Lasting,
}

/// One connection.
pub(crate) struct Connection {
    pub(super) connections: Arc<Connections>,
    pub(super) from: SocketAddr,
    host: IpAddr,
    state: Mutex<State>,
    /// Notified when the connection may have to close.
    close: Notify,
}

struct State {
    phase: Phase,
    /// When the phase began or, of a response, when something was last sent.
    since: Instant,
    /// For how long earlier responses could not be sent on, and since when that is so.
    unread_for: Duration,
    unread_since: Instant,
    /// Its place among the evictable, also after it was evicted.
    place: Option<Place>,
    /// Since when the request waits for a lease or is a watch, if it does or is.
    lasts_since: Option<Instant>,
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

    /// Admits a new connection, evicting another where there is no room; `None` if none may be evicted. Waits while many
    /// evicted connections have not closed yet.
    pub(super) async fn admit(self: &Arc<Self>, from: SocketAddr) -> Option<Admitted> {
        let host = host_of(from);
        loop {
            {
                let mut table = self.table();
                if table.open - table.evicting >= self.max {
                    let (place, evicted) = table.to_evict(host, self.ms(Instant::now()))?;
                    table.remove(place, evicted.host);
                    table.evicting += 1;
                    evicted.close.notify_one();
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
        table.open += 1;
        let of_host = table.hosts.entry(host).or_default();
        of_host.open += 1;
        if of_host.open > self.share() {
            table.crowded.insert(host);
        }
        let now = Instant::now();
        let place = table.place(Class::Idle, self.ms(now));
        let state = State {
            phase: Phase::Idle,
            since: now,
            unread_for: Duration::ZERO,
            unread_since: now,
            place: Some(place),
            lasts_since: None,
            is_response_shed: false,
            is_body_shed: false,
        };
        let (connections, state) = (Arc::clone(self), Mutex::new(state));
        let connection = Arc::new(Connection { connections, from, host, state, close: Notify::new() });
        table.add(place, &connection);
        Admitted(connection)
    }

    /// A connection of `host` has closed.
    fn close(&self, table: &mut Table, host: IpAddr) {
        table.open -= 1;
        let Some(of_host) = table.hosts.get_mut(&host) else { return };
        of_host.open -= 1;
        let open = of_host.open;
        if open <= self.share() {
            table.crowded.remove(&host);
        }
        if open == 0 {
            table.hosts.remove(&host);
        }
    }

    /// How many connections a host may have before its own are evicted first.
    fn share(&self) -> usize {
        (self.max / 16).max(1)
    }

    /// A time of a place.
    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.created).as_millis() as u64
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics while the table is locked")
    }
}

/// Who is counted as one: an IPv4 address, or the 2^64 IPv6 addresses that a host can choose from.
fn host_of(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

impl Table {
    /// The connection to evict for a new one of `host`.
    fn to_evict(&self, host: IpAddr, now_ms: u64) -> Option<(Place, Arc<Connection>)> {
        if self.crowded.contains(&host) {
            return self.hosts.get(&host)?.evictable.first(now_ms);
        }
        let mut crowded: Vec<_> = self.crowded.iter().filter_map(|host| self.hosts.get(host)).collect();
        crowded.sort_by_key(|host| Reverse(host.open));
        let of_crowded = crowded.iter().find_map(|host| host.evictable.first(now_ms));
        let rest = || crowded.iter().find_map(|host| host.evictable.rest(now_ms));
        of_crowded.or_else(|| self.evictable.first(now_ms)).or_else(rest)
    }

    fn place(&mut self, class: Class, since_ms: u64) -> Place {
        self.next += 1;
        Place { class, since_ms, number: self.next }
    }

    /// Adds a connection to the evictable ones.
    fn add(&mut self, place: Place, connection: &Arc<Connection>) {
        self.evictable.0.insert(place, Arc::clone(connection));
        if let Some(host) = self.hosts.get_mut(&connection.host) {
            host.evictable.0.insert(place, Arc::clone(connection));
        }
    }

    /// Removes a connection of `host` from the evictable ones. Returns whether it was there.
    fn remove(&mut self, place: Place, host: IpAddr) -> bool {
        if let Some(host) = self.hosts.get_mut(&host) {
            host.evictable.0.remove(&place);
        }
        self.evictable.0.remove(&place).is_some()
    }
}

impl Evictable {
    /// The one that is idle, or has kept its responses unread, for longest.
    fn first(&self, now_ms: u64) -> Option<(Place, Arc<Connection>)> {
        let late = self.0.range(..Self::unread_too_short(now_ms)).next();
        late.map(|(place, connection)| (*place, Arc::clone(connection)))
    }

    /// Another one: of those whose requests last, that whose request began last.
    fn rest(&self, now_ms: u64) -> Option<(Place, Arc<Connection>)> {
        let lasting = Place { class: Class::Lasting, since_ms: 0, number: 0 };
        let unread = self.0.range(Self::unread_too_short(now_ms)..lasting).next();
        let found = unread.or_else(|| self.0.range(lasting..).next_back());
        found.map(|(place, connection)| (*place, Arc::clone(connection)))
    }

    /// The first place of those that have not kept responses unread for long.
    fn unread_too_short(now_ms: u64) -> Place {
        let since_ms = (now_ms + 1).saturating_sub(UNREAD_FOR.as_millis() as u64);
        Place { class: Class::Unread, since_ms, number: 0 }
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
        let mut table = self.connections.table();
        if !table.remove(place, self.host) {
            // It was evicted just before, and stays after all.
            table.evicting -= 1;
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
            if state.since.elapsed() >= UNREAD_FOR {
                state.unread_for = Duration::ZERO;
            }
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
    }

    /// The head of a request is complete.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut state = self.state();
        self.keep(&mut state);
        (state.phase, state.is_body_shed, state.is_response_shed) = (Phase::Handling, false, false);
        InFlight(Arc::clone(self))
    }

    pub(super) fn is_handling(&self) -> bool {
        self.state().phase == Phase::Handling
    }

    /// The handler waits for more of the request's body.
    pub(super) fn waits_for_body(self: &Arc<Self>) {
        let mut state = self.state();
        if state.phase == Phase::Handling && state.place.is_none() {
            self.put(&mut state, Class::Idle, Instant::now());
        }
    }

    /// More of the request's body has arrived.
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
            state.unread_since = now.checked_sub(state.unread_for).unwrap_or(now);
            let since = state.unread_since;
            self.put(&mut state, Class::Unread, since);
        }
    }

    /// Everything buffered was sent.
    pub(super) fn flushed(self: &Arc<Self>) {
        let mut state = self.state();
        let is_unread = state.is_unread();
        if is_unread {
            // A watch is behind again and again.
            let adds_up = state.lasts_since.is_none();
            state.unread_for = if adds_up { state.unread_since.elapsed() } else { Duration::ZERO };
        }
        match state.phase {
            Phase::Flushing => {
                let now = Instant::now();
                (state.phase, state.since) = (Phase::Idle, now);
                self.put(&mut state, Class::Idle, now);
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
                if state.place.is_some_and(|place| !self.connections.table().evictable.0.contains_key(&place))
                {
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
        let mut table = self.0.connections.table();
        self.0.connections.close(&mut table, self.0.host);
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
        // One too many is open, and stays so.
        let (_sixth, _sixth_admitted) = enter().unwrap();
        assert!(is_closed(&first).await);
        late.respond();
        drop(late);
        third.flushed();
        assert!(!is_closed(&third).await);
        assert_eq!(connections.count(), (4, 3));
        drop((of_fourth, of_fifth));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_body_does_not_arrive_is_evicted() {
        let connections = Connections::new(2);
        let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
        let (_request, late) = (first.0.begin(), second.0.begin());
        assert!(admit(&connections).is_none(), "handlers work on both requests");
        first.0.waits_for_body();
        second.0.waits_for_body();
        first.0.received_body();
        let third = admit(&connections).unwrap();
        assert!(!is_closed(&first.0).await && is_closed(&second.0).await);
        // It is not closed if it was answered just before.
        late.respond();
        assert!(!is_closed(&second.0).await);
        assert_eq!(connections.count(), (3, 2));
        drop(third);
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
    async fn a_response_that_takes_long_to_read_is_given_up_for_a_new_connection() {
        let connections = Connections::new(2);
        let answer = |admitted: &Admitted| {
            let request = admitted.0.begin();
            request.respond();
            drop(request);
            admitted.0.blocked();
        };
        let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
        let handled = first.0.begin();
        answer(&second);
        assert!(admit(&connections).is_none(), "the client may be about to read");
        tokio::time::advance(UNREAD_FOR / 2).await;
        // Clients that read a little now and then, or ask for more, once held all connections.
        second.0.sent();
        second.0.blocked();
        second.0.flushed();
        answer(&second);
        drop(handled);
        answer(&first);
        tokio::time::advance(UNREAD_FOR / 2).await;
        let third = admit(&connections).unwrap();
        assert!(!is_closed(&first.0).await && is_closed(&second.0).await);
        // The client reads all of it after all, but the connection has been counted as closing.
        second.0.flushed();
        assert!(!is_closed(&second.0).await);
        tokio::time::advance(UNREAD_FOR).await;
        second.0.received();
        answer(&second);
        assert!(second.0.state().unread_since.elapsed().is_zero(), "what was long ago is forgiven");
        drop((first, second, third));
        let table = connections.table();
        assert_eq!((table.open, table.evicting, table.hosts.len(), table.crowded.len()), (0, 0, 0, 0));
        assert!(table.evictable.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_reads_is_not_given_up_because_it_is_old() {
        let connections = Connections::new(1);
        let watch = admit(&connections).unwrap();
        let request = watch.0.begin();
        watch.0.lasts();
        request.respond();
        for _ in 0..2 {
            tokio::time::advance(UNREAD_FOR).await;
            watch.0.blocked();
            assert!(admit(&connections).is_none());
            watch.0.sent();
            watch.0.flushed();
        }
        watch.0.blocked();
        tokio::time::advance(UNREAD_FOR).await;
        assert!(admit(&connections).is_some());
        drop(request);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowded_host_loses_requests_that_last_if_there_is_nothing_else() {
        let connections = Connections::new(5);
        let from = |address: &str| connections.admit(address.parse().unwrap()).now_or_never().unwrap();
        let (one, other) = ("10.0.0.1:1", "10.0.0.2:1");
        let idle = from("10.0.0.3:1").unwrap();
        let [watches, waits, reads, short] = [0; 4].map(|_| from(one).unwrap());
        let requests = [&watches, &waits, &reads, &short].map(|admitted| admitted.0.begin());
        watches.0.lasts();
        tokio::time::advance(UNREAD_FOR).await;
        waits.0.lasts();
        // It is not the newest because it was behind.
        requests[0].respond();
        watches.0.blocked();
        watches.0.flushed();
        requests[2].respond();
        reads.0.blocked();
        assert!(from(one).is_none());
        let first = from(other).unwrap();
        assert!(is_closed(&idle.0).await && !is_closed(&reads.0).await);
        drop(idle);
        let _first = first.0.begin();
        let second = from("10.0.0.4:1").unwrap();
        assert!(is_closed(&reads.0).await && !is_closed(&waits.0).await);
        drop(reads);
        let _second = second.0.begin();
        let third = from("10.0.0.5:1").unwrap();
        assert!(is_closed(&waits.0).await && !is_closed(&watches.0).await, "the older one goes on");
        drop(waits);
        let _third = third.0.begin();
        assert!(from("10.0.0.6:1").is_some() && is_closed(&watches.0).await);
        assert!(!is_closed(&short.0).await);
        drop(requests);

        let few = Connections::new(4);
        let from = |host: u8| few.admit(format!("10.0.0.{host}:1").parse().unwrap()).now_or_never().unwrap();
        let all = [1, 2, 3, 4].map(|host| from(host).unwrap());
        all.iter().for_each(|admitted| admitted.0.lasts());
        assert!(from(5).is_none(), "no host has more than its share");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_with_many_connections_loses_its_own_first_and_evicts_no_others() {
        let connections = Connections::new(8);
        let from = |address: &str| connections.admit(address.parse().unwrap()).now_or_never().unwrap();
        let quiet = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|address| from(address).unwrap());
        // The same host, whatever the lower half of its address is.
        let crowd = [1, 2, 3, 4, 5].map(|low| from(&format!("[2001:db8::{low}]:1")).unwrap());
        let more = from("[2001:db8::6]:1").unwrap();
        assert!(is_closed(&crowd[0].0).await);
        let other = from("10.0.0.4:1").unwrap();
        assert!(is_closed(&crowd[1].0).await, "the crowd makes room for others, too");
        for quiet in &quiet {
            assert!(!is_closed(&quiet.0).await);
        }
        let requests =
            crowd[2..].iter().chain([&more]).map(|admitted| admitted.0.begin()).collect::<Vec<_>>();
        assert!(from("[2001:db8::7]:1").is_none(), "all of its own have a request");
        let _last = from("10.0.0.5:1").unwrap();
        assert!(is_closed(&quiet[0].0).await, "nobody else has one to spare");
        drop((requests, quiet, crowd, other));
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
