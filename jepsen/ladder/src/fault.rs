//! The faults, one per column of the table, and variants of one of them.

use serde::Serialize;

/// What goes wrong in a round. `script.rs` plays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Nothing: two holders, one after the other, then both at once.
    None,
    /// A holder is killed.
    Crash,
    /// A holder stands still between its read and its write.
    PauseBeforeWrite,
    /// A holder stands still between its acquire and its first access.
    PauseBeforeRead,
    /// The answer to an acquire is lost.
    LostAcquire,
    /// The request of an acquire arrives when its client has given it up, and others have had the lock.
    LateAcquire,
    /// The answer to an acquire is lost, and nothing in the lock says which acquire it is of.
    LostAcquireUnnamed,
    /// The answer to a release is lost.
    LostRelease,
    /// The server fails, and a replica takes over, or the others elect another leader; a lone server is restarted.
    Failover,
    /// The same, and the replica that has acknowledged the lock fails as well: another one takes over.
    FailoverToOther,
    /// The same where real Sentinels promote the replica.
    FailoverBySentinel,
    /// The same where the client asks `WAIT` over another connection than the one it has written on.
    FailoverUnseen,
    /// A server loses all its data.
    Empty,
    /// The time of day of a server jumps an hour ahead.
    ServerAhead,
    /// The time of day of a server falls an hour behind.
    ServerBehind,
    /// A holder's renewal dies, and the holder works on.
    RenewalDies,
    /// The time of day of a holder falls an hour behind.
    HolderBehind,
}

impl Fault {
    /// The columns, in their order.
    pub const COLUMNS: [Self; 11] = [
        Self::Crash,
        Self::PauseBeforeWrite,
        Self::PauseBeforeRead,
        Self::LostAcquire,
        Self::LostRelease,
        Self::Failover,
        Self::Empty,
        Self::ServerAhead,
        Self::ServerBehind,
        Self::RenewalDies,
        Self::HolderBehind,
    ];

    /// Those that are not columns: nothing, and variants.
    pub const OTHERS: [Self; 6] = [
        Self::None,
        Self::LateAcquire,
        Self::LostAcquireUnnamed,
        Self::FailoverToOther,
        Self::FailoverBySentinel,
        Self::FailoverUnseen,
    ];

    /// The letters over its column.
    pub fn letters(self) -> &'static str {
        match self {
            Self::None => "0",
            Self::Crash => "C",
            Self::PauseBeforeWrite => "P",
            Self::PauseBeforeRead => "Q",
            Self::LostAcquire => "A",
            Self::LateAcquire => "A2",
            Self::LostAcquireUnnamed => "A3",
            Self::LostRelease => "R",
            Self::Failover => "F",
            Self::FailoverToOther => "F2",
            Self::FailoverBySentinel => "F3",
            Self::FailoverUnseen => "F4",
            Self::Empty => "E",
            Self::ServerAhead => "W+",
            Self::ServerBehind => "W−",
            Self::RenewalDies => "N",
            Self::HolderBehind => "K",
        }
    }

    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no fault",
            Self::Crash => "holder crashes",
            Self::PauseBeforeWrite => "holder pauses before its write",
            Self::PauseBeforeRead => "holder pauses before its first access",
            Self::LostAcquire => "answer to the acquire is lost",
            Self::LateAcquire => "request of the acquire arrives late",
            Self::LostAcquireUnnamed => "answer to an acquire without a name of its own is lost",
            Self::LostRelease => "answer to the release is lost",
            Self::Failover => "server fails over",
            Self::FailoverToOther => "server fails with the replica that acknowledged",
            Self::FailoverBySentinel => "Sentinel fails over",
            Self::FailoverUnseen => "server fails over, WAIT asked on another connection",
            Self::Empty => "server loses its data",
            Self::ServerAhead => "server's clock jumps 1 h ahead",
            Self::ServerBehind => "server's clock falls 1 h behind",
            Self::RenewalDies => "renewal dies, holder works on",
            Self::HolderBehind => "holder's clock falls 1 h behind",
        }
    }

    /// How it is made.
    pub(crate) fn how(self) -> &'static str {
        match self {
            Self::None => "Two holders try to get the lock at once; nothing fails.",
            Self::Crash => "SIGKILL while it holds the lock; if acquiring takes two requests, between them.",
            Self::PauseBeforeWrite => "SIGSTOP after its read; SIGCONT once another holder has written.",
            Self::PauseBeforeRead => {
                "SIGSTOP after it got the lock; SIGCONT once another holder has read, but not yet written."
            }
            Self::LostAcquire => {
                "A proxy delivers the request and discards the answer; the client waits for 300 ms."
            }
            Self::LateAcquire => {
                "A proxy holds the request up; the client waits for 300 ms. When another holder has acquired and released the \
                 lock, the proxy delivers the request, and sees the server answer it."
            }
            Self::LostAcquireUnnamed => {
                "A proxy delivers the request and discards the answer; the client cannot tell its own node from those of others."
            }
            Self::LostRelease => {
                "A proxy discards the answer. Another holder gets the lock, the first one repeats its release, and a third one tries to get the lock."
            }
            Self::Failover => {
                "The lock is granted while the replica receives nothing; the master is killed, and the replica promoted. \
                 If a majority decides, the leader is killed. A lone PostgreSQL is killed and restarted."
            }
            Self::FailoverToOther => {
                "One of two replicas acknowledges the lock. It is lost with the master, and the other one is promoted. (While \
                 it can be reached, Sentinel prefers the one with more data.)"
            }
            Self::FailoverBySentinel => {
                "The replica is paused while the lock is acquired. The master is killed, the replica resumes, and three \
                 Sentinels promote it."
            }
            Self::FailoverUnseen => {
                "The replica receives nothing. The client sends WAIT over another connection of its pool; the master is \
                 killed, and the replica promoted."
            }
            Self::Empty => "The server is killed while the lock is held, and restarted without its data.",
            Self::ServerAhead => {
                "A preloaded library moves the server's time of day while the lock is held. (etcd does not call the C \
                 library: there, the code that it calls is replaced.)"
            }
            Self::ServerBehind => {
                "The same, when the holder has crashed and its lock has not yet ended. Counted is the time beyond its end."
            }
            Self::RenewalDies => {
                "The renewal ends with an error that the holder ignores; it writes after another holder."
            }
            Self::HolderBehind => {
                "A preloaded library moves the holder's time of day while it holds the lock."
            }
        }
    }

    /// Whether it has these letters, where a hyphen does for a minus.
    pub(crate) fn is_called(self, letters: &str) -> bool {
        self.letters() == letters.replace('-', "−")
    }

    /// Its column.
    pub fn column(self) -> Self {
        match self {
            Self::LateAcquire | Self::LostAcquireUnnamed => Self::LostAcquire,
            Self::FailoverToOther | Self::FailoverBySentinel | Self::FailoverUnseen => Self::Failover,
            fault => fault,
        }
    }

    /// Whether the client of the first holder makes a mistake.
    pub(crate) fn is_with_mistake(self) -> bool {
        matches!(self, Self::LostAcquireUnnamed | Self::FailoverUnseen)
    }

    /// Whether the servers are not as before afterwards.
    pub(crate) fn spoils_servers(self) -> bool {
        self.server_clock_h().is_some() || matches!(self.column(), Self::Failover | Self::Empty)
    }

    /// By how many hours it moves a server's time of day.
    pub(crate) fn server_clock_h(self) -> Option<i64> {
        match self {
            Self::ServerAhead => Some(1),
            Self::ServerBehind => Some(-1),
            _ => None,
        }
    }
}
