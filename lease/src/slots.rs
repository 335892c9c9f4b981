/// Where a value lies in [`Slots`]. Valid until the value is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// Values at places that do not move, found by a number of four bytes: three maps point at every lease, and a lease
/// id in each of them would cost four times as much.
///
/// They lie in chunks: growing never copies what is there. Which slot a value gets depends on the history of this
/// process and never shows outside.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<Slot>,
}

const CHUNK: usize = 1_024;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Puts `value` in and tells where.
    pub(crate) fn insert(&mut self, value: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            *self.place(slot) = Some(value);
            return slot;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("a chunk with room was pushed where there was none");
        let slot =
            Slot(u32::try_from(before + chunk.len()).expect("four billion leases do not fit into memory"));
        chunk.push(Some(value));
        slot
    }

    /// The value at `slot`.
    pub(crate) fn get(&self, slot: Slot) -> &T {
        let index = slot.0 as usize;
        self.chunks[index / CHUNK][index % CHUNK].as_ref().expect("a slot is kept only while its value is in")
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
        &mut self.chunks[index / CHUNK][index % CHUNK]
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
        assert_eq!(slots.chunks.len(), 3);
    }
}
