use std::array;
use std::sync::Arc;

/// The place of a value in [`Slots`]. Valid until the value is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// A slab: values stay at their slot, a number of four bytes. Three indexes point at every lease, and a lease id in each
/// would cost four times as much.
///
/// A frozen view shares the chunks, and a write copies the chunk that it goes to while a view has it too:
///
/// ```text
///   root      [ branch branch branch … ]                copied by freeze(): one pointer per 360 values
///                 |      '----------------.
///   branch    [ leaf leaf … 30 in all ]  [ … ]          copied by the first write below it: 30 pointers
///                 |
///   leaf      [ value free value … 12 in all ]          copied by the first write to it: 12 values
/// ```
///
/// So a view is cheap however many values there are. The first write to a chunk under a view costs about four
/// microseconds, most of them for reference counts in distant memory. Which slot a value gets depends on the history of
/// this process and never shows outside.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    chunks: Chunks<T>,
    free: Vec<Slot>,
}

/// The values of [`Slots`], as they were at one instant.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<T>(Vec<Arc<Branch<T>>>);

type Branch<T> = [Arc<Leaf<T>>; BRANCH];
type Leaf<T> = [Option<T>; LEAF];

// With the counts of an `Arc`, a branch has 256 bytes and a leaf of leases 976: both fit size classes of allocators.
const BRANCH: usize = 30;
const LEAF: usize = 12;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { chunks: Chunks(Vec::new()), free: Vec::new() }
    }
}

impl<T: Clone> Slots<T> {
    /// The values of this instant; later changes do not show in them.
    pub(crate) fn freeze(&self) -> Chunks<T> {
        self.chunks.clone()
    }

    pub(crate) fn insert(&mut self, value: T) -> Slot {
        if self.free.is_empty() {
            self.grow();
        }
        let slot = self.free.pop().expect("grow() adds free slots");
        *self.place(slot) = Some(value);
        slot
    }

    pub(crate) fn get(&self, slot: Slot) -> &T {
        self.chunks.get(slot)
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut T {
        self.place(slot).as_mut().expect("a slot is used only while its value is in")
    }

    /// All values, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.chunks.iter()
    }

    /// Takes the value out. The slot will be reused.
    pub(crate) fn take(&mut self, slot: Slot) -> T {
        let value = self.place(slot).take().expect("a slot is used only while its value is in");
        self.free.push(slot);
        value
    }

    fn place(&mut self, slot: Slot) -> &mut Option<T> {
        let (branch, leaf, place) = slot.path();
        let branch = Arc::make_mut(&mut self.chunks.0[branch]);
        &mut Arc::make_mut(&mut branch[leaf])[place]
    }

    /// Adds a branch, whose leaves are one and the same until they are written to.
    fn grow(&mut self) {
        let first = self.chunks.0.len() * BRANCH * LEAF;
        let leaf = Arc::new([const { None }; LEAF]);
        self.chunks.0.push(Arc::new(array::from_fn(|_| Arc::clone(&leaf))));
        self.free.extend((first..first + BRANCH * LEAF).rev().map(Slot::at));
    }
}

impl<T> Chunks<T> {
    pub(crate) fn get(&self, slot: Slot) -> &T {
        let (branch, leaf, place) = slot.path();
        self.0[branch][leaf][place].as_ref().expect("a slot is used only while its value is in")
    }

    /// All values, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        let leaves = self.0.iter().flat_map(|branch| branch.iter());
        let places = leaves.flat_map(|leaf| leaf.iter()).enumerate();
        places.filter_map(|(index, place)| Some((Slot::at(index), place.as_ref()?)))
    }
}

impl Slot {
    fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("four billion leases do not fit into memory"))
    }

    /// Its branch, the leaf in there, and the place in there.
    fn path(self) -> (usize, usize, usize) {
        let index = self.0 as usize;
        (index / LEAF / BRANCH, index / LEAF % BRANCH, index % LEAF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 2 * BRANCH * LEAF;

    fn numbers() -> (Slots<usize>, Vec<Slot>) {
        let mut slots = Slots::default();
        let all = (0..MANY + 1).map(|n| slots.insert(n)).collect();
        (slots, all)
    }

    #[test]
    fn slots_are_reused_and_growing_moves_nothing() {
        let (mut slots, all) = numbers();
        assert_eq!(slots.take(all[5]), 5);
        assert_eq!(slots.insert(7_777), all[5]);
        *slots.get_mut(all[MANY - 1]) += 1;
        for (n, &slot) in all.iter().enumerate() {
            let value = if n == 5 { 7_777 } else { n + usize::from(n == MANY - 1) };
            assert_eq!(*slots.get(slot), value);
        }
        assert_eq!(slots.chunks.0.len(), 3);
    }

    #[test]
    fn a_frozen_view_does_not_change() {
        let (mut slots, all) = numbers();
        slots.take(all[LEAF]);
        let frozen = slots.freeze();
        let before: Vec<(Slot, usize)> = frozen.iter().map(|(slot, &value)| (slot, value)).collect();
        assert_eq!(before.len(), MANY);
        *slots.get_mut(all[LEAF + 1]) = 7;
        slots.take(all[LEAF + 2]);
        (0..MANY).for_each(|n| _ = slots.insert(n));
        assert!(frozen.iter().map(|(slot, &value)| (slot, value)).eq(before));
    }

    #[test]
    fn a_write_copies_one_leaf_and_one_branch_and_only_under_a_view() {
        let (mut slots, all) = numbers();
        let frozen = slots.freeze();
        *slots.get_mut(all[LEAF]) = 7;
        let leaves = |chunks: &Chunks<usize>| {
            chunks.0.iter().flat_map(|branch| branch.iter().map(Arc::as_ptr)).collect::<Vec<_>>()
        };
        let (before, after) = (leaves(&frozen), leaves(&slots.chunks));
        let copied: Vec<usize> = (0..before.len()).filter(|&n| before[n] != after[n]).collect();
        assert_eq!(copied, [1]);
        assert!(Arc::ptr_eq(&frozen.0[1], &slots.chunks.0[1]));
        *slots.get_mut(all[LEAF + 1]) = 8;
        assert_eq!(leaves(&slots.chunks), after);
        drop(frozen);
        *slots.get_mut(all[0]) = 9;
        assert_eq!(leaves(&slots.chunks), after);
    }
}
