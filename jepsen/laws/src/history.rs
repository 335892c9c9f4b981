//! What was asked, what came of it, and when: all that checkers and reports know of a run.
//!
//! Times are microseconds of this process's monotonic clock since the run began. A [`Call`] took effect, if at all, at one
//! instant from [`sent_us`](Call::sent_us) on, and no later than [`ended_us`](Call::ended_us) if its answer is definite.

use std::collections::BTreeMap;

pub use ringfence_wire::{ChangeName, ChangedKey};
use ringfence_wire::{
    EndReason, Grant, Key, KeyView, LeaseId, ProblemKind, Revision, Role, Token, Verdict, Waiting, WantedKey,
};
use serde::{Deserialize, Serialize};

/// A whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// What was run.
    pub about: About,
    /// In the order they were sent.
    pub calls: Vec<Call>,
    /// In the order they began.
    pub faults: Vec<Fault>,
    /// How nodes saw the cluster, all the time.
    pub sights: Vec<Sight>,
    /// How long what was due waited on nodes, all the time.
    pub lags: Vec<LagSight>,
    /// What a reader saw in Redis, all the time.
    pub mirror: Vec<MirrorSight>,
    /// What was there when all was over.
    pub end: End,
}

/// What was run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct About {
    /// The command that does it again.
    pub command: String,
    /// From which the schedule comes.
    pub seed: u64,
    /// The workload's name.
    pub workload: String,
    /// The nemeses' names.
    pub nemeses: Vec<String>,
    /// How many nodes.
    pub nodes: u64,
    /// How long faults and load went on.
    pub time_s: u64,
    /// The version of the program.
    pub version: String,
    /// When the run began, by the wall clock, for people: RFC 3339 or the like.
    pub began: String,
}

/// One request of one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Its place in [`History::calls`].
    pub id: u64,
    /// Who asked. One process has one call under way at a time.
    pub process: u32,
    /// Which node was asked; `None` for a guarded resource, and for a call of the client library, which chooses a node itself.
    pub node: Option<u64>,
    /// In which `POST /v1/batch` it was sent with others, if in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// When it was about to be sent.
    pub sent_us: u64,
    /// When its end was known; for what has no answer, when its client gave up.
    pub ended_us: u64,
    /// What was asked for.
    pub invocation: Invocation,
    /// What came of it.
    pub conclusion: Conclusion,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "f", rename_all = "kebab-case")]
pub enum Invocation {
    /// `PUT /v1/leases/{lease}`
    Acquire {
        /// The client's handle.
        lease: LeaseId,
        /// All or nothing.
        keys: Vec<WantedKey>,
        /// The time-to-live.
        ttl_ms: u32,
        /// How long to wait; 0 tries once.
        wait_ms: u32,
        /// Whether the place in the queue is kept at the end of the wait.
        keep_place: bool,
    },
    /// `POST /v1/leases/{lease}/renew`
    Renew {
        /// The lease.
        lease: LeaseId,
        /// A new time-to-live, if any.
        ttl_ms: Option<u32>,
    },
    /// `DELETE /v1/leases/{lease}`
    Release {
        /// The lease.
        lease: LeaseId,
    },
    /// `GET /v1/leases/{lease}`
    Lease {
        /// The lease.
        lease: LeaseId,
        /// Whether the node's own state was asked for, not the cluster's.
        local: bool,
    },
    /// `GET /v1/keys/{key}`
    Key {
        /// The key.
        key: Key,
        /// Whether the node's own state was asked for, not the cluster's.
        local: bool,
    },
    /// `POST /v1/validate`
    Validate {
        /// The key.
        key: Key,
        /// The token.
        token: Token,
        /// Whether the node's own state was asked for, not the cluster's.
        local: bool,
    },
    /// `POST /v1/revoke`
    Revoke {
        /// The key.
        key: Key,
        /// The token of the lease.
        token: Token,
    },
    /// `POST /v1/cluster/transfer`
    Transfer {
        /// Who is to lead.
        to: u64,
    },
    /// Over RESP, `SET key value NX PX ttl`; of several keys, or on a condition, a script that does it for all or for none. A value
    /// names a lease of its own: none is set again that may have been set.
    Set {
        /// The keys, and the value of each.
        keys: Vec<ValuedKey>,
        /// The time-to-live.
        ttl_ms: u32,
        /// Only if this key has this value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only_if: Option<ValuedKey>,
    },
    /// Over RESP, a script: `DEL key` if it has this value.
    EndIf {
        /// The key and the value.
        at: ValuedKey,
    },
    /// Over RESP, a script: `PEXPIRE key ttl` if it has this value. It may shorten what is left.
    ExpireIf {
        /// The key and the value.
        at: ValuedKey,
        /// The new time-to-live.
        ttl_ms: u32,
    },
    /// Over RESP, `RINGFENCE.TOKEN key value`
    Token {
        /// The key and the value.
        at: ValuedKey,
    },
    /// Over RESP, `GET key`
    Get {
        /// The key.
        key: Key,
    },
    /// Raises the guard of a register, and reads it.
    Read {
        /// The register, named by the key that guards it.
        key: Key,
        /// The writer's token.
        token: Token,
        /// The fence that the writer was told.
        fence: Token,
    },
    /// Writes a register. In a run without fencing the guard is not asked.
    Write {
        /// The register, named by the key that guards it.
        key: Key,
        /// The writer's token.
        token: Token,
        /// The fence that the writer was told.
        fence: Token,
        /// What the writer had read: the id of the write before, or 0.
        over: u64,
        /// The id of this write, unique in the run and not 0.
        value: u64,
    },
}

/// A key, and the value that a client of RESP stores there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValuedKey {
    /// The key.
    pub key: Key,
    /// The value. The id of the lease is another one, which no client sees.
    pub value: LeaseId,
}

/// What `GET` showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen {
    /// The key is free.
    Nothing,
    /// A lease with this value holds it.
    Value(LeaseId),
    /// It is not free, and has no value.
    Other,
}

/// The reason of an unknown conclusion begins with this if the client hung up before the answer.
pub const HUNG_UP: &str = "it hung up";

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Conclusion {
    /// 201 or 200 with a grant: of an acquire, a renewal, or a look at a lease.
    Granted {
        /// As it was answered.
        grant: Grant,
        /// Of an acquire: whether it had been granted before (200).
        standing: bool,
        /// Whether its fence stood in Redis when it was answered; `None` where the answer does not say.
        mirrored: Option<bool>,
    },
    /// 202, or a look at a lease that waits.
    Waiting {
        /// How many were ahead.
        ahead: u64,
    },
    /// Done, with nothing to tell: of a release, revoke, transfer, set, or change of what was set.
    Done,
    /// Over RESP: the token of the lease with the value.
    Token {
        /// As it was answered.
        token: Token,
    },
    /// Over RESP: what is at a key.
    Value {
        /// As it was answered.
        seen: Seen,
    },
    /// A view of a key.
    Key {
        /// As it was answered.
        view: KeyView,
    },
    /// What was said about a token.
    Verdict {
        /// As it was answered.
        verdict: Verdict,
    },
    /// A register's content: the id of the last write, or 0. Of a read, and of a write that was accepted.
    Register {
        /// The id of the last write.
        value: u64,
    },
    /// The guard rejected it: its token is stale.
    Stale {
        /// The guard's number.
        high: Token,
    },
    /// A definite refusal of the cluster: nothing was done. Over RESP, a key that has another value, or none, is `lease-gone`.
    Refused {
        /// Which.
        problem: ProblemKind,
        /// Of `lease-gone`: why.
        reason: Option<EndReason>,
    },
    /// Certainly not done: nothing was sent, or 503 `unavailable`.
    NotDone {
        /// For people.
        why: String,
    },
    /// May have been done, or be done later, or never.
    Unknown {
        /// For people.
        why: String,
    },
    /// Answered against the contract. Always a finding.
    Malformed {
        /// For people.
        why: String,
    },
}

impl Conclusion {
    /// A grant, of which the answer does not say whether it stands in Redis.
    pub fn granted(grant: Grant, standing: bool) -> Self {
        Self::Granted { grant, standing, mirrored: None }
    }

    /// What a failure of the cluster is: of this kind, for `reason` if the lease has ended.
    pub fn failed(problem: ProblemKind, reason: Option<EndReason>) -> Self {
        let why = problem.name().to_owned();
        match problem {
            ProblemKind::Unavailable => Self::NotDone { why },
            ProblemKind::Indeterminate => Self::Unknown { why },
            _ => Self::Refused { problem, reason },
        }
    }
}

/// Of a renewal, or a look at a lease.
impl From<Grant> for Conclusion {
    fn from(grant: Grant) -> Self {
        Self::granted(grant, true)
    }
}

impl From<Waiting> for Conclusion {
    fn from(waiting: Waiting) -> Self {
        Self::Waiting { ahead: waiting.ahead }
    }
}

impl From<KeyView> for Conclusion {
    fn from(view: KeyView) -> Self {
        Self::Key { view }
    }
}

impl From<Verdict> for Conclusion {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict { verdict }
    }
}

/// A fault, while it lasted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The nemesis, by its name on the command line.
    pub nemesis: String,
    /// In plain words, as "node 2 is killed".
    pub what: String,
    /// The nodes that it was aimed at.
    pub nodes: Vec<u64>,
    /// When it was begun.
    pub from_us: u64,
    /// When it was over: the node was started again, the link healed.
    pub to_us: u64,
}

/// How a node saw the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// When it was asked.
    pub sent_us: u64,
    /// When it answered.
    pub ended_us: u64,
    /// The node.
    pub node: u64,
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Who leads, as far as it knew.
    pub leader: Option<u64>,
    /// Up to where it had applied the log.
    pub applied_index: Option<u64>,
    /// The revision of its table.
    pub revision: Revision,
    /// The cluster time of its table, in milliseconds.
    pub at_ms: u64,
}

/// What a node had counted of how long what was due had to wait, since it was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LagSight {
    /// When it was asked.
    pub sent_us: u64,
    /// When it answered.
    pub ended_us: u64,
    /// The node.
    pub node: u64,
    /// How often it had looked.
    pub samples: u64,
    /// How many of those waited for longer than so many milliseconds.
    pub longer: BTreeMap<u64, u64>,
}

/// What a reader saw of a key in Redis; `None` where there was no hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorSight {
    /// When it was asked.
    pub sent_us: u64,
    /// When it had the answer.
    pub ended_us: u64,
    /// The key.
    pub key: Key,
    /// What stood there.
    pub entry: Option<MirrorEntry>,
}

/// The hash of a key in Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorEntry {
    /// The revision of the table it was read from.
    pub rev: Revision,
    /// The fence.
    pub fence: Token,
    /// The newest live token, 0 if there is none.
    pub token: Token,
    /// Whether it says `held`, not `free`.
    pub held: bool,
}

/// What was there when all faults were over, the load had stopped, and the cluster was healed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// When the last fault was over.
    pub healed_us: u64,
    /// When the final reads were made.
    pub read_us: u64,
    /// Every key that anybody asked for, by a linearizable read.
    pub keys: Vec<KeyView>,
    /// The same keys in Redis, once mirror and table had had their time to agree.
    pub mirror: BTreeMap<Key, Option<MirrorEntry>>,
    /// Each node, in the end.
    pub nodes: Vec<NodeEnd>,
    /// All changes that a quorum has agreed on, read from the logs of the stopped nodes.
    pub changes: Vec<Change>,
    /// The revision before the first of `changes`: what was changed up to there is no longer in the logs.
    pub changes_after: Revision,
    /// What could not be found out, for people. Not empty: the run is unknown at best.
    pub missing: Vec<String>,
}

/// A node, in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEnd {
    /// Its id.
    pub id: u64,
    /// Whether it was ready and served a write through itself after all was healed.
    pub serves: bool,
    /// Lines of its log that tell of a panic.
    pub panics: Vec<String>,
    /// The checksum of its state after these entries, as `ringfence inspect state --index` tells it.
    pub states: BTreeMap<u64, String>,
}

/// One change of the table, as `ringfence inspect events` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The entry of the log that made it.
    pub index: u64,
    /// Cluster time, in milliseconds.
    pub at_ms: u64,
    /// Its number.
    pub revision: Revision,
    /// The lease that changed.
    pub lease_id: LeaseId,
    /// What happened to it.
    pub change: ChangeName,
    /// Why, where it ended or left; `None` where its wait ran out.
    pub reason: Option<EndReason>,
    /// Its token; `None` for a lease that waits or never was granted.
    pub token: Option<Token>,
    /// Its keys, in the order they were asked for.
    pub keys: Vec<ChangedKey>,
}

impl Invocation {
    /// The lease that it names by its id.
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Acquire { lease, .. }
            | Self::Renew { lease, .. }
            | Self::Release { lease }
            | Self::Lease { lease, .. } => Some(*lease),
            _ => None,
        }
    }

    /// The keys that it names.
    pub fn keys(&self) -> Vec<&Key> {
        match self {
            Self::Acquire { keys, .. } => keys.iter().map(|claim| &claim.key).collect(),
            Self::Set { keys, only_if, .. } => keys.iter().chain(only_if).map(|at| &at.key).collect(),
            Self::EndIf { at } | Self::ExpireIf { at, .. } | Self::Token { at } => vec![&at.key],
            Self::Key { key, .. }
            | Self::Get { key }
            | Self::Validate { key, .. }
            | Self::Revoke { key, .. }
            | Self::Read { key, .. }
            | Self::Write { key, .. } => vec![key],
            _ => Vec::new(),
        }
    }

    /// The token that it names.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Validate { token, .. }
            | Self::Revoke { token, .. }
            | Self::Read { token, .. }
            | Self::Write { token, .. } => Some(*token),
            _ => None,
        }
    }

    /// Whether it is asked over RESP.
    pub fn is_resp(&self) -> bool {
        matches!(
            self,
            Self::Set { .. }
                | Self::EndIf { .. }
                | Self::ExpireIf { .. }
                | Self::Token { .. }
                | Self::Get { .. }
        )
    }

    /// Whether it is about the state of a single node, which may lag.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Lease { local: true, .. }
                | Self::Key { local: true, .. }
                | Self::Validate { local: true, .. }
        )
    }
}

impl Call {
    /// Whether what it asked for may have been done, or was.
    pub fn may_be_done(&self) -> bool {
        !matches!(
            self.conclusion,
            Conclusion::NotDone { .. } | Conclusion::Refused { .. } | Conclusion::Stale { .. }
        )
    }

    /// Whether it was made by the client library.
    pub fn is_of_library(&self) -> bool {
        self.node.is_none() && !matches!(self.invocation, Invocation::Read { .. } | Invocation::Write { .. })
    }

    /// Whether its client hung up before there was an answer.
    pub fn hung_up(&self) -> bool {
        matches!(&self.conclusion, Conclusion::Unknown { why } if why.starts_with(HUNG_UP))
    }

    /// Whether its answer settles what was done.
    pub fn is_definite(&self) -> bool {
        !matches!(self.conclusion, Conclusion::Unknown { .. } | Conclusion::Malformed { .. })
    }
}

/// The reason as the API spells it.
pub(crate) fn reason_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "released",
        EndReason::Expired => "expired",
        EndReason::Revoked => "revoked",
        EndReason::Abandoned => "abandoned",
    }
}
