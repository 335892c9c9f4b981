//! The steps of the loops whose length depends on the state, counted in tests: they bound what an entry or a view costs
//! by a number that no other program changes.

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One more turn of a loop.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    TAKEN.set(TAKEN.get() + 1);
}

/// How many steps `work` takes.
#[cfg(test)]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = TAKEN.get();
    let done = work();
    (done, TAKEN.get() - before)
}
