//! Streams of log entries, and heartbeats, to one node.
//!
//! Up to 64 appends are under way at once; answers come in order. A stream that is given up in the middle leaves
//! answers behind: the next one on the same connection skips them. A stream that ends with a conflict or a higher vote
//! takes its connection with it, because the other side stops reading appends then.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::stream::{self, Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::Peers;
use super::frame::put_frame;
use super::hello::Channel;
use super::link::Link;
use super::message::{APPEND, APPENDED, put_append, read_appended};
use crate::consensus::{Consensus, NodeId};

/// Appends under way at once.
const MAX_IN_FLIGHT: usize = 64;
/// The most bytes of an answer.
const MAX_APPENDED: usize = 1 << 10;
/// A connection that owes an answer for so long is given up.
const STALLED: Duration = Duration::from_secs(5);

pub(super) type AppendResult = Result<StreamAppendResult<Consensus>, RPCError<Consensus>>;

/// The connection for appends to one node.
pub(super) struct AppendLink {
    peers: Arc<Peers>,
    to: NodeId,
    channel: Channel,
    open: Option<Open>,
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
    pub(super) fn new(peers: Arc<Peers>, to: NodeId, channel: Channel) -> Self {
        Self { peers, to, channel, open: None }
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
                let link = self.peers.connect(self.to, self.channel, MAX_APPENDED).await;
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
        let session = Session { link: self, input: Some(input), out: BytesMut::new() };
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
}

impl<S: Stream<Item = AppendEntriesRequest<Consensus>> + Unpin> Session<'_, S> {
    /// Sends until an answer has come; `None` when all are answered and no more appends will come.
    async fn next(&mut self) -> std::io::Result<Option<StreamAppendResult<Consensus>>> {
        let open = self.link.open.as_mut().expect("a session holds an open connection until it fails");
        loop {
            let may_send = self.input.is_some() && open.owed < MAX_IN_FLIGHT;
            if !may_send && open.owed == open.stale && self.input.is_none() {
                return Ok(None);
            }
            tokio::select! {
                biased;
                frame = timeout(STALLED, open.link.reader.next()), if open.owed > 0 => {
                    let frame = frame.map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer to an append"))??;
                    let Some((APPENDED, body)) = frame else {
                        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the connection was closed"));
                    };
                    let result = read_appended(body).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
                    open.owed -= 1;
                    if open.stale > 0 {
                        open.stale -= 1;
                        if result.is_err() {
                            // The other side stopped reading with this answer.
                            return Err(std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "an earlier append was refused"));
                        }
                        continue;
                    }
                    return Ok(Some(result));
                }
                request = async {
                    match &mut self.input {
                        Some(input) => input.next().await,
                        None => std::future::pending().await,
                    }
                }, if may_send => {
                    let Some(request) = request else {
                        self.input = None;
                        continue;
                    };
                    self.out.clear();
                    put_frame(&mut self.out, |out| {
                        put_append(out, &request);
                        APPEND
                    });
                    open.writing = true;
                    open.link.writer.write_all(&self.out).await?;
                    open.writing = false;
                    open.owed += 1;
                }
            }
        }
    }
}
