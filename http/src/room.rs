//! Memory that owners share so that none takes what others may need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::owner::Owner;

/// A bound on the bytes that all owners take together. No owner gets more than is left for the others: one alone gets at most half.
#[derive(Debug)]
pub struct Room {
    max_bytes: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    by: HashMap<Owner, usize>,
}

/// What one owner takes for one thing. Dropping it gives that back.
#[derive(Debug)]
pub struct Portion {
    room: Arc<Room>,
    by: Owner,
    bytes: usize,
}

impl Room {
    /// Room for `max_bytes`.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, taken: Mutex::default() })
    }

    /// Takes `bytes` for an owner. `None`: there is no room.
    pub(super) fn take(self: &Arc<Self>, by: Owner, bytes: usize) -> Option<Portion> {
        let mut taken = self.taken();
        let left = self.max_bytes.saturating_sub(taken.bytes + bytes);
        let own = taken.by.get(&by).copied().unwrap_or(0) + bytes;
        if own > left {
            return None;
        }
        taken.by.insert(by.clone(), own);
        taken.bytes += bytes;
        Some(Portion { room: Arc::clone(self), by, bytes })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("nothing panics while the room is locked")
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.bytes -= self.bytes;
        if let Some(own) = taken.by.get_mut(&self.by) {
            *own -= self.bytes;
            if *own == 0 {
                taken.by.remove(&self.by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_room_for_others_and_gives_back_what_it_took() {
        let room = Room::new(120);
        let [greedy, modest] = ["greedy", "modest"].map(|name| Owner::Principal(name.into()));
        let most = |by: &Owner| -> Vec<Portion> { std::iter::from_fn(|| room.take(by.clone(), 1)).collect() };
        let first = most(&greedy);
        assert_eq!(first.len(), 60);
        assert!(room.take(greedy, 1).is_none());
        let second = most(&modest);
        assert_eq!(second.len(), 30);
        drop((first, second));
        let taken = room.taken();
        assert_eq!((taken.bytes, taken.by.len()), (0, 0));
    }
}
