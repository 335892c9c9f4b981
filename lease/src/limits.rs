/// How much a table does in one entry, and how much it keeps. All replicas must have the same limits, so they follow from
/// the rules, and only tests have others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// One entry ends leases and waiters that are due until they have about this many keys. The next entry ends more.
    pub(crate) ends: usize,
    /// About how much one entry does to let waiters in: admitting a waiter to a key counts as one, granting it as one for
    /// each of its keys. The next entry does more.
    pub(crate) grants: usize,
    /// The most waiters on one key.
    pub(crate) queue: usize,
    /// The most ended ids to remember, of each owner.
    pub(crate) remembered: usize,
}

impl Limits {
    /// The limits under these rules.
    pub(crate) fn of(_rules: u8) -> Self {
        Self { ends: 4_096, grants: 2 * 4_096, queue: 10_000, remembered: 2_000_000 }
    }
}

/// How long a place in the queue is kept after the wait if the acquire asked for that, in milliseconds.
pub(crate) const KEEP_PLACE_MS: u64 = 5_000;

/// How long an ended id is remembered, in milliseconds of cluster time.
pub(crate) const REMEMBER_MS: u64 = 60_000;

/// The most live leases that the refusal of a single try names.
pub(crate) const MAX_BLOCKERS: usize = 16;

/// A waiter's position is counted up to this. Without the limit each repeat of its acquire, which every replica applies,
/// would cost as much as its queues are long.
pub(crate) const MAX_AHEAD: usize = 100;

/// Revisions and tokens stay below this, so that every JSON reader represents them exactly.
pub(crate) const REVISION_END: u64 = 1 << 53;

/// The most holders and the most waiters of a key in a view.
pub(crate) const MAX_SHOWN: usize = 100;

/// The most looks for one page of a search. Each key counts as one look, and so does each holder or waiter whose label is compared. A page
/// ends with the key that brings it above this number.
pub(crate) const MAX_LOOKS: usize = 10_000;

/// A page of keys ends with the key that takes it over about this many bytes.
pub(crate) const PAGE_BYTES: usize = 1 << 20;
