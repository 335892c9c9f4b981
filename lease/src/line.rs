use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use ringfence_mutant::{Mutant, is};
use ringfence_wire::{Mode, Revision, Token};

use crate::slots::Slot;
use crate::tally::Tally;

/// What a lease wants of one key, or has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The token of the lease or, while it waits, its place.
    pub(crate) number: Revision,
    pub(crate) mode: Mode,
    pub(crate) slot: Slot,
}

/// Who holds a key and who stands in line for it; at least one of either.
///
/// A waiter *fits* if the holders, the earlier waiters and itself are a compatible set. So the waiters that fit are
/// the head of the queue, up to a *frontier*, and all that a line keeps in order to know it is the tally of the
/// holders and of the waiters up to there:
///
/// ```text
///     holders      waiters that fit   frontier   waiters that do not
///   [ 3 s, 7 s ]      [ 9 s, 12 s ]       |      [ 15 x, 16 s, 20 s ]
///   '--------- counted: compatible -------'
/// ```
///
/// **A waiter that fits goes on to fit.** Only a grant could change that. A newcomer is granted where it is
/// compatible with all holders and waiters together, hence it changes nothing for any of them. A later waiter that
/// is granted before this one (which lacks another key) fitted while this one was counted before it. So the
/// frontier only moves towards the tail, each waiter is passed once, and when it has been passed on all its keys it
/// can be granted. Granting it moves it from one part of the counted set to the other: nothing changes for the
/// rest. Only an end moves the frontier.
#[derive(Debug)]
pub(crate) enum Line {
    /// One holder and no waiter, as most keys have: it needs no memory of its own.
    Sole(Claim),
    /// Any other.
    Crowd(Box<Crowd>),
}

/// A line of more than one lease.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// By token.
    holders: BTreeMap<Revision, (Mode, Slot)>,
    /// By place.
    queue: BTreeMap<Revision, (Mode, Slot)>,
    /// The holders, and the waiters up to the frontier.
    fitting: Tally,
    /// No waiter with a larger place fits, and each of the others does.
    frontier: Revision,
}

impl Line {
    /// A line for a first waiter to join.
    pub(crate) fn nobody() -> Self {
        Self::Crowd(Box::default())
    }

    /// Whether a newcomer fits.
    pub(crate) fn fits(&self, mode: Mode) -> bool {
        match self {
            Self::Sole(holder) => {
                let mut tally = Tally::default();
                tally.add(holder.mode);
                tally.admits(mode)
            }
            Self::Crowd(crowd) if is(Mutant::SharedOvertakes) && mode != Mode::Exclusive => {
                crowd.fitting.admits(mode)
            }
            Self::Crowd(crowd) => crowd.fits(mode),
        }
    }

    /// The smallest token among the holders.
    pub(crate) fn oldest_token(&self) -> Option<Token> {
        self.holders().next().map(|holder| holder.number.into())
    }

    /// The holder with the largest token.
    pub(crate) fn newest(&self) -> Option<Claim> {
        match self {
            Self::Sole(holder) => Some(*holder),
            Self::Crowd(crowd) => {
                let (&number, &(mode, slot)) = crowd.holders.last_key_value()?;
                Some(Claim { number, mode, slot })
            }
        }
    }

    /// The holder with this token.
    pub(crate) fn holder(&self, token: Token) -> Option<Slot> {
        let number = Revision(token.0);
        match self {
            Self::Sole(holder) => (holder.number == number).then_some(holder.slot),
            Self::Crowd(crowd) => crowd.holders.get(&number).map(|&(_, slot)| slot),
        }
    }

    /// The holders by token.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Claim> {
        let (sole, crowd) = match self {
            Self::Sole(holder) => (Some(*holder), None),
            Self::Crowd(crowd) => (None, Some(claims(&crowd.holders))),
        };
        sole.into_iter().chain(crowd.into_iter().flatten())
    }

    /// The queue, first come first.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = Claim> {
        self.crowd().into_iter().flat_map(|crowd| claims(&crowd.queue))
    }

    /// How many wait.
    pub(crate) fn queue_len(&self) -> usize {
        self.crowd().map_or(0, |crowd| crowd.queue.len())
    }

    /// How many waiters stand before `place`. It walks over them.
    pub(crate) fn ahead_of(&self, place: Revision) -> usize {
        self.crowd().map_or(0, |crowd| crowd.queue.range(..place).count())
    }

    /// A newcomer that fits holds the key.
    pub(crate) fn hold(&mut self, claim: Claim) {
        let crowd = self.make_crowd();
        crowd.fitting.add(claim.mode);
        crowd.holders.insert(claim.number, (claim.mode, claim.slot));
    }

    /// A newcomer joins the tail; tells whether it fits.
    pub(crate) fn queue(&mut self, claim: Claim) -> bool {
        let crowd = self.make_crowd();
        let fits = crowd.fits(claim.mode);
        if fits {
            crowd.fitting.add(claim.mode);
            crowd.frontier = claim.number;
        }
        crowd.queue.insert(claim.number, (claim.mode, claim.slot));
        fits
    }

    /// The waiter at `place`, which fits, now holds the key with `token`.
    pub(crate) fn promote(&mut self, place: Revision, token: Revision) {
        if let Self::Crowd(crowd) = self
            && let Some(waiter) = crowd.queue.remove(&place)
        {
            crowd.holders.insert(token, waiter);
        }
        self.settle();
    }

    /// Takes the holder with this token or the waiter at this place out. The waiters that come to fit are added to
    /// `fitting`. Tells whether anybody is left.
    pub(crate) fn remove(&mut self, number: Revision, fitting: &mut Vec<Slot>) -> bool {
        let crowd = match self {
            Self::Sole(holder) => return holder.number != number,
            Self::Crowd(crowd) => crowd,
        };
        if let Some((mode, _)) = crowd.holders.remove(&number) {
            crowd.fitting.remove(mode);
        } else if let Some((mode, _)) = crowd.queue.remove(&number)
            && number <= crowd.frontier
        {
            crowd.fitting.remove(mode);
        }
        crowd.advance(fitting);
        let anybody = !crowd.holders.is_empty() || !crowd.queue.is_empty();
        self.settle();
        anybody
    }

    fn crowd(&self) -> Option<&Crowd> {
        match self {
            Self::Sole(_) => None,
            Self::Crowd(crowd) => Some(crowd),
        }
    }

    fn make_crowd(&mut self) -> &mut Crowd {
        if let Self::Sole(holder) = *self {
            let mut crowd = Box::<Crowd>::default();
            crowd.fitting.add(holder.mode);
            crowd.holders.insert(holder.number, (holder.mode, holder.slot));
            *self = Self::Crowd(crowd);
        }
        match self {
            Self::Crowd(crowd) => crowd,
            Self::Sole(_) => unreachable!("it was made a crowd just now"),
        }
    }

    /// A crowd of one holder needs its memory no more.
    fn settle(&mut self) {
        let sole = self.crowd().filter(|crowd| crowd.queue.is_empty() && crowd.holders.len() == 1);
        if let Some(holder) = sole.and_then(|crowd| claims(&crowd.holders).next()) {
            *self = Self::Sole(holder);
        }
    }
}

impl Crowd {
    /// Whether a newcomer at the tail fits: only if all waiters do.
    fn fits(&self, mode: Mode) -> bool {
        self.first_beyond().is_none() && self.fitting.admits(mode)
    }

    /// Moves the frontier past the waiters that fit.
    fn advance(&mut self, fitting: &mut Vec<Slot>) {
        while let Some(waiter) = self.first_beyond()
            && self.fitting.admits(waiter.mode)
        {
            self.fitting.add(waiter.mode);
            self.frontier = waiter.number;
            fitting.push(waiter.slot);
        }
    }

    /// The first waiter beyond the frontier.
    fn first_beyond(&self) -> Option<Claim> {
        let (&number, &(mode, slot)) = self.queue.range((Excluded(self.frontier), Unbounded)).next()?;
        Some(Claim { number, mode, slot })
    }
}

fn claims(line: &BTreeMap<Revision, (Mode, Slot)>) -> impl Iterator<Item = Claim> {
    line.iter().map(|(&number, &(mode, slot))| Claim { number, mode, slot })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_common_key_is_small() {
        assert!(size_of::<Line>() <= 24, "{}", size_of::<Line>());
    }
}
