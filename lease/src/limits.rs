/// How much a table does at once and keeps at most. Every replica must have the same, so only tests have others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// About how many keys the leases and waiters have that end because their time is over in one apply; the rest follow
    /// in the next.
    pub(crate) ends: usize,
    /// About how much is done in one apply to let waiters in: to pass one of them on a key counts as one, to grant it as one
    /// for each of its keys. The rest follows in the next.
    pub(crate) grants: usize,
    /// The most waiters on one key.
    pub(crate) queue: usize,
    /// The most ended ids that are remembered.
    pub(crate) remembered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ends: 4_096, grants: 2 * 4_096, queue: 10_000, remembered: 2_000_000 }
    }
}

/// How long a place in the queue is kept beyond the wait, in milliseconds, where the acquire asked for that.
pub(crate) const KEEP_PLACE_MS: u64 = 5_000;

/// How long an ended id is remembered at least, in milliseconds of cluster time.
pub(crate) const REMEMBER_MS: u64 = 60_000;

/// The most live leases that a refused try names.
pub(crate) const MAX_BLOCKERS: usize = 16;

/// A waiter counts so many of those ahead of it and no more: else each repeat of its acquire, which every replica runs,
/// costs as much as its queues are long.
pub(crate) const MAX_AHEAD: usize = 100;

/// Revisions and tokens stay below it, so that every JSON reader keeps them exact.
pub(crate) const REVISION_END: u64 = 1 << 53;

/// The most holders of a key that a view shows, and the most waiters.
pub(crate) const MAX_SHOWN: usize = 100;

/// A page of keys ends with the key that makes it larger than so many bytes, about.
pub(crate) const PAGE_BYTES: usize = 1 << 20;
