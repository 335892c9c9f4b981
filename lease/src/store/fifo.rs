use std::collections::VecDeque;
use std::sync::Arc;

/// A queue whose clones are cheap however long it is.
///
/// Clones share its chunks. Only the last chunk is ever written to, and copied first if a clone shares it. A pop skips a
/// value, and drops a chunk once all its values were skipped.
#[derive(Clone, Debug)]
pub(crate) struct Fifo<T> {
    chunks: VecDeque<Arc<Vec<T>>>,
    /// How many values of the first chunk were popped.
    taken: usize,
    len: usize,
    /// The number of the value at the front. Values are numbered in the order of their pushes; the numbers wrap around.
    first: u32,
}

/// So small because each owner has a queue.
const CHUNK: usize = 128;

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), taken: 0, len: 0, first: 0 }
    }
}

impl<T: Copy> Fifo<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of the value.
    pub(crate) fn push_back(&mut self, value: T) -> u32 {
        if self.chunks.back().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push_back(Arc::default());
        }
        let last = self.chunks.back_mut().expect("a chunk with room was pushed");
        Arc::make_mut(last).push(value);
        self.len += 1;
        self.first.wrapping_add(self.len as u32 - 1)
    }

    pub(crate) fn front(&self) -> Option<T> {
        self.chunks.front()?.get(self.taken).copied()
    }

    /// The value with this number; `None` if it was popped.
    pub(crate) fn get(&self, number: u32) -> Option<T> {
        let index = self.taken + number.wrapping_sub(self.first) as usize;
        self.chunks.get(index / CHUNK)?.get(index % CHUNK).copied()
    }

    pub(crate) fn back(&self) -> Option<T> {
        if self.len == 0 { None } else { self.chunks.back()?.last().copied() }
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let value = self.front()?;
        self.taken += 1;
        self.len -= 1;
        self.first = self.first.wrapping_add(1);
        if self.taken == CHUNK {
            self.chunks.pop_front();
            self.taken = 0;
        }
        Some(value)
    }

    /// From front to back, each with its number.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, T)> {
        self.iter().enumerate().map(|(ahead, value)| (self.first.wrapping_add(ahead as u32), value))
    }

    /// From front to back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().copied()).skip(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(fifo: &Fifo<usize>) -> Vec<usize> {
        fifo.iter().collect()
    }

    #[test]
    fn values_come_out_in_order_across_chunks() {
        let mut fifo = Fifo::default();
        assert_eq!((fifo.front(), fifo.back(), fifo.pop_front()), (None, None, None));
        let (mut pushed, mut popped) = (0, 0);
        // Two in and one out, until it is some chunks long; then one in and two out, until it is empty.
        while fifo.len() < 3 * CHUNK + 7 {
            fifo.push_back(pushed);
            fifo.push_back(pushed + 1);
            assert_eq!(fifo.pop_front(), Some(popped));
            (pushed, popped) = (pushed + 2, popped + 1);
            assert_eq!(
                (fifo.front(), fifo.back(), fifo.len()),
                (Some(popped), Some(pushed - 1), pushed - popped)
            );
        }
        assert_eq!(all(&fifo), (popped..pushed).collect::<Vec<_>>());
        while popped < pushed {
            fifo.push_back(pushed);
            pushed += 1;
            for _ in 0..2 {
                assert_eq!(fifo.pop_front(), (popped < pushed).then_some(popped));
                popped += 1;
            }
            assert_eq!(fifo.len(), pushed.saturating_sub(popped));
        }
        assert_eq!((fifo.front(), fifo.back(), fifo.pop_front(), fifo.len()), (None, None, None, 0));
        assert!(fifo.chunks.len() <= 1, "popped values are dropped");
    }

    #[test]
    fn a_value_is_found_by_its_number_until_it_is_popped() {
        let mut fifo = Fifo { first: u32::MAX - 4 * CHUNK as u32, ..Fifo::default() };
        let mut numbers = std::collections::VecDeque::new();
        for n in 0..3 * CHUNK + 500 {
            numbers.push_back((fifo.push_back(n), n));
            if n % 3 == 0 {
                fifo.pop_front();
                let (gone, _) = numbers.pop_front().unwrap();
                assert_eq!(fifo.get(gone), None);
            }
        }
        assert!(numbers.iter().any(|&(number, _)| number == 0) && numbers.len() == fifo.len());
        assert!(numbers.iter().all(|&(number, n)| fifo.get(number) == Some(n)));
    }

    #[test]
    fn a_clone_does_not_change() {
        let mut fifo = Fifo::default();
        let mut clones = Vec::new();
        for n in 0..3 * CHUNK {
            fifo.push_back(n);
            if n % 1_000 == 0 {
                clones.push((fifo.clone(), all(&fifo)));
            }
        }
        for n in 0..6 * CHUNK {
            fifo.pop_front();
            if n % 3 == 0 {
                fifo.push_back(n);
            }
            if n % 1_000 == 0 {
                clones.push((fifo.clone(), all(&fifo)));
            }
        }
        assert!(fifo.len() <= 1);
        for (clone, before) in clones {
            assert_eq!(all(&clone), before);
        }
    }

    #[test]
    fn a_push_copies_only_the_last_chunk_and_a_pop_none() {
        let mut fifo = Fifo::default();
        (0..2 * CHUNK + 9).for_each(|n| _ = fifo.push_back(n));
        let clone = fifo.clone();
        fifo.pop_front();
        fifo.push_back(0);
        let shared = |index: usize| Arc::ptr_eq(&clone.chunks[index], &fifo.chunks[index]);
        assert_eq!([0, 1, 2].map(shared), [true, true, false]);
    }
}
