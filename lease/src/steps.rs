//! In tests, counts the steps of loops whose length depends on the state. Steps bound the cost of an entry or a view.
//! Unlike time, they do not depend on the load of the machine.

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one iteration.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    TAKEN.set(TAKEN.get() + 1);
}

/// The result of `work`, and its steps.
#[cfg(test)]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = TAKEN.get();
    let done = work();
    (done, TAKEN.get() - before)
}
