//! How many of a link's calls are proposals, and of which askers.
//!
//! Askers take turns in the leader's queue, but not on the link that leads to it. So a link refuses more proposals of an asker that already
//! has as many unanswered ones there as are left for the others. A proposal counts until its answer comes, even if its client is gone: the
//! leader has it. Other calls always find room on the link, whatever clients ask for.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::propose::asker::Asker;

/// The most unanswered calls on one connection. At this limit the caller sends no more, and the other side reads no more.
pub(super) const MAX_CALLS: usize = 4_096;
/// The most places of all askers together. The rest of a link's calls is for what the nodes ask.
const MOST: usize = MAX_CALLS / 16 * 15;
/// What askers share that have more than a few.
const SHARED: usize = MOST / 4 * 3;
/// Up to this many, an asker's own share is never too large.
const FEW: usize = 16;
/// A request takes a place for each part of this many bytes.
const PART: usize = 16 << 10;

/// The unanswered proposals on a link, and those that wait to be sent.
#[derive(Default)]
pub(super) struct Forwarded(Mutex<Places>);

#[derive(Default)]
struct Places {
    all: usize,
    by: HashMap<Asker, usize>,
}

/// The places of a proposal. They are free when this is dropped.
pub(super) struct Place {
    forwarded: Arc<Forwarded>,
    asker: Asker,
    parts: usize,
}

impl Forwarded {
    /// Takes the places that a request of this many bytes needs.
    ///
    /// # Errors
    /// `asker` has too many places, or all askers together have. A later try may find room, as on the link to the next leader.
    pub(super) fn take(self: &Arc<Self>, asker: Asker, bytes: usize) -> io::Result<Place> {
        let parts = 1 + bytes / PART;
        let mut places = self.places();
        let all = places.all + parts;
        let own = places.by.get(&asker).copied().unwrap_or(0) + parts;
        if own > SHARED.saturating_sub(all).max(FEW) {
            return Err(io::Error::other("too many proposals of the same client are unanswered"));
        }
        if all > MOST {
            return Err(io::Error::other("too many proposals are unanswered"));
        }
        places.all = all;
        places.by.insert(asker, own);
        Ok(Place { forwarded: Arc::clone(self), asker, parts })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().expect("nothing panics while places are counted")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.forwarded.places();
        places.all -= self.parts;
        if let Some(own) = places.by.get_mut(&self.asker) {
            *own -= self.parts;
            if *own == 0 {
                places.by.remove(&self.asker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_many_proposals_is_refused_and_nobody_else() {
        let forwarded = Arc::new(Forwarded::default());
        let most = |asker: u64, bytes| -> Vec<Place> {
            let asker = Asker::from_number(asker);
            std::iter::from_fn(|| forwarded.take(asker, bytes).ok()).collect()
        };
        let taken: Vec<_> = (2..40).flat_map(|asker| most(asker, 100)).collect();
        assert_eq!(forwarded.places().by[&Asker::from_number(2)], SHARED / 2);
        assert_eq!(forwarded.places().by[&Asker::from_number(39)], FEW);
        let is_refused = |asker| forwarded.take(Asker::from_number(asker), 100).is_err();
        assert!(is_refused(2) && !is_refused(300));
        let others: Vec<_> = (100..200).flat_map(|asker| most(asker, 100)).collect();
        assert_eq!((taken.len() + others.len(), forwarded.places().all), (MOST, MOST));
        assert!(is_refused(300));
        drop((taken, others));
        assert_eq!(most(2, 10 * PART).len(), SHARED / 2 / 11);
        let places = forwarded.places();
        assert_eq!((places.all, places.by.len()), (0, 0));
    }
}
