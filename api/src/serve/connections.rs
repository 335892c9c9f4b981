//! The connections of a node: how many there are, the phase of each, and when one is closed.
//!
//! ```text
//!         ┌────────────────────── flushed ◀──────────────── flushing ◀──┐
//!         ▼                                                             │ end of the response body
//!  ───▶ idle ─────────────▶ head ───────────▶ handling ───────────▶ responding
//!   accepted   first byte         whole head             response
//! ```
//! While a connection is idle, or its request has not arrived in full, it has no request to lose. If there is no room for a
//! new connection, the one that has been in such a state for longest is evicted. If there is none, it is the one that has not
//! read its response for longest.
//!
//! A host that has more than a quarter of all connections loses its own first, and its new ones evict no others.

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
/// A client that has read nothing of its response for this long may be evicted.
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

/// Connections that may be evicted, those that have been evictable for longest first.
#[derive(Default)]
struct Evictable {
    /// They wait for no response, or are to send the rest of a request.
    idle: BTreeMap<u64, Arc<Connection>>,
    /// They do not read their response, since then.
    unread: BTreeMap<u64, (Instant, Arc<Connection>)>,
}

/// One connection.
pub(super) struct Connection {
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
    /// Its number among the evictable, if it was not evicted.
    number: Option<u64>,
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

    /// Admits a new connection, evicting another where there is no room; `None` if none may be evicted. Waits while many
    /// evicted connections have not closed yet.
    pub(super) async fn admit(self: &Arc<Self>, from: SocketAddr) -> Option<Admitted> {
        let host = host_of(from);
        loop {
            {
                let mut table = self.table();
                let too_many = (table.open - table.evicting + 1).saturating_sub(self.max);
                for (number, evicted) in table.to_evict(host, too_many)? {
                    table.remove(number, evicted.host);
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
        let number = table.number();
        let state = State {
            phase: Phase::Idle,
            since: Instant::now(),
            number: Some(number),
            is_response_shed: false,
            is_body_shed: false,
        };
        let (connections, state) = (Arc::clone(self), Mutex::new(state));
        let connection = Arc::new(Connection { connections, from, host, state, close: Notify::new() });
        table.add(host, |evictable| evictable.add_idle(number, &connection));
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
        self.max / 4
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
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The `count` connections to evict for a new one of `host`; `None` if there are too few.
    fn to_evict(&self, host: IpAddr, count: usize) -> Option<Vec<(u64, Arc<Connection>)>> {
        if self.crowded.contains(&host) {
            return self.hosts.get(&host)?.evictable.first(count);
        }
        let mut crowded: Vec<_> = self.crowded.iter().filter_map(|host| self.hosts.get(host)).collect();
        crowded.sort_by_key(|host| Reverse(host.open));
        let of_crowded = crowded.into_iter().find_map(|host| host.evictable.first(count));
        of_crowded.or_else(|| self.evictable.first(count))
    }

    /// Adds a connection of `host` to the evictable ones.
    fn add(&mut self, host: IpAddr, add: impl Fn(&mut Evictable)) {
        add(&mut self.evictable);
        if let Some(host) = self.hosts.get_mut(&host) {
            add(&mut host.evictable);
        }
    }

    /// Removes a connection of `host` from the evictable ones. Returns whether it was there.
    fn remove(&mut self, number: u64, host: IpAddr) -> bool {
        if let Some(host) = self.hosts.get_mut(&host) {
            host.evictable.remove(number);
        }
        self.evictable.remove(number)
    }
}

impl Evictable {
    /// The first `count`; `None` if there are fewer.
    fn first(&self, count: usize) -> Option<Vec<(u64, Arc<Connection>)>> {
        let now = Instant::now();
        let idle = self.idle.iter().map(|(number, connection)| (*number, connection));
        let unread = self.unread.iter().take_while(|(_, (since, _))| *since + UNREAD_FOR <= now);
        let unread = unread.map(|(number, (_, connection))| (*number, connection));
        let first =
            idle.chain(unread).take(count).map(|(number, connection)| (number, Arc::clone(connection)));
        Some(first.collect::<Vec<_>>()).filter(|first| first.len() == count)
    }

    fn add_idle(&mut self, number: u64, connection: &Arc<Connection>) {
        self.idle.insert(number, Arc::clone(connection));
    }

    fn add_unread(&mut self, number: u64, connection: &Arc<Connection>) {
        self.unread.insert(number, (Instant::now(), Arc::clone(connection)));
    }

    fn remove(&mut self, number: u64) -> bool {
        self.idle.remove(&number).is_some() || self.unread.remove(&number).is_some()
    }

    fn has(&self, number: u64) -> bool {
        self.idle.contains_key(&number) || self.unread.contains_key(&number)
    }
}

impl Connection {
    /// Lock order: a connection's state, then the table.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the state is locked")
    }

    /// From now on, it may not be evicted.
    fn keep(&self, state: &mut State) {
        let Some(number) = state.number.take() else { return };
        let mut table = self.connections.table();
        if !table.remove(number, self.host) {
            // It was evicted just before, and stays after all.
            table.evicting -= 1;
            self.connections.room.notify_one();
        }
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
        if state.phase == Phase::Handling && state.number.is_none() {
            self.may_be_evicted(&mut state);
        }
    }

    /// More of the request's body has arrived.
    pub(super) fn received_body(&self) {
        self.keep(&mut self.state());
    }

    /// From now on, it may be evicted.
    fn may_be_evicted(self: &Arc<Self>, state: &mut State) {
        let mut table = self.connections.table();
        let number = table.number();
        table.add(self.host, |evictable| evictable.add_idle(number, self));
        state.number = Some(number);
    }

    /// Part of a response was sent.
    pub(super) fn sent(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Responding | Phase::Flushing) {
            state.since = Instant::now();
            self.keep(&mut state);
        }
    }

    /// Nothing more of a response can be sent before the client reads.
    pub(super) fn blocked(self: &Arc<Self>) {
        let mut state = self.state();
        if state.number.is_none() && matches!(state.phase, Phase::Responding | Phase::Flushing) {
            let mut table = self.connections.table();
            let number = table.number();
            table.add(self.host, |evictable| evictable.add_unread(number, self));
            state.number = Some(number);
        }
    }

    /// Everything buffered was sent.
    pub(super) fn flushed(self: &Arc<Self>) {
        let mut state = self.state();
        if state.phase == Phase::Flushing {
            self.keep(&mut state);
            (state.phase, state.since) = (Phase::Idle, Instant::now());
            self.may_be_evicted(&mut state);
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
                if state.number.is_some_and(|number| !self.connections.table().evictable.has(number)) {
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
        self.0.keep(&mut state);
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
    async fn a_response_that_is_not_read_is_given_up_for_a_new_connection() {
        let connections = Connections::new(2);
        let answer = |admitted: &Admitted| {
            let request = admitted.0.begin();
            request.respond();
            drop(request);
            admitted.0.blocked();
        };
        let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
        answer(&first);
        answer(&second);
        assert!(admit(&connections).is_none(), "the client may be about to read");
        tokio::time::advance(UNREAD_FOR).await;
        first.0.sent();
        let third = admit(&connections).unwrap();
        assert!(!is_closed(&first.0).await && is_closed(&second.0).await);
        // The client reads after all, but the connection has been counted as closing.
        second.0.sent();
        assert!(!is_closed(&second.0).await);
        drop((first, second, third));
        let table = connections.table();
        assert_eq!((table.open, table.evicting, table.hosts.len(), table.crowded.len()), (0, 0, 0, 0));
        assert!(table.evictable.idle.is_empty() && table.evictable.unread.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_with_many_connections_loses_its_own_first_and_evicts_no_others() {
        let connections = Connections::new(8);
        let from = |address: &str| connections.admit(address.parse().unwrap()).now_or_never().unwrap();
        let quiet = [0; 3].map(|_| from("10.0.0.1:1").unwrap());
        // The same host, whatever the lower half of its address is.
        let crowd = [1, 2, 3, 4, 5].map(|low| from(&format!("[2001:db8::{low}]:1")).unwrap());
        let more = from("[2001:db8::6]:1").unwrap();
        assert!(is_closed(&crowd[0].0).await);
        let other = from("10.0.0.3:1").unwrap();
        assert!(is_closed(&crowd[1].0).await, "the crowd makes room for others, too");
        for quiet in &quiet {
            assert!(!is_closed(&quiet.0).await);
        }
        let requests =
            crowd[2..].iter().chain([&more]).map(|admitted| admitted.0.begin()).collect::<Vec<_>>();
        assert!(from("[2001:db8::7]:1").is_none(), "all of its own have a request");
        let _last = from("10.0.0.4:1").unwrap();
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
