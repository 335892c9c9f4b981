use ringfence_guard::{Admission, Claim};

/// The resource: one number, initially 0, guarded or not. Its methods block: each holder has a thread of its own.
pub(crate) trait Resource: Sync {
    /// Raises the guard's number before the first read. Without a guard it does nothing, and is accepted.
    fn touch(&self, claim: Claim) -> Admission;
    /// The current number.
    fn read(&self) -> u64;
    /// Replaces the number. Without a guard it is always accepted.
    fn write(&self, claim: Claim, number: u64) -> Admission;
}
