//! Streams of log entries, and heartbeats, to one node.
//!
//! Up to 64 appends are under way at once; answers come in order. A stream that is given up in the middle leaves
//! answers behind: the next one on the same connection skips them. A stream that ends with a conflict or a higher vote
//! takes its connection with it, because the other side stops reading appends then.
//!
//! An append that only tells what is committed is not answered: of each write, this is half of all messages otherwise.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt;
use futures_util::stream::{self, Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use tokio::io::AsyncWriteExt;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::Peers;
use super::frame::{invalid, put_frame};
use super::hello::Channel;
use super::link::Link;
use super::message::{APPEND, APPENDED, COMMITTED, put_append, read_appended};
use crate::consensus::{Consensus, LogId, NodeId};

/// Appends under way at once.
const MAX_IN_FLIGHT: usize = 64;
/// The most bytes of an answer.
const MAX_APPENDED: usize = 1 << 10;
/// After a connection could not be made, none is tried for so long: openraft, which may wait by itself only once there is
/// one, would try again at once.
const AGAIN: Duration = Duration::from_millis(50);
/// A connection that owes an answer for so long is given up.
const STALLED: Duration = Duration::from_secs(5);

pub(super) type AppendResult = Result<StreamAppendResult<Consensus>, RPCError<Consensus>>;

/// The connection for appends to one incarnation of a node. openraft drops it with the member.
pub(super) struct AppendLink {
    peers: Arc<Peers>,
    to: NodeId,
    incarnation: Uuid,
    channel: Channel,
    open: Option<Open>,
    /// Before then no connection is tried.
    not_before: Option<Instant>,
}

struct Open {
    link: Link,
    /// Answers that are still to come.
    owed: usize,
    /// Of those, how many belong to a stream that was given up.
    stale: usize,
    /// Set while a frame is being written: if the write is given up, what follows would be garbage.
    writing: bool,
}

impl AppendLink {
    pub(super) fn new(peers: Arc<Peers>, to: NodeId, incarnation: Uuid, channel: Channel) -> Self {
        Self { peers, to, incarnation, channel, open: None, not_before: None }
    }

    async fn ready(&mut self) -> Result<&mut Open, RPCError<Consensus>> {
        if self.open.as_ref().is_some_and(|open| open.writing) {
            self.open = None;
        }
        let open = match self.open.take() {
            Some(mut open) => {
                open.stale = open.owed;
                open
            }
            None => {
                if let Some(not_before) = self.not_before {
                    sleep_until(not_before).await;
                }
                let link =
                    self.peers.connect(self.to, Some(self.incarnation), self.channel, MAX_APPENDED).await;
                self.not_before = link.is_err().then(|| Instant::now() + AGAIN);
                let link = link.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))?;
                Open { link, owed: 0, stale: 0, writing: false }
            }
        };
        Ok(self.open.insert(open))
    }

    /// Sends the appends of `input`, and gives their answers in order.
    pub(super) async fn stream<'s, S>(
        &'s mut self,
        input: S,
    ) -> Result<impl Stream<Item = AppendResult> + Send + 's, RPCError<Consensus>>
    where
        S: Stream<Item = AppendEntriesRequest<Consensus>> + Send + Unpin + 'static,
    {
        self.ready().await?;
        let session = Session { link: self, input: Some(input), out: BytesMut::new(), reported: None };
        Ok(stream::unfold(Some(session), |session| async move {
            let mut session = session?;
            match session.next().await {
                Ok(None) => None,
                Ok(Some(Ok(last))) => Some((Ok(Ok(last)), Some(session))),
                Ok(Some(Err(refused))) => {
                    session.link.open = None;
                    Some((Ok(Err(refused)), None))
                }
                Err(error) => {
                    session.link.open = None;
                    session.link.peers.note_reachable(session.link.to, Err(&error));
                    Some((Err(RPCError::Network(NetworkError::new(&error))), None))
                }
            }
        }))
    }
}

struct Session<'s, S> {
    link: &'s mut AppendLink,
    input: Option<S>,
    out: BytesMut,
    /// The last entry that an answer has come for, or is owed for.
    reported: Option<Option<LogId>>,
}

impl<S: Stream<Item = AppendEntriesRequest<Consensus>> + Unpin> Session<'_, S> {
    /// Sends until an answer has come; `None` when all are answered and no more appends will come.
    async fn next(&mut self) -> io::Result<Option<StreamAppendResult<Consensus>>> {
        loop {
            let open = self.link.open.as_mut().expect("a session holds an open connection until it fails");
            let may_send = self.input.is_some() && open.owed < MAX_IN_FLIGHT;
            if self.input.is_none() && open.owed == open.stale {
                return Ok(None);
            }
            let event = tokio::select! {
                biased;
                answer = open.answer(), if open.owed > 0 => Event::Answer(answer?),
                request = next_of(&mut self.input), if may_send => Event::Request(request),
            };
            match event {
                Event::Answer(result) => {
                    if open.is_stale(&result)? {
                        continue;
                    }
                    return Ok(Some(result));
                }
                Event::Request(Some(request)) => {
                    let request = self.latest(request).await;
                    self.send(&request).await?;
                }
                Event::Request(None) => self.input = None,
            }
        }
    }

    /// This request; or the next, if it is ready by the time that this one's turn comes and tells all that it does.
    async fn latest(
        &mut self,
        mut request: AppendEntriesRequest<Consensus>,
    ) -> AppendEntriesRequest<Consensus> {
        while self.is_silent(&request) {
            // Those who wait for what is committed go first.
            yield_now().await;
            match next_of(&mut self.input).now_or_never() {
                Some(Some(next)) => request = next,
                Some(None) => self.input = None,
                None => break,
            }
        }
        request
    }

    /// Whether the answer would say nothing that another has not said, or will.
    fn is_silent(&self, request: &AppendEntriesRequest<Consensus>) -> bool {
        request.entries.is_empty() && self.reported == Some(request.prev_log_id)
    }

    async fn send(&mut self, request: &AppendEntriesRequest<Consensus>) -> io::Result<()> {
        let is_silent = self.is_silent(request);
        let open = self.link.open.as_mut().expect("a session holds an open connection until it fails");
        self.out.clear();
        put_frame(&mut self.out, |out| {
            put_append(out, request);
            if is_silent { COMMITTED } else { APPEND }
        });
        open.writing = true;
        open.link.writer.write_all(&self.out).await?;
        open.writing = false;
        if !is_silent {
            open.owed += 1;
            self.reported =
                Some(request.entries.last().map_or(request.prev_log_id, |entry| Some(entry.log_id)));
        }
        Ok(())
    }
}

enum Event {
    Answer(StreamAppendResult<Consensus>),
    Request(Option<AppendEntriesRequest<Consensus>>),
}

async fn next_of<S: Stream + Unpin>(input: &mut Option<S>) -> Option<S::Item> {
    match input {
        Some(input) => input.next().await,
        None => std::future::pending().await,
    }
}

impl Open {
    async fn answer(&mut self) -> io::Result<StreamAppendResult<Consensus>> {
        let frame = timeout(STALLED, self.link.reader.next()).await;
        let frame =
            frame.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer to an append"))??;
        let Some((APPENDED, body)) = frame else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
        };
        let result = read_appended(body).map_err(|error| invalid(error.to_string()))?;
        self.owed -= 1;
        Ok(result)
    }

    /// Whether this answer is to a stream that was given up.
    fn is_stale(&mut self, answer: &StreamAppendResult<Consensus>) -> io::Result<bool> {
        if self.stale == 0 {
            return Ok(false);
        }
        self.stale -= 1;
        match answer {
            Ok(_) => Ok(true),
            // The other side stopped reading with this answer.
            Err(_) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "an earlier append was refused")),
        }
    }
}
