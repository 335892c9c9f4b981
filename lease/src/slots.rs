use std::sync::Arc;

/// Where a value lies in [`Slots`]. Valid until the value is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// Values at places that do not move, found by a number of four bytes: three maps point at every lease, and a lease
/// id in each of them would cost four times as much.
///
/// They lie in chunks: growing never copies what is there, and [`Self::freeze`] copies only the list of the chunks.
/// The first change of a chunk that a frozen view has too makes a copy of that chunk; so chunks are small, and a
/// clone of a value had better be cheap. Which slot a value gets depends on the history of this process and never
/// shows outside.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    chunks: Chunks<T>,
    free: Vec<Slot>,
}

/// The values of [`Slots`] as they were at one instant.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<T>(Vec<Arc<[Option<T>; CHUNK]>>);

const CHUNK: usize = 64;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { chunks: Chunks(Vec::new()), free: Vec::new() }
    }
}

impl<T: Clone> Slots<T> {
    /// All values of this instant, whatever is changed later.
    pub(crate) fn freeze(&self) -> Chunks<T> {
        self.chunks.clone()
    }

    /// Puts `value` in and tells where.
    pub(crate) fn insert(&mut self, value: T) -> Slot {
        if self.free.is_empty() {
            self.grow();
        }
        let slot = self.free.pop().expect("a table that has no free slot was given a chunk of them");
        *self.place(slot) = Some(value);
        slot
    }

    /// The value at `slot`.
    pub(crate) fn get(&self, slot: Slot) -> &T {
        self.chunks.get(slot)
    }

    /// The value at `slot`, to change it.
    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut T {
        self.place(slot).as_mut().expect("a slot is kept only while its value is in")
    }

    /// Takes the value at `slot` out; the slot is used again.
    pub(crate) fn take(&mut self, slot: Slot) -> T {
        let value = self.place(slot).take().expect("a slot is kept only while its value is in");
        self.free.push(slot);
        value
    }

    fn place(&mut self, slot: Slot) -> &mut Option<T> {
        let index = slot.0 as usize;
        &mut Arc::make_mut(&mut self.chunks.0[index / CHUNK])[index % CHUNK]
    }

    fn grow(&mut self) {
        let first = self.chunks.0.len() * CHUNK;
        self.chunks.0.push(Arc::new([const { None }; CHUNK]));
        self.free.extend((first..first + CHUNK).rev().map(Slot::at));
    }
}

impl<T> Chunks<T> {
    /// The value at `slot`.
    pub(crate) fn get(&self, slot: Slot) -> &T {
        let index = slot.0 as usize;
        self.0[index / CHUNK][index % CHUNK].as_ref().expect("a slot is kept only while its value is in")
    }

    /// All values and where they lie, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        let places = self.0.iter().flat_map(|chunk| chunk.iter()).enumerate();
        places.filter_map(|(index, value)| Some((Slot::at(index), value.as_ref()?)))
    }
}

impl Slot {
    fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("four billion leases do not fit into memory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_and_growing_moves_nothing() {
        let mut slots = Slots::default();
        let all: Vec<Slot> = (0..3 * CHUNK).map(|n| slots.insert(n)).collect();
        assert_eq!(slots.take(all[5]), 5);
        assert_eq!(slots.insert(7_777), all[5]);
        *slots.get_mut(all[CHUNK]) += 1;
        assert_eq!((*slots.get(all[5]), *slots.get(all[CHUNK])), (7_777, CHUNK + 1));
        assert_eq!(slots.chunks.0.len(), 3);
    }

    #[test]
    fn a_frozen_view_stays_what_it_was_and_a_change_copies_one_chunk() {
        let mut slots = Slots::default();
        let all: Vec<Slot> = (0..3 * CHUNK).map(|n| slots.insert(n)).collect();
        slots.take(all[CHUNK]);
        let frozen = slots.freeze();
        let values = |chunks: &Chunks<usize>| chunks.iter().map(|(_, &value)| value).collect::<Vec<_>>();
        let before = values(&frozen);
        *slots.get_mut(all[CHUNK + 1]) = 7;
        slots.take(all[CHUNK + 2]);
        slots.insert(8);
        slots.insert(9);
        assert_eq!(values(&frozen), before);
        let shared = |index: usize| Arc::ptr_eq(&frozen.0[index], &slots.chunks.0[index]);
        assert_eq!([0, 1, 2].map(shared), [true, false, true]);
    }
}
