use ringfence_guard::{Admission, Claim};

/// What holders race for: one number, guarded or not. A new one holds 0.
///
/// An asynchronous resource blocks: each holder has a thread of its own.
pub(crate) trait Resource: Sync {
    /// Raises the guard's number before the first read. Without a guard: nothing, accepted.
    fn touch(&self, claim: Claim) -> Admission;
    /// The number that it holds.
    fn read(&self) -> u64;
    /// Replaces it. Without a guard this is always accepted.
    fn write(&self, claim: Claim, number: u64) -> Admission;
}
