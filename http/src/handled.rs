//! Memory of large requests that are being handled.
//!
//! What a handler makes of a body takes some times its size, for as long as a log entry is under way, or there is no leader. So all of
//! them together are bounded: the next one begins when there is room, and their owners take turns.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::owner::Owner;
use crate::queue::{Queue, Waits};

/// A bound on the bytes of all requests that are being handled.
pub(super) struct Handled {
    /// No request begins while as much is taken or more.
    max: usize,
    state: Mutex<State>,
}

struct State {
    taken: usize,
    waiting: Queue<Waiter>,
    /// Whether somebody lets requests begin.
    is_giving: bool,
}

struct Waiter {
    bytes: usize,
    give: oneshot::Sender<Memory>,
}

impl Waits for Waiter {
    fn has_gone(&self) -> bool {
        self.give.is_closed()
    }
}

/// What one request takes, until this is dropped.
pub(super) struct Memory {
    of: Arc<Handled>,
    bytes: usize,
}

impl Handled {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let state = State { taken: 0, waiting: Queue::default(), is_giving: false };
        Arc::new(Self { max, state: Mutex::new(state) })
    }

    /// Takes `bytes` once there is room.
    pub(super) async fn take(self: &Arc<Self>, owner: Owner, bytes: usize) -> Memory {
        let (give, given) = oneshot::channel();
        self.state().waiting.push(owner, Waiter { bytes, give });
        self.give();
        given.await.expect("a waiter is removed only to give it what it waits for")
    }

    fn give(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().is_giving, true) {
            return;
        }
        while let Some(Waiter { bytes, give }) = self.next() {
            // A waiter that goes now gives it back.
            let _ = give.send(Memory { of: Arc::clone(self), bytes });
        }
    }

    /// The next one that may begin. Without one, nobody gives.
    fn next(&self) -> Option<Waiter> {
        let mut state = self.state();
        let has_room = state.taken < self.max;
        let next = if has_room { state.waiting.pop() } else { None };
        state.taken += next.as_ref().map_or(0, |waiter| waiter.bytes);
        state.is_giving = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the state is locked")
    }
}

impl Memory {
    /// Of a request that takes nothing yet.
    pub(super) fn none(of: &Arc<Handled>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    /// Takes more, also where there is no room. Returns whether all together take twice as much as they may.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let mut state = self.of.state();
        self.bytes += bytes;
        state.taken += bytes;
        state.taken > 2 * self.of.max
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.of.state().taken -= self.bytes;
        self.of.give();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn owner(name: &str) -> Owner {
        Owner::Principal(name.into())
    }

    #[tokio::test]
    async fn the_next_request_begins_when_there_is_room_and_owners_take_turns() {
        let handled = Handled::new(10);
        let mut first = handled.take(owner("many"), 9).now_or_never().unwrap();
        let second = handled.take(owner("many"), 9).now_or_never().expect("there was some room");
        let mut waits: Vec<_> = (0..3).map(|_| Box::pin(handled.take(owner("many"), 9))).collect();
        let mut few = Box::pin(handled.take(owner("few"), 20));
        assert!(
            waits.iter_mut().all(|wait| wait.now_or_never().is_none()) && (&mut few).now_or_never().is_none()
        );
        drop(second);
        let third = (&mut waits[0]).now_or_never().expect("the first of those that wait");
        drop(third);
        let few = few.now_or_never().expect("an owner with fewer is next");
        assert!((&mut waits[1]).now_or_never().is_none());
        assert!(first.grow(0), "29 of 10");
        drop(few);
        assert!(!first.grow(2) && first.grow(1), "18 of 10 before: the next one has begun");
        drop(first);
        assert!((&mut waits[1]).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_waiter_that_goes_away_takes_nothing() {
        let handled = Handled::new(1);
        let first = handled.take(owner("a"), 5).now_or_never().unwrap();
        let mut gone: Vec<_> = (0..10_000).map(|_| Box::pin(handled.take(owner("a"), 5))).collect();
        for wait in &mut gone {
            assert!(wait.now_or_never().is_none());
        }
        // Its memory was given, but it has not seen that.
        drop(first);
        assert_eq!(handled.state().taken, 5);
        drop(gone);
        assert_eq!(handled.state().taken, 0);
        assert!(handled.take(owner("a"), 5).now_or_never().is_some());
    }
}
