//! What many owners share, so that none takes what others need: one account of who has taken how much, and three answers when it is full.
//!
//! What is taken is a [`Portion`], which gives itself back when it is dropped. Each room gives one of three answers if it is full:
//!
//! - **revoke** ([`Room::revocable`]): it is taken, and the greediest owner loses its oldest portions, which its slowest clients hold;
//! - **wait** ([`Room::wait`]): it is given once there is room. Owners take turns;
//! - **refuse** ([`Room::take`]): it is not taken if its owner has its part, by [`Bound::allows`].
//!
//! | what is counted | at most | beyond it | where |
//! |---|---|---|---|
//! | requests of which a part has arrived, twice their size | 64 MiB | revoke: 503, or a dialog is closed | `http/src/connections/memory.rs` |
//! | requests that are being handled, five times their size | 64 MiB before the next | wait; batches end at twice as much | there |
//! | responses that are not sent | 64 MiB | revoke: the connection is closed | there |
//! | requests of a dialog beside others, 4 KiB and eight times their size | 16 MiB | refuse: it is done alone | there |
//! | commands behind MULTI, keys of WATCH, large scripts, and those that wait for a turn | 64 MiB | refuse: an error | `resp/src/door.rs` |
//! | requests whose leases are taken back | 65,536 | refuse: their waits and times-to-live end | `service/src/service.rs` |
//! | unanswered proposals of a link, and each 16 KiB of one | 3,840 | refuse: 503 | `raft/src/peer/call.rs` |
//! | proposals in the queue of the log | 65,536, and 64 MiB | refuse: 503 | `raft/src/propose/queue.rs`, which counts itself, without a lock |
//!
//! **Not counted** is what each connection may take anyway, as connections are counted: a request that arrived in one turn (16 KiB) with what
//! it takes while it is handled, unless it is beside others, and what is sent in a turn. So a small request at the leader takes no lock here.
//!
//! An [`Account`] alone is kept of what is forgotten when there is too much: scripts in `resp`, and changes in `raft`.

mod account;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

pub use account::Account;
pub use queue::{Queue, Waits};

/// Who is counted as one.
pub trait Owner: Clone + Hash + Ord {}

impl<O: Clone + Hash + Ord> Owner for O {}

/// How much may be taken.
#[derive(Clone, Copy)]
pub struct Bound {
    /// By all owners together.
    pub max: usize,
    /// Up to this much, an owner is refused only if all have [`Self::max`].
    pub little: usize,
}

/// What owners share. `H` holds portions that can be revoked.
pub struct Room<O: Owner, H = ()> {
    bound: Bound,
    state: Mutex<State<O, H>>,
}

struct State<O: Owner, H> {
    taken: Account<O>,
    /// The portions that can be revoked, those of each owner in the order of their age.
    revocable: BTreeMap<(O, u64), Revocable<H>>,
    /// The number of the last one.
    last: u64,
    waiting: Queue<O, Waiter<O, H>>,
    /// Whether somebody gives to those that wait.
    is_giving: bool,
}

struct Revocable<H> {
    amount: usize,
    holder: Arc<H>,
    revoke: fn(&H),
}

struct Waiter<O: Owner, H> {
    owner: O,
    amount: usize,
    give: oneshot::Sender<Portion<O, H>>,
}

/// What an owner takes for one thing, until this is dropped.
pub struct Portion<O: Owner, H = ()> {
    of: Arc<Room<O, H>>,
    /// The owner and, if it can be revoked, the number of the portion.
    owner: (O, u64),
    /// Of one that can be revoked, the room knows it.
    amount: usize,
}

impl Bound {
    /// An owner takes little up to a 1,024th of `max`.
    pub const fn of(max: usize) -> Self {
        Self { max, little: max / 1_024 }
    }

    /// Whether all may have taken `all`, and one of them `own` of it. Owners share three quarters: none takes more than it leaves free for
    /// the others, so one alone gets at most half. The last quarter is for owners that take little: only many of them fill it.
    pub fn allows(self, all: usize, own: usize) -> bool {
        all <= self.max && own <= (self.max / 4 * 3).saturating_sub(all).max(self.little)
    }
}

impl<O: Owner, H> Waits for Waiter<O, H> {
    fn has_gone(&self) -> bool {
        self.give.is_closed()
    }
}

impl<O: Owner, H> Room<O, H> {
    /// Room for what `bound` allows.
    pub fn new(bound: Bound) -> Arc<Self> {
        let (taken, revocable, waiting) = (Account::default(), BTreeMap::new(), Queue::default());
        let state = State { taken, revocable, last: 0, waiting, is_giving: false };
        Arc::new(Self { bound, state: Mutex::new(state) })
    }

    /// Takes `amount`. `None`: there is no room for this owner.
    pub fn take(self: &Arc<Self>, owner: O, amount: usize) -> Option<Portion<O, H>> {
        let taken = &mut self.state().taken;
        if !self.bound.allows(taken.all() + amount, taken.of(&owner) + amount) {
            return None;
        }
        taken.add(&owner, amount);
        Some(Portion { of: Arc::clone(self), owner: (owner, 0), amount })
    }

    /// Takes `amount` once less is taken than may be.
    pub async fn wait(self: &Arc<Self>, owner: O, amount: usize) -> Portion<O, H> {
        let (give, given) = oneshot::channel();
        self.state().waiting.push(owner.clone(), Waiter { owner, amount, give });
        self.give();
        given.await.expect("a waiter is removed only to give it what it waits for")
    }

    /// A portion of nothing, which may [grow](Portion::grow) whether or not there is room.
    pub fn nothing(self: &Arc<Self>, owner: O) -> Portion<O, H> {
        Portion { of: Arc::clone(self), owner: (owner, 0), amount: 0 }
    }

    /// A portion of nothing, which may [grow](Portion::grow). When it has to make room for others, `revoke` is called, and it counts no more.
    pub fn revocable(self: &Arc<Self>, owner: O, holder: &Arc<H>, revoke: fn(&H)) -> Portion<O, H> {
        let mut state = self.state();
        state.last += 1;
        let owner = (owner, state.last);
        state.revocable.insert(owner.clone(), Revocable { amount: 0, holder: Arc::clone(holder), revoke });
        Portion { of: Arc::clone(self), owner, amount: 0 }
    }

    fn give(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().is_giving, true) {
            return;
        }
        while let Some(Waiter { owner, amount, give }) = self.next() {
            // A waiter that goes now gives it back.
            let _ = give.send(Portion { of: Arc::clone(self), owner: (owner, 0), amount });
        }
    }

    /// The next waiter that is given what it waits for. Without one, nobody gives.
    fn next(&self) -> Option<Waiter<O, H>> {
        let mut state = self.state();
        let has_room = state.taken.all() < self.bound.max;
        let next = if has_room { state.waiting.pop() } else { None };
        if let Some(Waiter { owner, amount, .. }) = &next {
            state.taken.add(owner, *amount);
        }
        state.is_giving = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State<O, H>> {
        self.state.lock().expect("nothing panics while the state is locked")
    }
}

impl<O: Owner, H> State<O, H> {
    /// Takes back the oldest portion of the greediest owner that can be revoked.
    fn revoke_one(&mut self) -> Option<Revocable<H>> {
        self.revocable.first_key_value()?;
        let greediest = self.taken.greediest()?;
        let (oldest, _) = self.revocable.range((greediest.clone(), 0)..).next()?;
        let oldest = Some(oldest.clone()).filter(|(owner, _)| owner == greediest)?;
        let revoked = self.revocable.remove(&oldest)?;
        self.taken.remove(&oldest.0, revoked.amount);
        Some(revoked)
    }
}

impl<O: Owner, H> Portion<O, H> {
    /// Takes more, unless it was revoked. Portions that can be revoked make room for it. Returns what all have taken.
    pub fn grow(&mut self, more: usize) -> usize {
        let mut state = self.of.state();
        match state.revocable.get_mut(&self.owner) {
            Some(portion) => portion.amount += more,
            None if self.owner.1 == 0 => self.amount += more,
            None => return state.taken.all(),
        }
        state.taken.add(&self.owner.0, more);
        while state.taken.all() > self.of.bound.max
            && let Some(Revocable { holder, revoke, .. }) = state.revoke_one()
        {
            // Under the lock, so that the holder cannot drop the portion and begin another request, which would be hit instead.
            revoke(&holder);
        }
        state.taken.all()
    }
}

impl<O: Owner, H> Drop for Portion<O, H> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let amount = state.revocable.remove(&self.owner).map_or(self.amount, |portion| portion.amount);
        state.taken.remove(&self.owner.0, amount);
        let others_wait = !state.waiting.is_empty();
        drop(state);
        if others_wait {
            self.of.give();
        }
    }
}
