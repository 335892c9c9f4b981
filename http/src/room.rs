//! Memory that owners share so that none takes what others may need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::owner::Owner;

/// A bound on the bytes that all owners take together. Owners share three quarters of it: none takes more than it leaves free for the
/// others, so one alone gets at most half. The last quarter is for owners that take little: what others have never stops them.
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

/// An owner takes little if it takes at most this part of a room.
const LITTLE: usize = 1_024;

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
        let all = taken.bytes + bytes;
        let left = (self.max_bytes / 4 * 3).saturating_sub(all).max(self.max_bytes / LITTLE);
        let own = taken.by.get(&by).copied().unwrap_or(0) + bytes;
        if own > left || all > self.max_bytes {
            return None;
        }
        taken.by.insert(by.clone(), own);
        taken.bytes = all;
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
        let room = Room::new(160);
        let [greedy, modest] = ["greedy", "modest"].map(|name| Owner::Principal(name.into()));
        let most = |by: &Owner| -> Vec<Portion> { std::iter::from_fn(|| room.take(by.clone(), 1)).collect() };
        let first = most(&greedy);
        assert_eq!(first.len(), 60);
        assert!(room.take(greedy, 1).is_none());
        let second = most(&modest);
        assert_eq!(second.len(), 30);
        drop((first, second));
        assert_eq!(most(&modest).len(), 60);
        let taken = room.taken();
        assert_eq!((taken.bytes, taken.by.len()), (0, 0));
    }

    /// Eighteen owners that took all they could once left nothing for anybody.
    #[test]
    fn whoever_takes_little_gets_it_whatever_others_have() {
        let room = Room::new(64 << 20);
        let owner = |number: u32| Owner::Principal(number.to_string().into());
        let most = |bytes: usize| {
            let room = &room;
            move |by: u32| std::iter::from_fn(move || room.take(owner(by), bytes))
        };
        let taken: Vec<Portion> = (0..50).flat_map(most(256 << 10)).collect();
        assert!(taken.len() > 100);
        for by in 50..100 {
            assert_eq!(most(32 << 10)(by).take(2).map(std::mem::forget).count(), 2, "{by}");
        }
        let rest: Vec<Portion> = (100..1_000).flat_map(most(32 << 10)).collect();
        assert!(room.taken().bytes <= 64 << 20 && rest.len() > 100);
    }
}
