//! An open connection for appends, and the answers that it owes.

use std::io;

use bytes::Bytes;
use openraft::raft::StreamAppendResult;
use tokio::time::{Instant, timeout_at};

use super::STALLED;
use crate::consensus::Consensus;
use crate::peer::frame::{closed, invalid, unexpected};
use crate::peer::link::Link;
use crate::peer::message::{APPENDED, read_appended};

pub(super) struct Open {
    pub(super) link: Link,
    /// Answers that are still to come.
    pub(super) owed: usize,
    /// How many of those belong to a dropped stream.
    pub(super) stale: usize,
    /// Since when the next answer is owed, or when the stream began. Kept, as the caller may look at other things meanwhile.
    pub(super) since: Instant,
}

impl Open {
    pub(super) fn new(link: Link) -> Self {
        Self { link, owed: 0, stale: 0, since: Instant::now() }
    }

    /// The next answer, and what follows it.
    pub(super) async fn answer(&mut self) -> io::Result<(StreamAppendResult<Consensus>, Bytes)> {
        let no_answer = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer to an append");
        let next = timeout_at(self.since + STALLED, self.link.reader.next());
        let result = match next.await.map_err(no_answer)?? {
            Some((APPENDED, mut body)) => {
                let result = read_appended(&mut body).map_err(|error| invalid(error.to_string()))?;
                (result, body)
            }
            Some((kind, _)) => return Err(unexpected(kind, "an answer to an append")),
            None => return Err(closed("the connection was closed")),
        };
        self.owed -= 1;
        self.since = Instant::now();
        Ok(result)
    }

    /// Notes that one more answer will come.
    pub(super) fn owes_one(&mut self) {
        if self.owed == 0 {
            self.since = Instant::now();
        }
        self.owed += 1;
    }

    /// Whether this answer belongs to a dropped stream.
    pub(super) fn is_of_dropped(&mut self, answer: &StreamAppendResult<Consensus>) -> io::Result<bool> {
        if self.stale == 0 {
            return Ok(false);
        }
        self.stale -= 1;
        match answer {
            Ok(_) => Ok(true),
            // The other side stopped reading after this answer.
            Err(_) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "an earlier append was refused")),
        }
    }
}
