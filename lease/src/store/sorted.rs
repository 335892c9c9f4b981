use std::cmp::Ordering;
use std::collections::VecDeque;
use std::mem;

/// A sorted list, packed closely: a tree of two levels.
///
/// ```text
///   firsts   [ value value value … ]              a copy of the first value of each leaf: a search starts here
///   leaves   [ leaf  leaf  leaf  … ]              24 bytes each
///                |
///   leaf     [ value value … up to 256 ]          room for at most 32 more, or 64 after removals
/// ```
///
/// Each search passes a function that compares a value to what is sought; all searches must use the same order. So a
/// value can be just the place of a larger one.
///
/// Why not a `BTreeMap`: its nodes have room for eleven values and are two thirds full, or half where values arrive in
/// order, while a leaf grows in small steps. A change moves at most one leaf and the directory, which has some
/// thousand leaves for a million values, so no change takes long.
#[derive(Debug)]
pub(crate) struct Sorted<T> {
    firsts: VecDeque<T>,
    /// None is empty.
    leaves: VecDeque<Vec<T>>,
    len: usize,
}

/// The position of a value, or where it would go. Valid until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    leaf: usize,
    place: usize,
}

/// The most values in a leaf. A full one is split in halves.
const LEAF: usize = 256;
/// A leaf grows by this many values. With 8 or 16 bytes each that is a size class of common allocators.
const STEP: usize = 32;

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self { firsts: VecDeque::new(), leaves: VecDeque::new(), len: 0 }
    }
}

impl<T: Clone> Sorted<T> {
    /// A list of these values, which must be in order.
    pub(crate) fn of(values: impl IntoIterator<Item = T>) -> Self {
        let mut values = values.into_iter();
        let mut sorted = Self::default();
        loop {
            let leaf: Vec<T> = values.by_ref().take(LEAF - STEP).collect();
            let Some(first) = leaf.first() else { return sorted };
            sorted.len += leaf.len();
            sorted.firsts.push_back(first.clone());
            sorted.leaves.push_back(leaf);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.firsts.front()
    }

    /// The position of the value that `order` calls equal, or `Err` with the position where it would go.
    pub(crate) fn search(&self, mut order: impl FnMut(&T) -> Ordering) -> Result<At, At> {
        let leaf = self.leaf_of(&mut order);
        let Some(values) = self.leaves.get(leaf) else { return Err(At { leaf, place: 0 }) };
        let at = |place| At { leaf, place };
        values.binary_search_by(order).map(at).map_err(at)
    }

    pub(crate) fn get(&self, at: At) -> &T {
        &self.leaves[at.leaf][at.place]
    }

    /// For changes that do not affect the order.
    pub(crate) fn get_mut(&mut self, at: At) -> &mut T {
        &mut self.leaves[at.leaf][at.place]
    }

    /// Inserts a value at the position that a search returned as `Err`.
    pub(crate) fn insert(&mut self, mut at: At, value: T) {
        self.len += 1;
        if self.leaves.is_empty() {
            self.leaves.push_back(Vec::new());
            self.firsts.push_back(value.clone());
        }
        if self.leaves[at.leaf].len() == LEAF {
            at = self.split(at, &value);
        }
        if at.place == 0 {
            self.firsts[at.leaf] = value.clone();
        }
        let leaf = &mut self.leaves[at.leaf];
        if leaf.len() == leaf.capacity() {
            leaf.reserve_exact(STEP);
        }
        leaf.insert(at.place, value);
    }

    pub(crate) fn remove(&mut self, at: At) -> T {
        self.len -= 1;
        let leaf = &mut self.leaves[at.leaf];
        let value = leaf.remove(at.place);
        let Some(first) = leaf.first() else {
            self.leaves.remove(at.leaf);
            self.firsts.remove(at.leaf);
            return value;
        };
        if at.place == 0 {
            self.firsts[at.leaf] = first.clone();
        }
        if leaf.capacity() >= leaf.len() + 2 * STEP {
            let capacity = leaf.len() + STEP;
            *leaf = moved(mem::take(leaf), capacity);
            self.join_with_next(at.leaf);
            self.join_with_next(at.leaf.saturating_sub(1));
        }
        value
    }

    /// The values from that position on.
    pub(crate) fn iter_from(&self, at: At) -> impl Iterator<Item = &T> {
        let mut leaves = self.leaves.range(at.leaf.min(self.leaves.len())..);
        let first = leaves.next().map(|leaf| &leaf[at.place..]).unwrap_or_default();
        first.iter().chain(leaves.flatten())
    }

    /// The leaf where the sought value is or would go: the last that starts with it or with less, or the first.
    fn leaf_of(&self, order: &mut impl FnMut(&T) -> Ordering) -> usize {
        self.firsts.partition_point(|first| order(first) != Ordering::Greater).saturating_sub(1)
    }

    /// Splits a full leaf to make room for `value`, and returns its new position. A value behind all others starts a leaf
    /// of its own, so leaves stay full where values arrive in order.
    fn split(&mut self, At { leaf, place }: At, value: &T) -> At {
        let kept = if place == LEAF { LEAF } else { LEAF / 2 };
        let upper = self.leaves[leaf].split_off(kept);
        if kept < LEAF {
            self.leaves[leaf] = moved(mem::take(&mut self.leaves[leaf]), kept);
        }
        self.firsts.insert(leaf + 1, upper.first().unwrap_or(value).clone());
        self.leaves.insert(leaf + 1, upper);
        if place > kept || kept == LEAF {
            At { leaf: leaf + 1, place: place - kept }
        } else {
            At { leaf, place }
        }
    }

    /// Joins a leaf with the next if both are small, so that removals leave no trail of small leaves.
    fn join_with_next(&mut self, leaf: usize) {
        let len = |leaf| self.leaves.get(leaf).map(Vec::len);
        if let (Some(len), Some(next_len)) = (len(leaf), len(leaf + 1))
            && len + next_len <= LEAF / 2
            && let Some(next) = self.leaves.remove(leaf + 1)
        {
            self.firsts.remove(leaf + 1);
            let first = mem::take(&mut self.leaves[leaf]);
            self.leaves[leaf] = moved(first.into_iter().chain(next), len + next_len);
        }
    }
}

/// Moves values to a new allocation. Shrinking in place saves nothing with allocators that keep a block which loses less
/// than half.
fn moved<T>(values: impl IntoIterator<Item = T>, capacity: usize) -> Vec<T> {
    let mut leaf = Vec::with_capacity(capacity);
    leaf.extend(values);
    leaf
}

impl<T> IntoIterator for Sorted<T> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::collections::vec_deque::IntoIter<Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.leaves.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn put(sorted: &mut Sorted<u32>, value: u32) -> bool {
        let found = sorted.search(|other| other.cmp(&value));
        found.map_err(|at| sorted.insert(at, value)).is_err()
    }

    fn take(sorted: &mut Sorted<u32>, value: u32) -> Option<u32> {
        let at = sorted.search(|other| other.cmp(&value)).ok()?;
        Some(sorted.remove(at))
    }

    fn from(sorted: &Sorted<u32>, value: u32) -> impl Iterator<Item = u32> {
        let at = sorted.search(|other| other.cmp(&value)).unwrap_or_else(|at| at);
        sorted.iter_from(at).copied()
    }

    fn assert_is_sound(sorted: &Sorted<u32>) {
        assert!(sorted.leaves.iter().all(|leaf| (1..=LEAF).contains(&leaf.len())));
        assert!(sorted.leaves.iter().all(|leaf| leaf.capacity() <= leaf.len() + 2 * STEP));
        assert!(sorted.leaves.iter().map(|leaf| &leaf[0]).eq(&sorted.firsts));
        assert_eq!(sorted.leaves.iter().map(Vec::len).sum::<usize>(), sorted.len());
    }

    /// Inserts or removes `len` values from `first` on, `step` apart.
    #[derive(Clone, Debug)]
    struct Run {
        puts: bool,
        first: u32,
        step: u32,
        len: u32,
    }

    fn runs() -> impl Strategy<Value = Vec<Run>> {
        let run = (any::<bool>(), 0..4_000_u32, 1..40_u32, 0..1_500_u32);
        prop::collection::vec(run.prop_map(|(puts, first, step, len)| Run { puts, first, step, len }), 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

        #[test]
        fn it_behaves_like_a_btree_set(runs in runs()) {
            let (mut sorted, mut set) = (Sorted::default(), BTreeSet::new());
            for Run { puts, first, step, len } in runs {
                for n in 0..len {
                    let value = (first + n * step) % 6_000;
                    if puts {
                        prop_assert_eq!(put(&mut sorted, value), set.insert(value));
                    } else {
                        prop_assert_eq!(take(&mut sorted, value), set.take(&value));
                    }
                }
                assert_is_sound(&sorted);
                prop_assert_eq!(sorted.first(), set.first());
                for start in [0, first, first + 1, 6_000] {
                    prop_assert!(from(&sorted, start).eq(set.range(start..).copied()));
                }
            }
            let again = Sorted::of(set.iter().copied());
            assert_is_sound(&again);
            prop_assert_eq!(again.len(), set.len());
            prop_assert!(again.into_iter().eq(set));
        }
    }

    #[test]
    fn leaves_are_nearly_full_and_few_values_keep_few_leaves() {
        const MANY: u32 = 100_000;
        let mut sorted = Sorted::default();
        // Each value once, far from the one before.
        for n in 0..MANY {
            put(&mut sorted, (n * 7_919) % MANY);
        }
        let room = |sorted: &Sorted<u32>| sorted.leaves.iter().map(Vec::capacity).sum::<usize>();
        assert!(room(&sorted) < MANY as usize * 113 / 100, "{}", room(&sorted));
        for n in (0..MANY).filter(|n| n % 100 != 0) {
            take(&mut sorted, (n * 7_919) % MANY);
        }
        assert_is_sound(&sorted);
        assert_eq!(sorted.len(), 1_000);
        assert!(sorted.leaves.len() <= 40, "{}", sorted.leaves.len());
    }
}
