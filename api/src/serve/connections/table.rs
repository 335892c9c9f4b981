//! How many connections there are, of which hosts, and which of them may be evicted in which order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::Connection;

/// A client that has kept responses unread for so long may be evicted. The time in between is subtracted.
pub(super) const UNREAD_FOR: Duration = Duration::from_secs(2);
/// A host is crowded if it has this part of all connections.
const CROWDED: usize = 16;
/// Connections that were idle for so long are evicted for those of crowded hosts, too.
pub(super) const UNUSED_FOR: Duration = Duration::from_secs(10);

/// The connections of a node, as far as all of them matter together.
#[derive(Default)]
pub(super) struct Table {
    /// How many connections there may be.
    max: usize,
    /// Connections that have a descriptor.
    pub(super) open: usize,
    /// Those of them that are evicted.
    evicting: usize,
    evictable: Evictable,
    hosts: HashMap<IpAddr, Host>,
    /// Those with too large a share of the connections: a few.
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
pub(super) struct Place {
    pub(super) class: Class,
    /// When the connection became idle, its request began to last, or, less the time of earlier ones, its response could not
    /// be sent on. In milliseconds since the node started.
    pub(super) since_ms: u64,
    /// Makes it unique.
    number: u64,
}

/// Why a connection may be evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// It waits for no response, or is to send the rest of a request.
    Idle,
    /// It is to read more of its response.
    Unread,
    /// Its request lasts.
    Lasting,
}

/// Who is counted as one: an IPv4 address, or the 2^64 IPv6 addresses that a host can choose from.
pub(super) fn host_of(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

impl Table {
    /// A table of at most `max` connections.
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// How many connections there are that were not evicted.
    pub(super) fn count(&self) -> usize {
        self.open - self.evicting
    }

    /// Whether nothing is left of closed connections.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
            && self.evicting == 0
            && self.hosts.is_empty()
            && self.evictable.0.is_empty()
            && self.crowded.is_empty()
    }

    /// Whether a host is with this many connections. One is not too many.
    fn is_crowded(open: usize, max: usize) -> bool {
        open > 1 && open * CROWDED >= max
    }

    /// Counts a new connection of `host`.
    pub(super) fn open(&mut self, host: IpAddr) {
        self.open += 1;
        let of_host = self.hosts.entry(host).or_default();
        of_host.open += 1;
        if Self::is_crowded(of_host.open, self.max) {
            self.crowded.insert(host);
        }
    }

    /// A connection of `host` has closed.
    pub(super) fn close(&mut self, host: IpAddr) {
        self.open -= 1;
        let Some(of_host) = self.hosts.get_mut(&host) else { return };
        of_host.open -= 1;
        let open = of_host.open;
        if !Self::is_crowded(open, self.max) {
            self.crowded.remove(&host);
        }
        if open == 0 {
            self.hosts.remove(&host);
        }
    }

    /// Evicts a connection for a new one of `host`.
    pub(super) fn evict(&mut self, host: IpAddr, now_ms: u64) -> Option<Arc<Connection>> {
        let (place, evicted) = self.to_evict(host, now_ms)?;
        self.remove(place, evicted.host);
        self.evicting += 1;
        Some(evicted)
    }

    fn to_evict(&self, host: IpAddr, now_ms: u64) -> Option<(Place, Arc<Connection>)> {
        if self.crowded.contains(&host) {
            let own = self.hosts.get(&host)?.evictable.first(now_ms);
            return own.or_else(|| self.evictable.unused(now_ms));
        }
        let mut crowded: Vec<_> = self.crowded.iter().filter_map(|host| self.hosts.get(host)).collect();
        crowded.sort_by_key(|host| Reverse(host.open));
        let of_crowded = crowded.iter().find_map(|host| host.evictable.first(now_ms));
        let rest = || crowded.iter().find_map(|host| host.evictable.rest(now_ms));
        of_crowded.or_else(|| self.evictable.first(now_ms)).or_else(rest)
    }

    /// A new place.
    pub(super) fn place(&mut self, class: Class, since_ms: u64) -> Place {
        self.next += 1;
        Place { class, since_ms, number: self.next }
    }

    /// Adds a connection to the evictable ones.
    pub(super) fn add(&mut self, place: Place, connection: &Arc<Connection>) {
        self.evictable.0.insert(place, Arc::clone(connection));
        if let Some(host) = self.hosts.get_mut(&connection.host) {
            host.evictable.0.insert(place, Arc::clone(connection));
        }
    }

    /// Whether no connection has this place any more: it was evicted.
    pub(super) fn is_evicted(&self, place: Place) -> bool {
        !self.evictable.0.contains_key(&place)
    }

    /// Removes a connection of `host` from the evictable ones. Returns whether it had been evicted just before, and stays after all.
    pub(super) fn keep(&mut self, place: Place, host: IpAddr) -> bool {
        let is_evicted = !self.remove(place, host);
        self.evicting -= usize::from(is_evicted);
        is_evicted
    }

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
        self.first_before(Self::unread_too_short(now_ms))
    }

    /// The one that is idle for longest, if that is long.
    fn unused(&self, now_ms: u64) -> Option<(Place, Arc<Connection>)> {
        let since_ms = (now_ms + 1).saturating_sub(UNUSED_FOR.as_millis() as u64);
        self.first_before(Place { class: Class::Idle, since_ms, number: 0 })
    }

    fn first_before(&self, end: Place) -> Option<(Place, Arc<Connection>)> {
        self.0.range(..end).next().map(|(place, connection)| (*place, Arc::clone(connection)))
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
