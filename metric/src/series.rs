use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// In how many lists the series of a metric are. A stranger may cause some hundred of them, and each of a list is passed on the way to the
/// next.
const LISTS: usize = 64;

/// The series of one metric by the values of its labels, each looked up once: to look one up in the recorder costs more than to count.
///
/// What was looked up before the recorder was there counts nothing, so it is kept apart.
pub(crate) struct Series<M> {
    early: [List<M>; LISTS],
    lists: [List<M>; LISTS],
    has_begun: AtomicBool,
}

struct List<M>(OnceLock<Box<Link<M>>>);

struct Link<M> {
    values: Box<[Box<str>]>,
    series: M,
    next: List<M>,
}

impl<M> Series<M> {
    pub(crate) const fn new() -> Self {
        Self {
            early: [const { List(OnceLock::new()) }; LISTS],
            lists: [const { List(OnceLock::new()) }; LISTS],
            has_begun: AtomicBool::new(false),
        }
    }

    /// The recorder is there.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// The series of `values`, which `look_up` makes if it is new.
    pub(crate) fn get(&self, values: &[&str], look_up: impl Fn() -> M) -> &M {
        let lists = if self.has_begun.load(Ordering::Relaxed) { &self.lists } else { &self.early };
        let mut list = &lists[place(values)];
        loop {
            let link = list.0.get_or_init(|| {
                let values = values.iter().map(|value| Box::from(*value)).collect();
                Box::new(Link { values, series: look_up(), next: List(OnceLock::new()) })
            });
            // Another thread may have added another one.
            if link.values.iter().map(|value| &**value).eq(values.iter().copied()) {
                return &link.series;
            }
            list = &link.next;
        }
    }
}

/// The list of these values, by FNV-1a: a node chooses the values, so nobody chooses which ones share a list.
fn place(values: &[&str]) -> usize {
    let bytes = values.iter().flat_map(|value| value.bytes());
    let hash = bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % LISTS
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn each_series_is_looked_up_once_and_again_once_the_recorder_is_there() {
        let (series, looks) = (Series::new(), Cell::new(0));
        let get = |values: &[&str]| {
            *series.get(values, || {
                looks.set(looks.get() + 1);
                looks.get()
            })
        };
        assert_eq!([get(&["a", "b"]), get(&["a", "c"]), get(&[]), get(&["a", "b"])], [1, 2, 3, 1]);
        series.begin();
        assert_eq!([get(&["a", "c"]), get(&["a"]), get(&["a", "c"]), get(&["a"])], [4, 5, 4, 5]);
        let many: Vec<_> = (0..10 * LISTS).map(|number| number.to_string()).collect();
        let all = || many.iter().map(|value| get(&[value])).collect::<Vec<_>>();
        assert_eq!([all(), all()], [0, 0].map(|_| (6..6 + many.len()).collect::<Vec<_>>()));
    }
}
