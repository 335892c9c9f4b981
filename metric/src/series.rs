use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The series of one metric by the values of its labels, each looked up once: to look one up in the recorder costs more than to count.
/// Those that are used first, which are mostly those that are used most, are found first.
///
/// What was looked up before the recorder was there counts nothing, so it is kept apart.
pub(crate) struct Series<M> {
    early: List<M>,
    list: List<M>,
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
        Self { early: List(OnceLock::new()), list: List(OnceLock::new()), has_begun: AtomicBool::new(false) }
    }

    /// The recorder is there.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// The series of `values`, which `look_up` makes if it is new.
    pub(crate) fn get(&self, values: &[&str], look_up: impl Fn() -> M) -> &M {
        let mut list = if self.has_begun.load(Ordering::Relaxed) { &self.list } else { &self.early };
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
    }
}
