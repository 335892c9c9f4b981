//! The cost of the scripts of one request.

use std::fmt::{self, Display, Formatter};
use std::mem;

/// The fuel of a request.
const FUEL: u64 = 200_000;
/// The memory of a request.
const MAX_BYTES: u64 = 1 << 20;
/// The fuel of a turn: half a millisecond at most, unless its last step is long, and far more than the scripts of lock libraries use.
const FUEL_OF_A_TURN: u64 = 20_000;
/// About as much as a request costs without a script.
const FUEL_OF_A_REQUEST: u64 = 2_000;

/// What the scripts of one request may still cost, over all of their runs together. Nothing is given back.
#[derive(Debug)]
pub struct Budget {
    fuel: u64,
    /// With less fuel than this, the turn is over.
    until: u64,
    bytes: u64,
}

/// A script has used up what it may cost. It cannot catch that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// Of the fuel.
    Fuel,
    /// Of the memory.
    Memory,
}

impl Budget {
    /// The budget of a request: about 10 ms on a slow processor, and 1 MiB.
    pub fn of_request() -> Self {
        Self::new(FUEL, MAX_BYTES)
    }

    /// Whether the scripts must wait for another turn.
    pub(super) fn is_turn_over(&self) -> bool {
        self.fuel < self.until
    }

    /// Begins another turn.
    pub(super) fn begin_turn(&mut self) {
        self.until = self.until.saturating_sub(FUEL_OF_A_TURN);
    }

    /// The most bytes that the scripts may have taken.
    pub fn taken_bytes(&self) -> usize {
        MAX_BYTES.saturating_sub(self.bytes) as usize
    }

    /// Whether nothing is left of the fuel, or of the memory.
    pub fn is_used_up(&self) -> bool {
        self.fuel == 0 || self.bytes == 0
    }

    /// How many requests without a script cost as much as what was spent.
    pub fn spent_requests(&self) -> usize {
        ((FUEL - self.fuel) / FUEL_OF_A_REQUEST) as usize
    }

    pub(crate) fn new(fuel: u64, bytes: u64) -> Self {
        Self { fuel, until: fuel.saturating_sub(FUEL_OF_A_TURN), bytes }
    }

    /// Pays for work before it is done. An addition, a read from a table, or a copy of a value or of 32 bytes costs 1.
    pub fn spend(&mut self, fuel: u64) -> Result<(), Exhausted> {
        let rest = self.fuel.checked_sub(fuel);
        self.fuel = rest.unwrap_or(0);
        rest.map(|_| ()).ok_or(Exhausted::Fuel)
    }

    /// Pays for a pass over this many bytes.
    pub(crate) fn pass(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.spend(1 + bytes as u64 / 32)
    }

    /// Pays for memory before it is allocated.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let rest = self.bytes.checked_sub(bytes as u64);
        self.bytes = rest.unwrap_or(0);
        rest.map(|_| ()).ok_or(Exhausted::Memory)
    }

    /// Makes room for `more` items, and pays for the memory if there is not enough.
    pub(crate) fn reserve<T>(&mut self, items: &mut Vec<T>, more: usize) -> Result<(), Exhausted> {
        if items.capacity() - items.len() >= more {
            return Ok(());
        }
        let needed = items.len().saturating_add(more);
        let capacity = needed.max(items.capacity().saturating_mul(2)).max(4);
        self.take(capacity.saturating_mul(mem::size_of::<T>()))?;
        self.spend(1 + (items.len() * mem::size_of::<T>()) as u64 / 32)?;
        items.reserve_exact(capacity - items.len());
        Ok(())
    }

    /// Appends an item, and pays for the memory if there is no room.
    pub(crate) fn push<T>(&mut self, items: &mut Vec<T>, item: T) -> Result<(), Exhausted> {
        self.reserve(items, 1)?;
        items.push(item);
        Ok(())
    }

    /// What is left: fuel and bytes.
    #[cfg(test)]
    pub(crate) fn rest(&self) -> (u64, u64) {
        (self.fuel, self.bytes)
    }
}

impl Display for Exhausted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fuel => "the scripts of this request take too many steps",
            Self::Memory => "the scripts of this request take too much memory",
        })
    }
}
