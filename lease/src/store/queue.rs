use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use ringfence_wire::{Mode, Revision, Token};

use super::modes::Modes;
use super::slots::Slot;
use crate::steps::step;

/// A holder of a key, or a waiter for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimant {
    /// The token of a holder, the place of a waiter.
    pub(crate) number: Revision,
    pub(crate) mode: Mode,
    pub(crate) slot: Slot,
}

/// Who holds a key and who waits for it: at least one of either.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lock<'a> {
    /// One holder and no waiter, as most keys have. It has no queue: all that one would say is in the lease.
    Sole(Claimant),
    /// Anything else.
    Queue(&'a Queue),
}

/// The holders of a key and its waiters, first come first served.
///
/// A waiter *fits* if the holders, the earlier waiters and itself are a compatible set. The waiters that fit are the
/// head of the queue. Each is *admitted* once, which moves the *frontier* behind it; the modes of the holders and of the
/// admitted are counted, and nothing else is needed to tell who fits next:
///
/// ```text
///     holders      admitted waiters    frontier    other waiters
///   [ 3 s, 7 s ]      [ 9 s, 12 s ]       |      [ 15 x, 16 s, 20 s ]
///   '--------- counted: compatible -------'
/// ```
///
/// **A waiter that fits keeps fitting.** Only a grant could change that. A newcomer is granted only if it is compatible
/// with all holders and waiters together, so it changes nothing for them. A later waiter that is granted first (because
/// this one lacks another key) fitted while this one was already counted. So the frontier only moves towards the tail,
/// and a waiter that is admitted on all its keys can be granted. Its grant moves it within the counted set and changes
/// nothing for the rest: only an end lets waiters in.
///
/// **Ready.** One end may let in very many, and an entry of the log admits only so many. While the first waiter beyond
/// the frontier fits, the queue is *ready*. Nobody overtakes: a newcomer does not fit while anybody waits beyond the
/// frontier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// By token.
    holders: BTreeMap<Revision, (Mode, Slot)>,
    /// By place.
    waiters: BTreeMap<Revision, (Mode, Slot)>,
    /// The holders and the admitted waiters.
    admitted: Modes,
    /// The place of the last waiter that was admitted.
    frontier: Revision,
    /// The place of the first waiter beyond the frontier, if it fits.
    ready: Option<Revision>,
}

impl<'a> Lock<'a> {
    /// Whether a newcomer fits.
    pub(crate) fn fits(self, mode: Mode) -> bool {
        match self {
            Self::Sole(holder) => {
                let mut modes = Modes::default();
                modes.add(holder.mode);
                modes.admits(mode)
            }
            Self::Queue(queue) => queue.fits(mode),
        }
    }

    /// The holders by token.
    pub(crate) fn holders(self) -> impl DoubleEndedIterator<Item = Claimant> + use<'a> {
        let (sole, queue) = match self {
            Self::Sole(holder) => (Some(holder), None),
            Self::Queue(queue) => (None, Some(entries(&queue.holders))),
        };
        sole.into_iter().chain(queue.into_iter().flatten())
    }

    /// The holder with this token.
    pub(crate) fn holder(self, token: Token) -> Option<Slot> {
        let number = Revision(token.0);
        match self {
            Self::Sole(holder) => (holder.number == number).then_some(holder.slot),
            Self::Queue(queue) => queue.holders.get(&number).map(|&(_, slot)| slot),
        }
    }

    pub(crate) fn holders_len(self) -> usize {
        self.queue().map_or(1, |queue| queue.holders.len())
    }

    /// The waiters, first come first served.
    pub(crate) fn waiters(self) -> impl Iterator<Item = Claimant> + use<'a> {
        self.queue().into_iter().flat_map(|queue| entries(&queue.waiters))
    }

    pub(crate) fn waiters_len(self) -> usize {
        self.queue().map_or(0, |queue| queue.waiters.len())
    }

    /// How many waiters are ahead of `place`. It walks over them, and stops at `most`.
    pub(crate) fn waiters_ahead(self, place: Revision, most: usize) -> usize {
        let ahead = |queue: &Queue| queue.waiters.range(..place).take(most).inspect(|_| step()).count();
        self.queue().map_or(0, ahead)
    }

    pub(super) fn queue(self) -> Option<&'a Queue> {
        match self {
            Self::Sole(_) => None,
            Self::Queue(queue) => Some(queue),
        }
    }
}

impl Queue {
    /// Whether a newcomer fits: only if all waiters do.
    fn fits(&self, mode: Mode) -> bool {
        self.first_beyond().is_none() && self.admitted.admits(mode)
    }

    /// Adds a holder that fits.
    pub(crate) fn hold(&mut self, holder: Claimant) {
        self.admitted.add(holder.mode);
        self.holders.insert(holder.number, (holder.mode, holder.slot));
    }

    /// Adds a waiter at the tail, and returns whether it fits: then it is admitted. (In a restore its place can be before
    /// the one that is ready.)
    pub(crate) fn enqueue(&mut self, waiter: Claimant) -> bool {
        let fits = self.ready.is_none_or(|ready| waiter.number < ready) && self.fits(waiter.mode);
        self.waiters.insert(waiter.number, (waiter.mode, waiter.slot));
        if fits {
            self.pass(waiter);
        }
        fits
    }

    /// Admits the first waiter beyond the frontier, if it fits.
    pub(crate) fn admit(&mut self) -> Option<Slot> {
        let waiter = self.next_fitting()?;
        self.pass(waiter);
        Some(waiter.slot)
    }

    /// Makes the admitted waiter at `place` a holder.
    pub(crate) fn grant(&mut self, place: Revision, token: Revision) {
        if let Some(waiter) = self.waiters.remove(&place) {
            self.holders.insert(token, waiter);
        }
    }

    /// Removes the holder with this token, or the waiter at this place.
    pub(crate) fn remove(&mut self, number: Revision) {
        if let Some((mode, _)) = self.holders.remove(&number) {
            self.admitted.remove(mode);
        } else if let Some((mode, _)) = self.waiters.remove(&number)
            && number <= self.frontier
        {
            self.admitted.remove(mode);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The holder, if there is one and no waiter.
    pub(crate) fn sole_holder(&self) -> Option<Slot> {
        let is_sole = self.waiters.is_empty() && self.holders.len() == 1;
        self.holders.values().next().filter(|_| is_sole).map(|&(_, slot)| slot)
    }

    /// The place that was ready at the last update, and the one that is ready now.
    pub(crate) fn ready(&self) -> (Option<Revision>, Option<Revision>) {
        (self.ready, self.next_fitting().map(|waiter| waiter.number))
    }

    pub(crate) fn set_ready(&mut self, ready: Option<Revision>) {
        self.ready = ready;
    }

    fn pass(&mut self, waiter: Claimant) {
        self.admitted.add(waiter.mode);
        self.frontier = waiter.number;
    }

    fn next_fitting(&self) -> Option<Claimant> {
        self.first_beyond().filter(|waiter| self.admitted.admits(waiter.mode))
    }

    /// The first waiter beyond the frontier.
    fn first_beyond(&self) -> Option<Claimant> {
        let (&number, &(mode, slot)) = self.waiters.range((Excluded(self.frontier), Unbounded)).next()?;
        Some(Claimant { number, mode, slot })
    }
}

fn entries(of: &BTreeMap<Revision, (Mode, Slot)>) -> impl DoubleEndedIterator<Item = Claimant> {
    of.iter().map(|(&number, &(mode, slot))| Claimant { number, mode, slot })
}
