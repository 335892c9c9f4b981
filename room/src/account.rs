use std::collections::{BTreeSet, HashMap};

use crate::Owner;

/// How much has been taken: by all, and by each owner.
#[derive(Debug)]
pub struct Account<O> {
    all: usize,
    /// No owner has nothing.
    by: HashMap<O, usize>,
    /// The same, the greediest last, since that was asked for the first time.
    order: Option<BTreeSet<(usize, O)>>,
}

impl<O> Default for Account<O> {
    fn default() -> Self {
        Self { all: 0, by: HashMap::new(), order: None }
    }
}

impl<O: Owner> Account<O> {
    /// What all have taken.
    pub fn all(&self) -> usize {
        self.all
    }

    /// What `owner` has taken.
    pub fn of(&self, owner: &O) -> usize {
        self.by.get(owner).copied().unwrap_or(0)
    }

    /// Who has taken most.
    pub fn greediest(&mut self) -> Option<&O> {
        let ordered = || self.by.iter().map(|(owner, own)| (*own, owner.clone())).collect();
        self.order.get_or_insert_with(ordered).last().map(|(_, owner)| owner)
    }

    /// How many owners have taken anything.
    pub fn owners(&self) -> usize {
        self.by.len()
    }

    /// `owner` takes more.
    pub fn add(&mut self, owner: &O, amount: usize) {
        let before = self.of(owner);
        self.set(owner, before, before + amount);
    }

    /// `owner` gives back what it took.
    pub fn remove(&mut self, owner: &O, amount: usize) {
        let before = self.of(owner);
        self.set(owner, before, before - amount);
    }

    fn set(&mut self, owner: &O, before: usize, after: usize) {
        self.all = self.all - before + after;
        match after {
            0 => self.by.remove(owner),
            _ => self.by.insert(owner.clone(), after),
        };
        if let Some(order) = &mut self.order {
            let mut place = (before, owner.clone());
            order.remove(&place);
            place.0 = after;
            if after > 0 {
                order.insert(place);
            }
        }
    }
}
