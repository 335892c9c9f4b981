use std::ops::RangeInclusive;

use fastrand::Rng;
use ringfence_wire::{Key, LeaseId};

/// What one process draws its wishes from. The seed of the run and the number of the process decide all of it: nothing that
/// the cluster answers does.
#[derive(Debug)]
pub(super) struct Draws {
    rng: Rng,
    process: u32,
    writes: u64,
    keys: Vec<Key>,
}

impl Draws {
    /// Of this process, which asks for these keys.
    pub(super) fn new(seed: u64, process: u32, keys: Vec<Key>) -> Self {
        // Neighbouring seeds give generators that have nothing in common.
        let mut seeds = Rng::with_seed(seed);
        let own = (0..=process).map(|_| seeds.u64(..)).last().unwrap_or(seed);
        Self { rng: Rng::with_seed(own), process, writes: 0, keys }
    }

    /// Whether something happens that does so in so many of a hundred cases.
    pub(super) fn percent(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    /// A number in a range.
    pub(super) fn within(&mut self, range: RangeInclusive<u32>) -> u32 {
        self.rng.u32(range)
    }

    /// One of these.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())]
    }

    /// A new lease.
    pub(super) fn lease(&mut self) -> LeaseId {
        LeaseId::from_u128(self.rng.u128(1..)).expect("it is not 0")
    }

    /// One of the keys; the first ones more often.
    pub(super) fn key(&mut self) -> Key {
        let place = self.rng.usize(..self.keys.len()).min(self.rng.usize(..self.keys.len()));
        self.keys[place].clone()
    }

    /// So many different keys, or all.
    pub(super) fn keys(&mut self, count: usize) -> Vec<Key> {
        let mut keys = self.keys.clone();
        self.rng.shuffle(&mut keys);
        keys.truncate(count);
        keys
    }

    /// The id of a write, unique in the run.
    pub(super) fn write(&mut self) -> u64 {
        self.writes += 1;
        u64::from(self.process + 1) * 1_000_000 + self.writes
    }
}
