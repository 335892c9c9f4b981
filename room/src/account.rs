use std::collections::{BTreeSet, HashMap};

use crate::Owner;

/// How much has been taken: by all, and by each owner.
#[derive(Debug)]
pub struct Account<O> {
    all: usize,
    /// No owner has nothing.
    by: HashMap<O, usize>,
    /// The same, the greediest last, once [`Account::greediest`] could not tell without.
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
        // In a map that was large, to look for the one key takes long each time: the order is made once.
        if self.by.len() == 1 && self.by.capacity() < 64 {
            return self.by.keys().next();
        }
        let ordered = || self.by.iter().map(|(owner, own)| (*own, owner.clone())).collect();
        self.order.get_or_insert_with(ordered).last().map(|(_, owner)| owner)
    }

    /// How many owners have taken anything.
    pub fn owners(&self) -> usize {
        self.by.len()
    }

    /// `owner` takes more.
    pub fn add(&mut self, owner: &O, amount: usize) {
        let after = match self.by.get_mut(owner) {
            Some(own) => {
                *own += amount;
                *own
            }
            None if amount == 0 => return,
            None => {
                self.by.insert(owner.clone(), amount);
                amount
            }
        };
        self.all += amount;
        self.reorder(owner, after - amount, after);
    }

    /// `owner` gives back what it took.
    pub fn remove(&mut self, owner: &O, amount: usize) {
        let Some(own) = self.by.get_mut(owner) else { return };
        *own -= amount;
        let after = *own;
        if after == 0 {
            self.by.remove(owner);
        }
        self.all -= amount;
        self.reorder(owner, after + amount, after);
    }

    fn reorder(&mut self, owner: &O, before: usize, after: usize) {
        let Some(order) = &mut self.order else { return };
        let mut place = (before, owner.clone());
        order.remove(&place);
        place.0 = after;
        if after > 0 {
            order.insert(place);
        }
    }
}
