//! The faults, one per column of the table, and variants of one of them.

use serde::{Deserialize, Serialize};

/// What goes wrong in a round. `script.rs` plays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

/// Of each fault: the letters over its column, what it is in a few words, a colon, and how it is made.
const TEXTS: &str = "
    0 no fault: Two holders try to get the lock at once; nothing fails.
    C holder crashes: SIGKILL while it holds the lock; if acquiring takes two requests, between them.
    P holder pauses before its write: SIGSTOP after its read; SIGCONT once another holder has written.
    Q holder pauses before its first access: SIGSTOP after it got the lock; SIGCONT once another holder has read, but not yet \
      written.
    A answer to the acquire is lost: A proxy delivers the request and discards the answer; the client waits for 300 ms.
    A2 request of the acquire arrives late: A proxy holds the request up; the client waits for 300 ms. When another holder has \
      acquired and released the lock, the proxy delivers the request, and sees the server answer it.
    A3 answer to an acquire without a name of its own is lost: A proxy delivers the request and discards the answer; the \
      client cannot tell its own node from those of others.
    R answer to the release is lost: A proxy discards the answer. Another holder gets the lock, the first one repeats its \
      release, and a third one tries to get the lock.
    F server fails over: The lock is granted while the replica receives nothing; the master is killed, and the replica \
      promoted. If a majority decides, the leader is killed. A lone PostgreSQL is killed and restarted.
    F2 server fails with the replica that acknowledged: One of two replicas acknowledges the lock. It is lost with the master, \
      and the other one is promoted. (While it can be reached, Sentinel prefers the one with more data.)
    F3 Sentinel fails over: The replica is paused while the lock is acquired. The master is killed, the replica resumes, and \
      three Sentinels promote it.
    F4 server fails over, WAIT asked on another connection: The replica receives nothing. The client sends WAIT over another \
      connection of its pool; the master is killed, and the replica promoted.
    E server loses its data: The server is killed while the lock is held, and restarted without its data.
    W+ server's clock jumps 1 h ahead: A preloaded library moves the server's time of day while the lock is held. (etcd does \
      not call the C library: there, the code that it calls is replaced.)
    W− server's clock falls 1 h behind: The same, when the holder has crashed and its lock has not yet ended. Counted is the \
      time beyond its end.
    N renewal dies, holder works on: The renewal ends with an error that the holder ignores; it writes after another holder.
    K holder's clock falls 1 h behind: A preloaded library moves the holder's time of day while it holds the lock.
";

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
        self.text().0
    }

    /// How it is made.
    pub(crate) fn how(self) -> &'static str {
        self.text().1
    }

    fn text(self) -> (&'static str, &'static str) {
        let lines = TEXTS.lines().filter_map(|line| line.trim_start().split_once(' '));
        let mut of_this = lines.filter(|(letters, _)| *letters == self.letters());
        of_this.next().and_then(|(_, text)| text.split_once(": ")).unwrap_or_default()
    }

    /// The one that has these letters.
    pub(crate) fn of(letters: &str) -> Option<Self> {
        Self::COLUMNS.into_iter().chain(Self::OTHERS).find(|fault| fault.is_called(letters))
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
