//! Tables: a sequence from 1, and other keys in the order of their insertion.

use std::collections::HashMap;
use std::mem;

use super::budget::{Budget, Exhausted};
use super::value::{Key, Value};

/// The memory of an entry of [`Table::places`], with the free space that a hash table keeps.
const PLACE: usize = 2 * (mem::size_of::<(Key, u32)>() + 1);

/// A table. The last item of the sequence is not nil, and no entry has the position after it.
#[derive(Debug, Default)]
pub(super) struct Table {
    sequence: Vec<Value>,
    /// A removed entry stays, with the value nil: a loop over the table may be at it.
    entries: Vec<(Key, Value)>,
    places: HashMap<Key, u32>,
    /// How many items of the sequence are nil.
    holes: usize,
    /// How many entries that are not nil have a position, behind the sequence.
    followers: usize,
}

impl Table {
    /// A sequence of these values.
    pub(super) fn of(
        values: impl ExactSizeIterator<Item = Value>,
        budget: &mut Budget,
    ) -> Result<Self, Exhausted> {
        let mut table = Self::default();
        table.fill(values, budget)?;
        Ok(table)
    }

    /// Sets the first items of the sequence. Some may be nil.
    pub(super) fn fill(
        &mut self,
        values: impl ExactSizeIterator<Item = Value>,
        budget: &mut Budget,
    ) -> Result<(), Exhausted> {
        budget.spend((values.len() + self.entries.len()) as u64 / 4)?;
        if self.sequence.is_empty() && self.entries.iter().all(|(key, _)| key.value().as_position().is_none())
        {
            budget.reserve(&mut self.sequence, values.len())?;
            self.sequence.extend(values);
            self.holes = self.sequence.iter().filter(|item| item.is_nil()).count();
            self.trim();
            return Ok(());
        }
        for (index, value) in values.enumerate() {
            budget.spend(1)?;
            self.set(Key::position(index + 1), value, budget)?;
        }
        Ok(())
    }

    /// The number of items, if they are a sequence without holes. Otherwise, the length in Redis depends on how the table was built.
    pub(super) fn len(&self) -> Option<usize> {
        (self.holes == 0 && self.followers == 0).then_some(self.sequence.len())
    }

    pub(super) fn get(&self, key: &Value) -> Value {
        if let Some(item) = key.as_position().and_then(|position| self.sequence.get(position - 1)) {
            return item.clone();
        }
        if self.entries.is_empty() {
            return Value::Nil;
        }
        let place = Key::new(key.clone()).ok().and_then(|key| self.places.get(&key));
        place.map_or(Value::Nil, |place| self.entries[*place as usize].1.clone())
    }

    pub(super) fn set(&mut self, key: Key, value: Value, budget: &mut Budget) -> Result<(), Exhausted> {
        let (is_live, position) = (!value.is_nil(), key.value().as_position());
        if let Some(position) = position {
            if let Some(item) = self.sequence.get_mut(position - 1) {
                self.holes = self.holes + usize::from(!is_live) - usize::from(item.is_nil());
                *item = value;
                self.trim();
                return Ok(());
            }
            if position == self.sequence.len() + 1 && is_live {
                budget.push(&mut self.sequence, value)?;
                return self.move_followers(budget);
            }
        }
        if let Some(place) = self.places.get(&key) {
            let old = mem::replace(&mut self.entries[*place as usize].1, value);
            if position.is_some() {
                self.followers = self.followers + usize::from(is_live) - usize::from(!old.is_nil());
            }
        } else if is_live {
            if self.places.len() == self.places.capacity() {
                budget.take((2 * self.places.len() + 4) * PLACE)?;
                budget.spend(1 + self.places.len() as u64)?;
            }
            budget.push(&mut self.entries, (key.clone(), value))?;
            self.places.insert(key, (self.entries.len() - 1) as u32);
            self.followers += usize::from(position.is_some());
        }
        Ok(())
    }

    /// Moves the items from this position on up by one, and sets it. The table has a length, and the position is at most one more.
    pub(super) fn insert(
        &mut self,
        position: usize,
        value: Value,
        budget: &mut Budget,
    ) -> Result<(), Exhausted> {
        budget.spend(1 + (self.sequence.len() + 1 - position) as u64 / 8)?;
        budget.reserve(&mut self.sequence, 1)?;
        self.holes += usize::from(value.is_nil());
        self.sequence.insert(position - 1, value);
        self.trim();
        self.move_followers(budget)
    }

    /// Removes an item, and moves those after it down by one. The table has a length.
    pub(super) fn remove(&mut self, position: usize, budget: &mut Budget) -> Result<Value, Exhausted> {
        budget.spend(1 + (self.sequence.len() - position) as u64 / 8)?;
        Ok(self.sequence.remove(position - 1))
    }

    /// The key that follows `key`, with its value. The first key follows nil. Fails if `key` is not in the table.
    pub(super) fn next(&self, key: &Value, budget: &mut Budget) -> Result<Option<(Value, Value)>, NextError> {
        let mut at = match (key, key.as_position()) {
            (Value::Nil, _) => 0,
            (_, Some(position)) if position <= self.sequence.len() => position,
            (key, position) => match Key::new(key.clone()).ok().and_then(|key| self.places.get(&key)) {
                Some(place) => self.sequence.len() + *place as usize + 1,
                // The sequence has become shorter.
                None if position.is_some() => self.sequence.len(),
                None => return Err(NextError::NoKey),
            },
        };
        loop {
            let (key, value) = match self.sequence.get(at) {
                Some(item) => (Value::from(at + 1), item),
                None => match self.entries.get(at - self.sequence.len()) {
                    Some((key, value)) => (key.value().clone(), value),
                    None => return Ok(None),
                },
            };
            if !value.is_nil() {
                return Ok(Some((key, value.clone())));
            }
            budget.spend(1).map_err(NextError::Exhausted)?;
            at += 1;
        }
    }

    /// Moves the entries that continue the sequence to its end.
    fn move_followers(&mut self, budget: &mut Budget) -> Result<(), Exhausted> {
        while !self.entries.is_empty() {
            budget.spend(1)?;
            let Some(place) = self.places.remove(&Key::position(self.sequence.len() + 1)) else { break };
            match mem::replace(&mut self.entries[place as usize].1, Value::Nil) {
                Value::Nil => break,
                value => budget.push(&mut self.sequence, value)?,
            }
            self.followers -= 1;
        }
        Ok(())
    }

    fn trim(&mut self) {
        while self.sequence.last().is_some_and(Value::is_nil) {
            self.sequence.pop();
            self.holes -= 1;
        }
    }
}

/// Why there is no next key.
#[derive(Debug)]
pub(super) enum NextError {
    NoKey,
    Exhausted(Exhausted),
}
