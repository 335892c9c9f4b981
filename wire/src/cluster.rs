use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Revision;

/// How a node sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's id, drawn when it was founded.
    pub cluster_id: Uuid,
    /// The answering node.
    pub node_id: u64,
    /// The role of the answering node.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// The leader, as far as it knows.
    pub leader: Option<u64>,
    /// The index of its last log entry.
    pub last_log_index: Option<u64>,
    /// The index up to which it knows the log to be committed.
    pub committed_index: Option<u64>,
    /// The index up to which it has applied the log.
    pub applied_index: Option<u64>,
    /// The revision of its table.
    pub revision: Revision,
    /// The cluster time of its table, in milliseconds.
    pub at_ms: u64,
    /// Its live leases.
    pub live_leases: u64,
    /// Its waiting leases.
    pub waiters: u64,
    /// The members, by id.
    pub members: BTreeMap<u64, MemberStatus>,
    /// The status of its mirror in Redis, in the mirror's own format; `None` if it has none.
    pub mirror: Option<Value>,
    /// The version of its program.
    pub version: String,
    /// The version of the rules that its table uses. A node that does not say uses the first.
    #[serde(default = "first")]
    pub rules: u8,
    /// The newest rules that the programs of all members support; `None` if it does not know the program of one of them.
    #[serde(default)]
    pub rules_supported: Option<u8>,
    /// The certificates that it uses. A node that does not say has none here.
    #[serde(default)]
    pub certificates: Vec<CertificateStatus>,
    /// The files that it cannot use as they are now, so that it uses what they contained before. A node that does not say has none
    /// here.
    #[serde(default)]
    pub files_refused: Vec<FilesRefused>,
}

/// Files that changed, and that a node cannot use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesRefused {
    /// What they are for: that of their certificates, or `access`.
    pub r#use: String,
    /// Which file, and what is wrong.
    pub why: String,
}

/// A certificate that a node uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// `clients`, or `peers`: between nodes.
    pub r#use: String,
    /// Its file.
    pub file: String,
    /// Whose it is.
    pub subject: String,
    /// Whether it is of an authority that the node trusts, and not the node's own.
    pub authority: bool,
    /// Whether something is refused once it ends. The others of a file may be left over. A node that does not say needs all.
    #[serde(default = "yes")]
    pub needed: bool,
    /// When it begins, in seconds since the Unix epoch; `None` if the node does not say.
    #[serde(default)]
    pub begins_unix_s: Option<i64>,
    /// When it ends, in seconds since the Unix epoch. Of a node's own between nodes: when its own authorities refuse it, which may be
    /// earlier than it says.
    pub ends_unix_s: i64,
}

fn yes() -> bool {
    true
}

fn first() -> u8 {
    1
}

/// The versions of the rules that a program supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesRange {
    /// The oldest.
    pub oldest: u8,
    /// The newest.
    pub newest: u8,
}

impl RulesRange {
    /// Whether `rules` are among them.
    pub fn contains(self, rules: u8) -> bool {
        (self.oldest..=self.newest).contains(&rules)
    }
}

impl fmt::Display for RulesRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

/// The answer to `POST /v1/cluster/upgrade`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// The rules before.
    pub from: u8,
    /// The rules now, or, if the request only checks, the rules that it would raise to. The same as `from` if there is
    /// nothing to raise.
    pub to: u8,
}

/// A member of the cluster, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Whether it votes; a learner does not.
    pub voter: bool,
    /// Its address for peers.
    pub peer: String,
    /// The URL of its HTTP listener, if the answering node knows it.
    pub url: Option<String>,
    /// How many entries it lacks; `None` unless the answering node leads.
    pub lag_entries: Option<u64>,
    /// The version of its program, as it said when the answering node last connected to it; `None` if that is not known.
    #[serde(default)]
    pub version: Option<String>,
    /// The rules that its program supports, as far as that is known.
    #[serde(default)]
    pub rules: Option<RulesRange>,
    /// For how many milliseconds its Raft has not answered the answering node, as far as that has asked it; `None` of the answering
    /// node itself, or if that is not known. While a flush of its log takes more than 2 s, no answer counts.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// Whether it says that it cannot call the answering node, though it hears it; `false` unless the answering node leads. What clients
    /// ask of it, it cannot pass on then.
    #[serde(default)]
    pub cannot_call: bool,
    /// Why the last snapshot for it was not delivered, while it lacks that; `None` unless the answering node leads. It is tried
    /// again.
    #[serde(default)]
    pub snapshot_failure: Option<String>,
    /// Why the answering node refuses it, for example because it runs with a copy of its data directory; `None` if it does not.
    #[serde(default)]
    pub refused: Option<String>,
    /// When the certificate ends that it showed the answering node last, in seconds since the Unix epoch; `None` if it showed
    /// none.
    #[serde(default)]
    pub certificate_ends_unix_s: Option<i64>,
}

impl MemberStatus {
    /// A member that has not answered for so long, in milliseconds, is said not to answer. One that answers is asked every second.
    pub const SILENT_MS: u64 = 5_000;

    /// For how long it has not answered, if that is long.
    pub fn silence(&self) -> Option<Duration> {
        self.silent_ms.filter(|ms| *ms >= Self::SILENT_MS).map(Duration::from_millis)
    }
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows a leader, or waits for one.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It receives the log but does not vote.
    Learner,
    /// It has stopped.
    Stopped,
}
