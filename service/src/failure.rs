use ringfence_lease::{Blocking, Refusal};
use ringfence_raft::{Stuck, Unanswered};
use ringfence_wire::{Blocker, EndReason, Key, ProblemKind, Revision};

/// Why a request was not done, or may not have been. Each door has its own words for it; texts in here hold for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It shows no principal, and nobody may do this without one; or what it shows is not valid.
    Unauthenticated(String),
    /// A right is missing.
    Forbidden(String),
    /// More requests or reads than the limits of the principal allow.
    RateLimited(String),
    /// As many watches as the limits of the principal, or of the node, allow.
    TooManyWatches(String),
    /// A watch cannot begin there: this node does not have all changes since then, or the cluster has not reached it.
    HistoryGone {
        /// After which revision it was to begin.
        after: Revision,
        /// After which it can begin at the earliest.
        oldest: Revision,
        /// The last one.
        last: Revision,
    },
    /// The leader refuses an order, for this reason.
    OrderRefused(String),
    /// A new cluster has no revision yet.
    NotStarted,
    /// The acquire tried once, and a key was not free.
    Held {
        /// Some of the live leases that block it; `None` if the caller may not see them.
        holders: Option<Vec<Blocker>>,
        /// Whether only earlier waiters do.
        by_waiters: bool,
        /// The length of the longest of the queues.
        waiters: u64,
    },
    /// The wait timed out.
    WaitTimeout,
    /// The lease id belongs to a lease with other keys.
    Mismatch,
    /// The lease still waits.
    NotGranted,
    /// The token is not live on that key.
    NotLive,
    /// The lease ended.
    Gone(EndReason),
    /// The lease is unknown, or was forgotten.
    Unknown,
    /// A queue is full.
    QueueFull,
    /// The principal has as much as its limits allow.
    OverQuota {
        /// The limit.
        most: u64,
        /// Of what: `leases`.
        of: &'static str,
    },
    /// All leases together take as much memory as they may.
    TableFull,
    /// It was granted, and the mirror did not have that in time. It is taken back.
    NotMirrored,
    /// An operation among many: the results of those before it take all the room. It was not done.
    NoRoom,
    /// An operation among many: one before it has no outcome. It was not done.
    AfterUnanswered,
    /// The cluster's rules do not have it yet. It was not done.
    NotYet {
        /// The rules in use.
        rules: u8,
        /// The first rules that have it.
        since: u8,
    },
    /// Only the Redis protocol acquires this key.
    OfDatabase(Key),
    /// What it is to change was not as it had read it. It was not done.
    Changed,
    /// No leader took it in time. It was not done.
    NoLeader,
    /// Too many requests, perhaps of this client alone, wait for the leader. It was not done.
    Crowded,
    /// This node may learn late of a grant, so nobody begins to wait here. It was not done.
    CutOff {
        /// Whether that is because its disk hangs. Else it does not keep up with a leader, or has none.
        disk_hangs: bool,
    },
    /// The thread that decides hangs, at this node. It was not done.
    Blocked,
    /// It may have been done, or may be done later.
    Indeterminate,
    /// This node stopped waiting for the lease, which may still be granted.
    StoppedWaiting,
}

impl Failure {
    /// Of which kind it is. The only place that keeps *certainly not done* apart from *maybe done*.
    pub fn kind(&self) -> ProblemKind {
        match self {
            Self::Unauthenticated(_) => ProblemKind::Unauthenticated,
            Self::Forbidden(_) => ProblemKind::Forbidden,
            Self::RateLimited(_) => ProblemKind::RateLimited,
            Self::HistoryGone { .. } => ProblemKind::HistoryGone,
            Self::OrderRefused(_) => ProblemKind::MembersRefused,
            Self::Held { .. } => ProblemKind::Held,
            Self::WaitTimeout => ProblemKind::WaitTimeout,
            Self::Mismatch => ProblemKind::LeaseMismatch,
            Self::NotGranted => ProblemKind::NotGranted,
            Self::NotLive => ProblemKind::NotLive,
            Self::Gone(_) => ProblemKind::LeaseGone,
            Self::Unknown => ProblemKind::UnknownLease,
            Self::TooManyWatches(_) | Self::QueueFull | Self::OverQuota { .. } | Self::TableFull => {
                ProblemKind::Overloaded
            }
            Self::NoRoom => ProblemKind::TooLarge,
            Self::OfDatabase(_) => ProblemKind::InvalidRequest,
            Self::NotYet { .. }
            | Self::Changed
            | Self::NotStarted
            | Self::NoLeader
            | Self::Crowded
            | Self::CutOff { .. }
            | Self::Blocked
            | Self::AfterUnanswered => ProblemKind::Unavailable,
            Self::Indeterminate | Self::StoppedWaiting | Self::NotMirrored => ProblemKind::Indeterminate,
        }
    }

    /// Whether it was certainly not done.
    pub fn is_certain(&self) -> bool {
        self.kind() != ProblemKind::Indeterminate
    }

    /// How the lease ended, if that is why.
    pub fn end_reason(&self) -> Option<EndReason> {
        if let Self::Gone(reason) = self { Some(*reason) } else { None }
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Unavailable => Self::NoLeader,
            Unanswered::Full => Self::Crowded,
            Unanswered::Indeterminate => Self::Indeterminate,
        }
    }
}

impl From<Stuck> for Failure {
    fn from(Stuck: Stuck) -> Self {
        Self::Blocked
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Held { holders, waiters } => {
                let by_waiters = holders.is_empty();
                let holders = Some(holders.into_iter().map(blocker).collect());
                Self::Held { holders, by_waiters, waiters }
            }
            Refusal::WaitTimeout => Self::WaitTimeout,
            Refusal::Mismatch => Self::Mismatch,
            Refusal::NotGranted => Self::NotGranted,
            Refusal::NotLive => Self::NotLive,
            Refusal::Gone(reason) => Self::Gone(reason),
            Refusal::Unknown => Self::Unknown,
            Refusal::Overloaded => Self::QueueFull,
            Refusal::TooManyLeases { most } => Self::OverQuota { most: most.into(), of: "leases" },
            Refusal::TooManyWaiting { most } => Self::OverQuota { most: most.into(), of: "waiting leases" },
            Refusal::TooManyBytes { most } => Self::OverQuota { most, of: "bytes of leases" },
            Refusal::Full => Self::TableFull,
            Refusal::NotYet { rules, since } => Self::NotYet { rules, since },
            Refusal::Changed { .. } => Self::Changed,
            Refusal::OfDatabase { key } => Self::OfDatabase(key),
        }
    }
}

fn blocker(Blocking { key, token, holder, mode, limit, expires_in_ms }: Blocking) -> Blocker {
    Blocker { key, token, holder, mode, limit, expires_in_ms, by: None }
}
