//! TCP connections to a host by name.
//!
//! ```text
//!  a name ─▶ addresses ─▶ connect: the one that answered last, and each 250 ms the next one beside it ─▶ the first that accepts
//!             ▲     known before: used at once
//!             └──── a lookup in the background, on a thread, at most one a second
//! ```
//! A name server may be slow, or hang for ever, and a name may have addresses that lead nowhere. So:
//!
//! - **A lookup is apart from connecting.** It goes on when its caller gives up, and the next caller uses what it finds. While
//!   one is under way, no other begins for that name for a minute, then for two, and so on: a resolver that hangs takes eight threads
//!   per name at most.
//! - **The last good addresses are used at once**, while a lookup renews them in the background. A name server that is down
//!   stops nobody who has connected before.
//! - **All addresses are tried**, staggered and the families in turn ([RFC 8305](https://www.rfc-editor.org/rfc/rfc8305)), the
//!   one that answered last first. One whose last connection brought nothing comes last: its process may hang, or not be
//!   who it is to be.
//!
//! Addresses are known per process, for all who connect. An IP address needs no lookup.
//!
//! The lookup is the system's (`getaddrinfo`), so that `/etc/hosts` and `nsswitch.conf` count. It has a thread of its own,
//! because a runtime waits for its blocking threads when it ends, and such a lookup may never end.

mod heard;
mod names;
mod race;
mod target;

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

pub use heard::Heard;
pub use target::Target;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its lookup has not ended yet. It goes on in the background.
    #[error("{host} was not resolved within {} ms", .within.as_millis())]
    Unresolved {
        /// The name.
        host: String,
        /// How long it was waited for.
        within: Duration,
    },
    /// Its lookup has failed, and no earlier one succeeded.
    #[error("{host} was not resolved: {why}")]
    NoAddress {
        /// The name.
        host: String,
        /// What the system said.
        why: String,
    },
    /// No address answered in time.
    #[error("not connected to {tried} within {} ms", .within.as_millis())]
    Silent {
        /// The addresses, with commas.
        tried: String,
        /// How long they were waited for.
        within: Duration,
    },
    /// All addresses have failed.
    #[error("{failures}")]
    Failed {
        /// Each address and its failure, with commas.
        failures: String,
        /// The kind of the last failure.
        kind: io::ErrorKind,
    },
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Unresolved { .. } | Error::Silent { .. } => io::ErrorKind::TimedOut,
            Error::NoAddress { .. } => io::ErrorKind::NotFound,
            Error::Failed { kind, .. } => *kind,
        };
        Self::new(kind, error)
    }
}

/// Sends small messages at once, and has the kernel end the connection when the other host has been silent for `gone_after`,
/// at least 2 s. TCP itself takes minutes, or forever if it has nothing to send. A process that is stopped does not count: its
/// kernel answers.
pub fn tune(stream: &TcpStream, gone_after: Duration) -> io::Result<()> {
    const PROBES: Duration = Duration::from_secs(1);
    stream.set_nodelay(true)?;
    // It also limits how many probes may stay unanswered.
    sockopt::set_tcp_user_timeout(stream, u32::try_from(gone_after.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_tcp_keepidle(stream, PROBES)?;
    sockopt::set_tcp_keepintvl(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
