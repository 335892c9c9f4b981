//! Streams of log entries, and heartbeats, to one node.
//!
//! Up to 64 appends are in flight at once; answers come in order. A stream that is dropped midway leaves answers behind: the
//! next one on the same connection skips them. A stream that ends with a conflict or a higher vote takes its connection with
//! it, because the other side stops reading appends then.
//!
//! A follower that lacks what it acknowledged in this term has lost it. The entry may be committed, so it is not sent again: the
//! follower is refused from then on ([`copies`](super::copies)). Raft never learns of the conflict, which it would retry for ever.
//! Before a snapshot is sent it is asked for the last of them ([`acknowledged`](super::acknowledged)).
//!
//! An append that only announces what is committed is not answered: those answers would be half of all messages of a write.
//!
//! What a stream has not delivered stays in the memory of the leader, as openraft purges nothing of it. So a stream that makes
//! too little progress ends, also in the middle of an append: openraft then purges, and sends the node a snapshot.
//!
//! A stream lasts for as long as the node leads, and a connection must not: once it is stale, another is made beside it
//! ([`successor`](super::successor)). When that is there, the stream sends no more until all answers have come, and goes on with it.

mod open;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use self::open::Open;
use super::directory::{Directory, Target};
use super::frame::{FrameWriter, invalid, unexpected};
use super::handshake::Channel;
use super::known::Process;
use super::link::Incoming;
use super::message::{APPEND, APPENDED, COMMITTED, put_append, put_appended, read_append};
use super::successor::Successor;
use crate::applied::state_machine::Raft;
use crate::consensus::{Consensus, LogId};
use crate::storage::log_store::LogStore;

/// The most appends in flight.
const MAX_IN_FLIGHT: usize = 64;
/// The most bytes of an answer.
const MAX_APPENDED: usize = 1 << 10;
/// Pause after a failed connection attempt. openraft itself pauses only once a connection was made.
const AGAIN: Duration = Duration::from_millis(50);
/// A connection that owes an answer for so long is given up.
const STALLED: Duration = Duration::from_secs(5);
/// How long a receiver waits for Raft to answer, before it reads the first append.
const RAFT_ANSWERS: Duration = Duration::from_secs(5);
/// How long a received append waits for room in the log.
const ROOM: Duration = Duration::from_secs(1);
/// Of the error of a stream that makes too little progress.
const LEFT_BEHIND: io::ErrorKind = io::ErrorKind::ResourceBusy;
const OPEN: &str = "a session holds an open connection until it fails";
/// Appends read ahead of Raft.
const QUEUE: usize = 64;

type AppendResult = Result<StreamAppendResult<Consensus>, RPCError<Consensus>>;

/// The connection for appends to one incarnation of a node. openraft drops it with the member.
pub(super) struct AppendLink {
    directory: Arc<Directory>,
    target: Target,
    open: Option<Open>,
    successor: Successor,
    /// The term in which this node leads, as the last append said.
    term: u64,
    /// No connection is attempted before.
    not_before: Instant,
    /// Whether the node has acknowledged something since it was last said to be slow.
    follows: bool,
    /// See [`LogStore::needed_from`].
    needed_from: watch::Receiver<u64>,
    /// Whether an error of a stream is taken for one of the node: it is logged once until a connection is made.
    tells: bool,
}

impl AppendLink {
    pub(super) fn new(directory: Arc<Directory>, target: Target, needed_from: watch::Receiver<u64>) -> Self {
        Self {
            directory,
            target,
            open: None,
            successor: Successor::new(),
            term: 0,
            not_before: Instant::now(),
            follows: false,
            needed_from,
            tells: true,
        }
    }

    /// For one append, whose errors the caller tells of. Nothing is kept for its answer.
    pub(super) fn for_one(directory: Arc<Directory>, target: Target) -> Self {
        Self { tells: false, ..Self::new(directory, target, watch::channel(0).1) }
    }

    /// A connection that another append may be sent on.
    async fn ready(&mut self) -> io::Result<&mut Open> {
        // A frame whose write was dropped midway is not completed: nobody would count its answer.
        let open = match self.open.take().filter(|open| open.link.writer.is_flushed()) {
            Some(open) => open,
            None => {
                sleep_until(self.not_before).await;
                self.successor = Successor::new();
                let link = self.directory.connect(self.target, MAX_APPENDED).await;
                self.not_before = Instant::now() + if link.is_err() { AGAIN } else { Duration::ZERO };
                Open::new(link?)
            }
        };
        Ok(self.open.insert(open))
    }

    /// Goes on with another connection if it is there and the open one owes no answer, or none that binds.
    fn renew(&mut self) {
        let may_go = |open: &Open| open.owed == 0 || self.target.channel == Channel::Heartbeats;
        if self.open.as_ref().is_some_and(may_go)
            && let Some(link) = self.successor.take()
        {
            self.open = Some(Open::new(link));
        }
    }

    /// Begins to make another connection if the open one is stale. An error if the open one must not be used any more.
    fn look(&mut self) -> io::Result<()> {
        let Self { directory, target, successor, .. } = self;
        self.open.as_ref().map_or(Ok(()), |open| successor.look(&open.link, directory, *target, MAX_APPENDED))
    }

    /// An error if the node answers that it lacks what it has acknowledged.
    fn check_kept(&self, answer: &StreamAppendResult<Consensus>) -> io::Result<()> {
        let Some(follower) = self.follower() else { return Ok(()) };
        match answer {
            // What acknowledges a heartbeat need not be on disk.
            Ok(Some(last)) if self.target.channel == Channel::Appends => {
                self.directory.note_acknowledged(follower, self.term, *last);
                self.directory.note_matched(follower, *last);
            }
            Err(StreamAppendError::Conflict(lacked)) => {
                return self.directory.check_kept(follower, self.term, *lacked);
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes that the node has answered, and what it says behind that: it has something to say only on the channel for heartbeats.
    fn note_answer(&self, said: Bytes) {
        let Some(follower) = self.follower() else { return };
        self.directory.note_answer(follower);
        if self.target.channel == Channel::Heartbeats {
            self.directory.callable.note_said(follower, said);
        }
    }

    fn follower(&self) -> Option<Process> {
        self.target.incarnation.map(|incarnation| (self.target.to, incarnation))
    }

    /// Sends the appends of `input`, and gives their answers in order.
    pub(super) async fn stream<'s, S>(
        &'s mut self,
        input: S,
    ) -> Result<impl Stream<Item = AppendResult> + Send + 's, RPCError<Consensus>>
    where
        S: Stream<Item = AppendEntriesRequest<Consensus>> + Send + Unpin + 'static,
    {
        let open = self.ready().await.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))?;
        (open.stale, open.since) = (open.owed, Instant::now());
        let session = Session { link: self, input: Some(input), reported: None, lacks: None };
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
                    // One that is slow is reached.
                    if session.link.tells && error.kind() != LEFT_BEHIND {
                        session.link.directory.note_reachable(session.link.target.to, Err(&error));
                    }
                    Some((Err(RPCError::Network(NetworkError::new(&error))), None))
                }
            }
        }))
    }
}

struct Session<'s, S> {
    link: &'s mut AppendLink,
    input: Option<S>,
    /// The last entry that an answer has come for, or is owed for.
    reported: Option<Option<LogId>>,
    /// The index of the first entry that the other side may lack. A heartbeat delivers none.
    lacks: Option<u64>,
}

impl<S: Stream<Item = AppendEntriesRequest<Consensus>> + Unpin> Session<'_, S> {
    /// Sends until an answer has come; `None` when all are answered and no more appends will come.
    async fn next(&mut self) -> io::Result<Option<StreamAppendResult<Consensus>>> {
        loop {
            self.link.renew();
            let open = self.link.open.as_mut().expect(OPEN);
            // The last answers come before the next connection.
            let may_send =
                self.input.is_some() && open.owed < MAX_IN_FLIGHT && !self.link.successor.is_made();
            if self.input.is_none() && open.owed == open.stale {
                return Ok(None);
            }
            tokio::select! {
                biased;
                answer = open.answer(), if open.owed > 0 => {
                    let (answer, rest) = answer?;
                    if let Err(StreamAppendError::HigherVote(vote)) = &answer {
                        self.link.directory.check_term(vote.leader_id.term)?;
                    }
                    let is_of_dropped = open.is_of_dropped(&answer)?;
                    self.link.note_answer(rest);
                    self.link.check_kept(&answer)?;
                    if !is_of_dropped {
                        if let (Some(lacks), Ok(Some(matching))) = (&mut self.lacks, &answer) {
                            *lacks = matching.index() + 1;
                            self.link.follows = true;
                        }
                        return Ok(Some(answer));
                    }
                }
                () = is_left_behind(&mut self.link.needed_from, self.lacks) => return Err(self.left_behind()),
                () = self.link.successor.changed() => self.link.look()?,
                request = next_of(&mut self.input), if may_send => match request {
                    Some(request) => {
                        let request = self.latest(request).await;
                        self.send(&request).await?;
                    }
                    None => self.input = None,
                },
            }
        }
    }

    /// This request; or the next, if it is ready by the time that this one's turn comes and includes all that it announces.
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

    /// One that is new, or was away, is not slow: it only has nothing of the log.
    fn left_behind(&mut self) -> io::Error {
        if std::mem::take(&mut self.link.follows) {
            tracing::warn!(
                peer = self.link.target.to,
                "a node takes the log so slowly that it is sent a snapshot instead"
            );
        }
        io::Error::new(LEFT_BEHIND, "the node takes the log too slowly")
    }

    /// Whether the answer would say nothing that another has not said, or will.
    fn is_silent(&self, request: &AppendEntriesRequest<Consensus>) -> bool {
        request.entries.is_empty() && self.reported == Some(request.prev_log_id)
    }

    async fn send(&mut self, request: &AppendEntriesRequest<Consensus>) -> io::Result<()> {
        let is_silent = self.is_silent(request);
        if self.link.target.channel == Channel::Appends {
            self.lacks.get_or_insert(request.prev_log_id.map_or(0, |id| id.index() + 1));
        }
        let open = self.link.open.as_mut().expect(OPEN);
        let kind = if is_silent { COMMITTED } else { APPEND };
        open.link.writer.put(kind, |out| put_append(out, request));
        tokio::select! {
            biased;
            flushed = open.link.writer.flush() => flushed?,
            () = is_left_behind(&mut self.link.needed_from, self.lacks) => return Err(self.left_behind()),
        }
        self.link.term = request.vote.leader_id.term;
        if !is_silent {
            open.owes_one();
            self.reported =
                Some(request.entries.last().map_or(request.prev_log_id, |entry| Some(entry.log_id)));
        }
        let ends = request.entries.first().zip(request.entries.last());
        if let (Some(follower), Some((first, last))) = (self.link.follower(), ends) {
            let run = first.log_id.index()..=last.log_id.index();
            self.link.directory.note_sent(follower, self.link.term, run);
        }
        Ok(())
    }
}

/// Resolves when the log is no longer kept for a node that lacks it from this index on.
async fn is_left_behind(needed_from: &mut watch::Receiver<u64>, lacks: Option<u64>) {
    match lacks {
        Some(lacks) if needed_from.wait_for(|from| lacks < *from).await.is_ok() => {}
        // The log has ended.
        _ => std::future::pending().await,
    }
}

async fn next_of<S: Stream + Unpin>(input: &mut Option<S>) -> Option<S::Item> {
    match input {
        Some(input) => input.next().await,
        None => std::future::pending().await,
    }
}

/// Reads an append of the caller.
pub(super) fn checked(
    incoming: &Incoming,
    log: &LogStore,
    body: Bytes,
) -> io::Result<AppendEntriesRequest<Consensus>> {
    let request = read_append(body).map_err(|error| invalid(error.to_string()))?;
    let entries = request.entries.iter().map(|entry| entry.log_id);
    let newest = entries.clone().chain(request.prev_log_id).chain(request.leader_commit).max();
    incoming.check_vote(&request.vote, newest)?;
    let named = request.prev_log_id.into_iter().chain(entries);
    incoming.check_log(log, &request.vote, named).map(|()| request)
}

/// Receives appends, and answers them.
pub(super) async fn receive(
    raft: &Raft,
    log: &LogStore,
    directory: &Directory,
    mut incoming: Incoming,
    mut writer: FrameWriter,
) -> io::Result<()> {
    let not_now = |why| io::Error::new(io::ErrorKind::NotConnected, why);
    // Raft may be blocked by its disk. It should first do what earlier connections have left: each new one would leave as
    // much again.
    if !matches!(timeout(RAFT_ANSWERS, raft.with_raft_state(|_| ())).await, Ok(Ok(()))) {
        return Err(not_now("Raft does not answer here"));
    }
    let leader = incoming.caller();
    let (requests, queue) = mpsc::channel::<AppendEntriesRequest<Consensus>>(QUEUE);
    let input = stream::unfold(queue, |mut queue| async move { Some((queue.recv().await?, queue)) });
    let mut answers = Box::pin(raft.stream_append(input));
    // Of the appends that are not answered yet.
    let (kinds, mut kinds_received) = mpsc::unbounded_channel();
    let read = async {
        while let Some((kind, body)) = incoming.next().await? {
            if ![APPEND, COMMITTED].contains(&kind) {
                return Err(unexpected(kind, "an append"));
            }
            let request = checked(&incoming, log, body)?;
            if !request.entries.is_empty() && timeout(ROOM, log.room()).await.is_err() {
                // A longer wait would leave the caller with a connection that it hears nothing from.
                return Err(not_now("the log has no room: its disk hangs"));
            }
            if kinds.send(kind).is_err() || requests.send(request).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    };
    let write = async {
        while let Some(answer) = answers.next().await {
            let answer = answer.map_err(io::Error::other)?;
            if answer.is_ok() {
                directory.note_followed(leader);
            }
            let kind = kinds_received.try_recv().map_err(io::Error::other)?;
            if kind == APPEND || answer.is_err() {
                writer.put(APPENDED, |out| put_appended(out, &answer));
                writer.flush().await?;
            }
        }
        Ok(())
    };
    // Whichever ends first ends the connection: the caller makes a new one. Answers go first: there are at most as many as
    // requests were read.
    tokio::select! {
        biased;
        result = write => result,
        result = read => result,
    }
}
