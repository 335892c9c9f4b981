//! Serving the other nodes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use openraft::errors::RaftError;
use openraft::raft::{TransferLeaderRequest, VoteResponse};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::call::MAX_CALLS;
use super::directory::Directory;
use super::frame::{FrameWriter, invalid, unexpected};
use super::handshake::Channel;
use super::link::Incoming;
use super::message::{ANSWER, Answer, CALL, Call, get_numbered, put_numbered};
use super::silence::NO_TERM;
use super::snapshot::{Receiver, Turn};
use super::transport::{Connection, Transport};
use super::{append, heartbeat, snapshot};
use crate::applied::state_machine::Raft;
use crate::consensus::{Consensus, NodeId, Vote};
use crate::lines::{Lines, warn_closed};
use crate::storage::log_store::{HANGS, LogStore};
use crate::storage::snapshots::Generations;

/// The most bytes of one append: what the log gives at once, and room for one entry more.
const MAX_APPEND: usize = 16 << 20;
/// The most bytes of one heartbeat, which has no entries.
const MAX_HEARTBEAT: usize = 1 << 10;
/// The most bytes of one call: an HTTP request of 1 MiB, encoded.
const MAX_CALL: usize = 8 << 20;
/// The most bytes of one call on [`Channel::Founding`], which is open to anybody: the largest takes some tens.
const MAX_FOUNDING: usize = 1 << 10;
/// The most unanswered calls on one connection of [`Channel::Founding`].
const MAX_FOUNDING_CALLS: usize = 16;
/// The most connections of callers that are not known to be members.
const MAX_UNNAMED: usize = 64;
/// The most connections of one member on one channel.
const MAX_NAMED: usize = 8;
/// How long a node that has begun to write a vote refuses pre-votes: until the one that it voted for must have been heard, if links
/// are long, and three times as long as the vote took to write. For the votes for that one, its own vote as a leader, and its first
/// entry have to be written as well, by disks that are likely as slow. openraft lets others campaign 0.5 to 1 s after a vote:
/// over slow disks and links, each would depose the one before.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Elections succeed with flushes of up to this. A longer one is that of a disk that hung.
const SLOWEST: Duration = Duration::from_secs(1);
/// Answers that wait to be written.
const QUEUE: usize = 64;

/// What a node answers to calls that Raft does not answer by itself.
pub(crate) trait Service: Send + Sync + 'static {
    fn answer(&self, call: Call) -> impl Future<Output = Answer> + Send;
}

/// Serves the other nodes.
pub(crate) struct Server<S> {
    pub(crate) directory: Arc<Directory>,
    pub(crate) log: LogStore,
    /// Where a snapshot is received.
    pub(crate) generations: Arc<Generations>,
    /// Absent until this node belongs to a cluster. To be set before [`Directory`] lets members in.
    pub(crate) raft: OnceLock<Raft>,
    pub(crate) service: S,
    /// The connections of the members.
    pub(crate) named: Mutex<BTreeMap<(NodeId, Channel), Alike>>,
    /// Lines about connections that were refused or broke.
    pub(crate) lines: Lines,
    /// Which snapshot is received.
    pub(crate) turn: Turn,
    /// Why this node cannot go on.
    pub(crate) fault: watch::Sender<Option<String>>,
}

/// Connections that are alike, the oldest first. Each takes a descriptor and memory, so there is a maximum, and one more ends
/// the oldest.
///
/// - [`MAX_UNNAMED`] of callers that are not known to be members: they have not sent a hello, are named by no membership, or
///   are on [`Channel::Founding`], which requires none. Anybody can open them. A node sends its hello as soon as it is
///   connected, and connects again when it next needs to.
/// - [`MAX_NAMED`] of one member on one channel. It opens another when it has given up the one before.
#[derive(Default)]
pub(crate) struct Alike(VecDeque<oneshot::Sender<()>>);

impl Alike {
    /// Counts a new connection, until the result is dropped. It resolves when the connection has to end.
    fn next(&mut self, max: usize) -> oneshot::Receiver<()> {
        self.0.retain(|waiting| !waiting.is_closed());
        if self.0.len() >= max {
            self.0.pop_front();
        }
        let (waiting, evicted) = oneshot::channel();
        self.0.push_back(waiting);
        evicted
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(oneshot::Sender::is_closed)
    }
}

impl<S: Service> Server<S> {
    /// Accepts connections. Dropping the future ends them all.
    pub(crate) async fn run(self: Arc<Self>, transport: Arc<dyn Transport>) {
        let mut connections = JoinSet::new();
        let mut unnamed = Alike::default();
        loop {
            match transport.accept().await {
                Ok(connection) => {
                    connections.spawn(Arc::clone(&self).serve(connection, unnamed.next(MAX_UNNAMED)));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection from a peer");
                    sleep(Duration::from_millis(100)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }

    async fn serve(self: Arc<Self>, connection: Connection, evicted: oneshot::Receiver<()>) {
        let from = connection.peer.clone();
        // A node that stops or restarts closes its connections, and is called before it can answer: nobody's fault.
        let expected = [
            ErrorKind::ConnectionReset,
            ErrorKind::BrokenPipe,
            ErrorKind::NotConnected,
            ErrorKind::AlreadyExists,
        ];
        match Arc::clone(&self).talk(connection, evicted).await {
            Ok(()) => {}
            Err(error) if expected.contains(&error.kind()) => {
                tracing::debug!(%from, %error, "peer connection ended")
            }
            Err(error) => warn_closed(&self.lines, &from, &error),
        }
    }

    async fn talk(
        self: Arc<Self>,
        connection: Connection,
        mut evicted: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        let too_many = || io::Error::new(ErrorKind::NotConnected, "too many connections like it");
        let (incoming, writer) = tokio::select! {
            biased;
            accepted = Incoming::accept(Arc::clone(&self.directory), connection) => accepted?,
            _ = &mut evicted => return Err(too_many()),
        };
        if incoming.channel != Channel::Founding && self.directory.member(incoming.from).is_some() {
            // The caller is a member: its connection is not counted among those of strangers any more.
            evicted = self.named(incoming.from, incoming.channel);
        }
        tokio::select! {
            biased;
            _ = evicted => Err(too_many()),
            result = self.serve_channel(incoming, writer) => result,
        }
    }

    /// Counts a connection of a member. It resolves when the connection has to end.
    fn named(&self, from: NodeId, channel: Channel) -> oneshot::Receiver<()> {
        let mut named = self.named.lock().expect("no panic while the connections are counted");
        named.retain(|_, connections| !connections.is_empty());
        named.entry((from, channel)).or_default().next(MAX_NAMED)
    }

    async fn serve_channel(self: Arc<Self>, mut incoming: Incoming, writer: FrameWriter) -> io::Result<()> {
        match incoming.channel {
            Channel::Founding => {
                incoming.set_max(MAX_FOUNDING);
                self.calls(incoming, writer, MAX_FOUNDING_CALLS).await
            }
            Channel::Votes | Channel::Forwards | Channel::Mirror => {
                incoming.set_max(MAX_CALL);
                self.calls(incoming, writer, MAX_CALLS).await
            }
            Channel::Appends => {
                incoming.set_max(MAX_APPEND);
                append::receive(self.raft()?, &self.log, &self.directory, incoming, writer).await
            }
            Channel::Heartbeats => {
                incoming.set_max(MAX_HEARTBEAT);
                heartbeat::receive(self.raft()?, &self.log, &self.directory, incoming, writer).await
            }
            Channel::Snapshots => {
                incoming.set_max(snapshot::CHUNK + 1);
                let Self { directory, log, generations, fault, turn, lines, .. } = &*self;
                let receiver = Receiver { directory, log, generations, fault, turn, lines };
                snapshot::receive(self.raft()?, receiver, incoming, writer).await
            }
        }
    }

    fn raft(&self) -> io::Result<&Raft> {
        self.raft.get().ok_or_else(|| invalid("a node that belongs to no cluster has no Raft"))
    }

    /// Answers calls, `max` at once. Dropping the future ends the connection.
    async fn calls(
        self: Arc<Self>,
        mut incoming: Incoming,
        mut writer: FrameWriter,
        max: usize,
    ) -> io::Result<()> {
        let (answers, mut queue) = mpsc::channel::<(u64, Answer)>(QUEUE);
        let write = async {
            while let Some(next) = queue.recv().await {
                let mut next = Some(next);
                while let Some((number, answer)) = next {
                    writer.put(ANSWER, |out| put_numbered(out, number, &answer));
                    next = queue.try_recv().ok();
                }
                writer.flush().await?;
            }
            Ok(())
        };
        let permits = Arc::new(Semaphore::new(max));
        let read = async {
            while let Some((kind, body)) = incoming.next().await? {
                if kind != CALL {
                    return Err(unexpected(kind, "a call"));
                }
                let (number, call) = get_numbered::<Call>(body)?;
                if call.channel() != incoming.channel {
                    return Err(invalid(format!("a call on the wrong channel, {:?}", incoming.channel)));
                }
                if let Some((vote, newest)) = call.speaker() {
                    incoming.check_vote(&vote, newest)?;
                    // A vote is committed once its node is elected.
                    if vote.committed != matches!(call, Call::TransferLeader { .. }) {
                        return Err(invalid("a ballot of a leader, or a transfer by a node that is none"));
                    }
                }
                let permit =
                    Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
                let (server, answers) = (Arc::clone(&self), answers.clone());
                tokio::spawn(async move {
                    let answer = server.answer(call).await;
                    // The caller may have gone.
                    let _ = answers.send((number, answer)).await;
                    drop(permit);
                });
            }
            Ok(())
        };
        // Whichever ends first ends the connection: the caller makes a new one. Answers go first: there are at most `max`
        // before more calls are read.
        tokio::select! {
            biased;
            result = write => result,
            result = read => result,
        }
    }

    async fn answer(&self, call: Call) -> Answer {
        match (call, self.raft.get()) {
            (Call::Vote(ballot), Some(raft)) => voted(raft.vote(ballot.into()).await),
            (Call::PreVote(ballot), Some(raft)) => {
                let refuses = self.has_just_voted() || self.directory.campaign.refuses(&ballot);
                let refused = |answer| VoteResponse { vote_granted: false, ..answer };
                let answer = raft.pre_vote(ballot.into()).await;
                voted(if refuses { answer.map(refused) } else { answer })
            }
            (Call::TransferLeader { from, to, last }, Some(raft)) => {
                let request = TransferLeaderRequest::new(from.into(), to, last.map(Into::into));
                let refused = match raft.handle_transfer_leader(request).await {
                    Ok(accepted) => accepted.err().map(|error| error.to_string()),
                    Err(error) => Some(error.to_string()),
                };
                Answer::TransferLeader { refused }
            }
            (Call::Confirm { vote }, Some(raft)) => {
                let vote = Vote::from(vote);
                if !vote.committed {
                    return Answer::Confirmed(false);
                }
                // Raft's own state, in turn with the votes that it grants: its metrics may lag behind a granted vote.
                let is_own = raft.with_raft_state(move |state| *state.vote_ref() == vote);
                let is_own = is_own.await.unwrap_or(false);
                let hangs = vote.leader_id.term == NO_TERM && self.log.flushing() > HANGS;
                if hangs { Answer::NotDone } else { Answer::Confirmed(is_own) }
            }
            (call, _) => self.service.answer(call).await,
        }
    }
}

impl<S> Server<S> {
    /// Whether the node that this one has voted for may be on its way to lead.
    fn has_just_voted(&self) -> bool {
        let voted = self.log.voted();
        voted.is_some_and(|(at, took)| at.elapsed() < PATIENCE + 3 * took.min(SLOWEST))
    }
}

fn voted(result: Result<VoteResponse<Consensus>, RaftError<Consensus>>) -> Answer {
    match result {
        Ok(response) => Answer::Vote(response.into()),
        Err(error) => Answer::Refused { reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each takes a descriptor: there once was no bound.
    #[test]
    fn one_silent_connection_too_many_ends_the_oldest_that_is_still_silent() {
        let mut unnamed = Alike::default();
        let mut next = || unnamed.next(MAX_UNNAMED);
        let mut connections: Vec<_> = (0..MAX_UNNAMED).map(|_| next()).collect();
        // The caller of the first is known by now.
        drop(connections.remove(0));
        connections.push(next());
        let is_evicted = |evicted: &mut oneshot::Receiver<()>| {
            matches!(evicted.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        assert!(!connections.iter_mut().any(is_evicted));
        connections.push(next());
        assert!(is_evicted(&mut connections[0]));
        assert!(!connections[1..].iter_mut().any(is_evicted));
    }
}
