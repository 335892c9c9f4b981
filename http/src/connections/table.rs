//! Whose connections there are, and which one is closed for a new one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::Connection;
use crate::tenant::Tenant;

/// The part of all connections that those of no principal may have if there is no room: one of this many.
const STRANGERS: usize = 4;

/// When a connection is closed, compared with the others of its tenant: the first in this order is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionOrder {
    pub(super) class: Class,
    /// When it was given, in milliseconds since the server started; counted down where the newest goes first.
    at_ms: u64,
    /// Makes it unique.
    number: u64,
}

impl EvictionOrder {
    /// Whether it was given to a quiet connection at this time or later.
    pub(super) fn is_quiet_since(self, since_ms: u64) -> bool {
        self.class == Class::Quiet && self.at_ms >= since_ms
    }
}

/// What a connection is doing, in the order in which they are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Its request lasts. The newest is closed first.
    Lasting,
    /// A request, or the body of one, is to arrive.
    Quiet,
    /// It is to read its response.
    Blocked,
    /// Its request is being answered. It is closed once the response is sent.
    Busy,
}

/// The connections of a server.
#[derive(Default)]
pub(super) struct Table {
    /// How many connections there may be.
    max: usize,
    /// Connections that have a descriptor, evicted or not.
    pub(super) open: usize,
    strangers: Pool,
    principals: Pool,
    /// Those that were evicted and may be open still, the longest evicted first.
    evicted: VecDeque<Weak<Connection>>,
    next: u64,
}

/// Connections of tenants of one kind.
#[derive(Default)]
struct Pool {
    count: usize,
    tenants: HashMap<Tenant, Owned>,
    /// The tenants by how many connections they have; of those with as many, the one that has had some for longest comes last.
    by_count: BTreeSet<(usize, Reverse<u64>, Tenant)>,
}

/// The connections of one tenant.
struct Owned {
    /// Counts tenants.
    number: u64,
    orders: BTreeMap<EvictionOrder, Arc<Connection>>,
}

impl Table {
    /// A table of at most `max` connections.
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// How many connections there are that were not evicted.
    pub(super) fn count(&self) -> usize {
        self.strangers.count + self.principals.count
    }

    /// A new order.
    pub(super) fn order(&mut self, class: Class, since_ms: u64) -> EvictionOrder {
        self.next += 1;
        let (at_ms, number) = match class {
            Class::Lasting => (u64::MAX - since_ms, u64::MAX - self.next),
            _ => (since_ms, self.next),
        };
        EvictionOrder { class, at_ms, number }
    }

    /// Adds a connection.
    pub(super) fn add(&mut self, tenant: &Tenant, order: EvictionOrder, connection: Arc<Connection>) {
        self.next += 1;
        let number = self.next;
        self.pool(tenant).add(tenant, number, order, connection);
    }

    /// Removes a connection, if it was not evicted.
    pub(super) fn remove(&mut self, tenant: &Tenant, order: EvictionOrder) -> Option<Arc<Connection>> {
        self.pool(tenant).remove(tenant, order)
    }

    /// Gives a connection another order, if it was not evicted.
    pub(super) fn reorder(&mut self, tenant: &Tenant, order: EvictionOrder, new: EvictionOrder) {
        if let Some(owned) = self.pool(tenant).tenants.get_mut(tenant)
            && let Some(connection) = owned.orders.remove(&order)
        {
            owned.orders.insert(new, connection);
        }
    }

    /// If there is no room for a connection of `newcomer`, evicts another one, which is to be closed.
    pub(super) fn evict_for(&mut self, newcomer: &Tenant) -> Option<Arc<Connection>> {
        if self.count() < self.max {
            return None;
        }
        let share = (self.max / STRANGERS).max(1);
        let pool = if self.strangers.count >= share { &mut self.strangers } else { &mut self.principals };
        let own = pool.tenants.get(newcomer).map_or(0, |owned| owned.orders.len());
        let (most, _, largest) = pool.by_count.last()?;
        let tenant = if own > 0 && own + 1 >= *most { newcomer.clone() } else { largest.clone() };
        let order = *pool.tenants.get(&tenant)?.orders.keys().next()?;
        let evicted = pool.remove(&tenant, order)?;
        self.evicted.retain(|earlier| earlier.strong_count() > 0);
        self.evicted.push_back(Arc::downgrade(&evicted));
        Some(evicted)
    }

    /// The connection that was evicted first of those that are open. The next call returns the next one.
    pub(super) fn longest_evicted(&mut self) -> Option<Arc<Connection>> {
        std::iter::from_fn(|| self.evicted.pop_front()).find_map(|evicted| evicted.upgrade())
    }

    fn pool(&mut self, tenant: &Tenant) -> &mut Pool {
        match tenant {
            Tenant::Host(_) => &mut self.strangers,
            Tenant::Principal(_) => &mut self.principals,
        }
    }

    /// Whether nothing is left of closed connections.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |pool: &Pool| pool.count == 0 && pool.tenants.is_empty() && pool.by_count.is_empty();
        self.open == 0 && is_empty(&self.strangers) && is_empty(&self.principals)
    }
}

impl Pool {
    /// `number`: of the tenant, if it is new.
    fn add(&mut self, tenant: &Tenant, number: u64, order: EvictionOrder, connection: Arc<Connection>) {
        let new = || Owned { number, orders: BTreeMap::new() };
        let owned = self.tenants.entry(tenant.clone()).or_insert_with(new);
        let at = |count| (count, Reverse(owned.number), tenant.clone());
        let (before, after) = (at(owned.orders.len()), at(owned.orders.len() + 1));
        owned.orders.insert(order, connection);
        self.by_count.remove(&before);
        self.by_count.insert(after);
        self.count += 1;
    }

    fn remove(&mut self, tenant: &Tenant, order: EvictionOrder) -> Option<Arc<Connection>> {
        let owned = self.tenants.get_mut(tenant)?;
        let connection = owned.orders.remove(&order)?;
        let (left, number) = (owned.orders.len(), Reverse(owned.number));
        self.by_count.remove(&(left + 1, number, tenant.clone()));
        if left == 0 {
            self.tenants.remove(tenant);
        } else {
            self.by_count.insert((left, number, tenant.clone()));
        }
        self.count -= 1;
        Some(connection)
    }
}
