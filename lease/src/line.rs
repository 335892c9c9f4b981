use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use ringfence_mutant::{Mutant, is};
use ringfence_wire::{Mode, Revision, Token};

use crate::slots::Slot;
use crate::steps::step;
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
///
/// One end may let very many in. The frontier then moves a limited way in each entry, and *lags* in between: the first
/// waiter beyond it fits already. Nobody overtakes those: who comes while anybody waits beyond the frontier does not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line<'a> {
    /// One holder and no waiter, as most keys have. No line is kept for it: all that it says stands in the lease.
    Sole(Claim),
    /// Any other.
    Crowd(&'a Crowd),
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
    /// Each waiter up to this place fits. Of the others none does, unless the line lags.
    frontier: Revision,
    /// The place of the first waiter beyond the frontier, where that fits: the line lags.
    lag: Option<Revision>,
}

impl<'a> Line<'a> {
    /// Whether a newcomer fits.
    pub(crate) fn fits(self, mode: Mode) -> bool {
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
    pub(crate) fn oldest_token(self) -> Option<Token> {
        self.holders().next().map(|holder| holder.number.into())
    }

    /// The holder with the largest token.
    pub(crate) fn newest(self) -> Option<Claim> {
        match self {
            Self::Sole(holder) => Some(holder),
            Self::Crowd(crowd) => {
                let (&number, &(mode, slot)) = crowd.holders.last_key_value()?;
                Some(Claim { number, mode, slot })
            }
        }
    }

    /// The holder with this token.
    pub(crate) fn holder(self, token: Token) -> Option<Slot> {
        let number = Revision(token.0);
        match self {
            Self::Sole(holder) => (holder.number == number).then_some(holder.slot),
            Self::Crowd(crowd) => crowd.holders.get(&number).map(|&(_, slot)| slot),
        }
    }

    /// The holders by token.
    pub(crate) fn holders(self) -> impl Iterator<Item = Claim> + use<'a> {
        let (sole, crowd) = match self {
            Self::Sole(holder) => (Some(holder), None),
            Self::Crowd(crowd) => (None, Some(claims(&crowd.holders))),
        };
        sole.into_iter().chain(crowd.into_iter().flatten())
    }

    /// How many hold the key.
    pub(crate) fn holders_len(self) -> usize {
        self.crowd().map_or(1, |crowd| crowd.holders.len())
    }

    /// The queue, first come first.
    pub(crate) fn waiters(self) -> impl Iterator<Item = Claim> + use<'a> {
        self.crowd().into_iter().flat_map(|crowd| claims(&crowd.queue))
    }

    /// How many wait.
    pub(crate) fn queue_len(self) -> usize {
        self.crowd().map_or(0, |crowd| crowd.queue.len())
    }

    /// How many waiters stand before `place`, counted up to `most`: it walks over them.
    pub(crate) fn ahead_of(self, place: Revision, most: usize) -> usize {
        let ahead = |crowd: &Crowd| crowd.queue.range(..place).take(most).inspect(|_| step()).count();
        self.crowd().map_or(0, ahead)
    }

    fn crowd(self) -> Option<&'a Crowd> {
        match self {
            Self::Sole(_) => None,
            Self::Crowd(crowd) => Some(crowd),
        }
    }
}

impl Crowd {
    /// A newcomer that fits holds the key.
    pub(crate) fn hold(&mut self, claim: Claim) {
        self.fitting.add(claim.mode);
        self.holders.insert(claim.number, (claim.mode, claim.slot));
    }

    /// A newcomer joins the tail; tells whether it fits. (While a table is restored its place may be before the lag.)
    pub(crate) fn queue(&mut self, claim: Claim) -> bool {
        let fits = self.lag.is_none_or(|lag| claim.number < lag) && self.fits(claim.mode);
        if fits {
            self.fitting.add(claim.mode);
            self.frontier = claim.number;
        }
        self.queue.insert(claim.number, (claim.mode, claim.slot));
        fits
    }

    /// The waiter at `place`, which fits, now holds the key with `token`.
    pub(crate) fn promote(&mut self, place: Revision, token: Revision) {
        if let Some(waiter) = self.queue.remove(&place) {
            self.holders.insert(token, waiter);
        }
    }

    /// Takes the holder with this token or the waiter at this place out.
    pub(crate) fn remove(&mut self, number: Revision) {
        if let Some((mode, _)) = self.holders.remove(&number) {
            self.fitting.remove(mode);
        } else if let Some((mode, _)) = self.queue.remove(&number)
            && number <= self.frontier
        {
            self.fitting.remove(mode);
        }
    }

    /// Whether nobody is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// The one holder of a line that needs no crowd any more.
    pub(crate) fn sole(&self) -> Option<Slot> {
        let is_sole = self.queue.is_empty() && self.holders.len() == 1;
        claims(&self.holders).next().filter(|_| is_sole).map(|holder| holder.slot)
    }

    /// Whether a newcomer at the tail fits: only if all waiters do.
    fn fits(&self, mode: Mode) -> bool {
        self.first_beyond().is_none() && self.fitting.admits(mode)
    }

    /// Moves the frontier past the next waiter, if that fits.
    pub(crate) fn advance(&mut self) -> Option<Slot> {
        let waiter = self.next_fitting()?;
        self.fitting.add(waiter.mode);
        self.frontier = waiter.number;
        Some(waiter.slot)
    }

    /// Whether and where the line lags: as it was noted, and as it is now.
    pub(crate) fn lag(&self) -> (Option<Revision>, Option<Revision>) {
        (self.lag, self.next_fitting().map(|waiter| waiter.number))
    }

    pub(crate) fn note_lag(&mut self, lag: Option<Revision>) {
        self.lag = lag;
    }

    fn next_fitting(&self) -> Option<Claim> {
        self.first_beyond().filter(|waiter| self.fitting.admits(waiter.mode))
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
