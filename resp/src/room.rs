//! The memory of commands that wait for EXEC, shared by all connections of a node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_wire::PrincipalName;

/// The memory of all connections together.
const MAX_BYTES: usize = 64 << 20;

/// How much each principal takes. No principal gets more than is left for the others: one alone gets at most half, two get a third each.
#[derive(Debug)]
pub(crate) struct Room {
    max_bytes: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    by: HashMap<Option<PrincipalName>, usize>,
}

/// The memory of one connection. Dropping it gives the memory back.
#[derive(Debug)]
pub(crate) struct Share {
    room: Arc<Room>,
    by: Option<PrincipalName>,
    bytes: usize,
}

impl Room {
    pub(crate) fn new() -> Arc<Self> {
        Self::of(MAX_BYTES)
    }

    fn of(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, taken: Mutex::default() })
    }

    /// An empty share of a principal.
    pub(crate) fn share(self: &Arc<Self>, by: Option<&PrincipalName>) -> Share {
        Share { room: Arc::clone(self), by: by.cloned(), bytes: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("nothing panics while the room is locked")
    }
}

impl Share {
    /// Takes `bytes` more. Returns whether there was room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut taken = self.room.taken();
        let left = self.room.max_bytes.saturating_sub(taken.bytes + bytes);
        let own = taken.by.get(&self.by).copied().unwrap_or(0) + bytes;
        if own > left {
            return false;
        }
        taken.by.insert(self.by.clone(), own);
        taken.bytes += bytes;
        self.bytes += bytes;
        true
    }
}

impl Drop for Share {
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
    fn one_principal_leaves_room_for_others_and_gives_back_what_it_took() {
        let room = Room::of(120);
        let [greedy, modest] = ["greedy", "modest"].map(|name| PrincipalName::new(name).unwrap());
        let most = |by: &PrincipalName| {
            let mut share = room.share(Some(by));
            while share.grow(1) {}
            share
        };
        let first = most(&greedy);
        assert_eq!(first.bytes, 60);
        let mut second = room.share(Some(&greedy));
        assert!(!second.grow(1), "a second connection gets around the bound");
        assert_eq!(most(&modest).bytes, 30);
        drop((first, second));
        let taken = room.taken();
        assert_eq!((taken.bytes, taken.by.len()), (0, 0));
    }
}
