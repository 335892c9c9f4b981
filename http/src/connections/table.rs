//! Whose connections there are, and which one is closed for a new one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use super::Connection;
use crate::tenant::Tenant;

/// The part of all connections that those of no principal may have if there is no room: one of this many.
const STRANGERS: usize = 4;

/// When a connection is closed, compared with the others of its tenant: the first in this order is closed first. No two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order(u64);

/// How many connections get their order in the table at once: others wait for it meanwhile.
pub(super) const STEPS: usize = 64;
/// How many numbers of orders there are: the highest two bits are the class.
const NUMBERS: u64 = 1 << 62;

impl Order {
    /// `number` counts the orders that were given, those of all connections.
    pub(super) fn new(class: Class, number: u64) -> Self {
        let number = match class {
            Class::Lasting => NUMBERS - 1 - number,
            _ => number,
        };
        Self(class as u64 * NUMBERS + number)
    }
}

/// The order of a connection, and its order in the table.
///
/// The first changes with each request. The second changes only if it must: when the first falls below it, and before an eviction, when the first
/// connections of the table get their orders there. The connection writes the one and then reads the other; the table does it the other way
/// round. So one of the two sees that the table must change.
pub(super) struct Place {
    order: AtomicU64,
    /// Changes only while the table is locked.
    listed: AtomicU64,
}

impl Place {
    pub(super) fn new(Order(order): Order) -> Self {
        Self { order: order.into(), listed: order.into() }
    }

    /// Changes the order. Whether the table must learn of it.
    pub(super) fn change(&self, Order(order): Order) -> bool {
        self.order.store(order, SeqCst);
        order < self.listed.load(SeqCst)
    }

    fn order(&self) -> Order {
        Order(self.order.load(SeqCst))
    }

    fn listed(&self) -> Order {
        Order(self.listed.load(SeqCst))
    }

    /// What the table is to have it under from now on.
    fn list(&self) -> Order {
        loop {
            let order = self.order();
            self.listed.store(order.0, SeqCst);
            if order <= self.order() {
                return order;
            }
        }
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
    added: u64,
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
    /// How many connections were added before its first: the older, the smaller.
    number: u64,
    orders: BTreeMap<Order, Arc<Connection>>,
}

impl Owned {
    /// Lets the first in the table be the one that is closed first, in [`STEPS`] at most. Whether it is. All steps are no more
    /// than the changes that left the table as it was.
    fn settle(&mut self) -> bool {
        for _ in 0..STEPS {
            match self.orders.first_key_value() {
                Some((listed, connection)) if connection.place.order() > *listed => {
                    let connection = Arc::clone(connection);
                    self.list(&connection.place);
                }
                _ => return true,
            }
        }
        false
    }

    fn list(&mut self, place: &Place) {
        if let Some(connection) = self.orders.remove(&place.listed()) {
            self.orders.insert(place.list(), connection);
        }
    }
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

    /// Adds a connection.
    pub(super) fn add(&mut self, tenant: &Tenant, connection: Arc<Connection>) {
        self.added += 1;
        let number = self.added;
        self.pool(tenant).add(tenant, number, connection);
    }

    /// Removes a connection, if it was not evicted.
    pub(super) fn remove(&mut self, tenant: &Tenant, place: &Place) -> Option<Arc<Connection>> {
        self.pool(tenant).remove(tenant, place.listed())
    }

    /// Lists a connection under the order that it has now, if it was not evicted.
    pub(super) fn list(&mut self, tenant: &Tenant, place: &Place) {
        if let Some(owned) = self.pool(tenant).tenants.get_mut(tenant) {
            owned.list(place);
        }
    }

    /// Whose connection is evicted for one of `newcomer`, if there is no room.
    fn loser(&self, newcomer: &Tenant) -> Option<Tenant> {
        if self.count() < self.max {
            return None;
        }
        let share = (self.max / STRANGERS).max(1);
        let pool = if self.strangers.count >= share { &self.strangers } else { &self.principals };
        let own = pool.tenants.get(newcomer).map_or(0, |owned| owned.orders.len());
        let (most, _, largest) = pool.by_count.last()?;
        Some(if own > 0 && own + 1 >= *most { newcomer.clone() } else { largest.clone() })
    }

    /// Prepares [`Table::evict_for`], which may take several calls. Whether it is prepared.
    pub(super) fn settle_for(&mut self, newcomer: &Tenant) -> bool {
        let Some(tenant) = self.loser(newcomer) else { return true };
        self.pool(&tenant).tenants.get_mut(&tenant).is_none_or(Owned::settle)
    }

    /// If there is no room for a connection of `newcomer`, evicts another one, which is to be closed.
    pub(super) fn evict_for(&mut self, newcomer: &Tenant) -> Option<Arc<Connection>> {
        let tenant = self.loser(newcomer)?;
        let pool = self.pool(&tenant);
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

    #[cfg(test)]
    pub(super) fn assert_is_sound(&self) {
        let owned = [&self.strangers, &self.principals].into_iter().flat_map(|pool| pool.tenants.values());
        for (listed, connection) in owned.flat_map(|owned| &owned.orders) {
            assert!(*listed == connection.place.listed() && *listed <= connection.place.order());
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
    fn add(&mut self, tenant: &Tenant, number: u64, connection: Arc<Connection>) {
        let new = || Owned { number, orders: BTreeMap::new() };
        let owned = self.tenants.entry(tenant.clone()).or_insert_with(new);
        let at = |count| (count, Reverse(owned.number), tenant.clone());
        let (before, after) = (at(owned.orders.len()), at(owned.orders.len() + 1));
        owned.orders.insert(connection.place.listed(), connection);
        self.by_count.remove(&before);
        self.by_count.insert(after);
        self.count += 1;
    }

    fn remove(&mut self, tenant: &Tenant, order: Order) -> Option<Arc<Connection>> {
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    /// A connection becomes busy and quiet while another thread gives it its order in the table.
    #[test]
    fn an_order_that_falls_is_seen_by_one_side() {
        let place = Place::new(Order::new(Class::Quiet, 0));
        let (table, listed, mut is_sound) = (Mutex::new(()), AtomicU64::new(0), true);
        // They spin: a thread that sleeps is rarely there at the right moment.
        let locked = || std::iter::repeat_with(|| table.try_lock().ok()).find_map(|locked| locked);
        let list = || locked().map(|_locked| place.list());
        let goes_on = || listed.load(SeqCst) < 500_000;
        thread::scope(|scope| {
            scope.spawn(|| {
                while goes_on() {
                    list();
                    listed.fetch_add(1, SeqCst);
                }
            });
            for round in (1..).take_while(|_| goes_on()) {
                for order in [Order::new(Class::Busy, 2 * round), Order::new(Class::Quiet, 2 * round + 1)] {
                    if place.change(order) {
                        list();
                    }
                }
                let _locked = locked();
                is_sound &= place.listed() <= place.order();
            }
        });
        assert!(is_sound);
    }
}
