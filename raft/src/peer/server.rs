//! Answering the other nodes.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Peers;
use super::call::MAX_CALLS;
use super::frame::{invalid, put_frame};
use super::hello::Channel;
use super::incoming::Incoming;
use super::message::{
    ANSWER, APPEND, APPENDED, Answer, CALL, COMMITTED, Call, Probed, SNAPSHOT_BEGIN, SNAPSHOT_INSTALLED,
    get_numbered, put_appended, put_numbered, read_append,
};
use super::snapshot::{Begin, CHUNK};
use crate::consensus::{Consensus, Vote};
use crate::handle::{Handle, TIMEOUT, Unanswered};
use crate::members::founding::Founding;
use crate::members::{self, MembersError};
use crate::propose::proposer::Failure;
use crate::storage::record::put_vote;
use crate::storage::snapshots::Generations;

/// The most bytes of one append: what the log gives at once, and room for one entry more.
const MAX_APPEND: usize = 16 << 20;
/// The most bytes of one call: a request of 1 MiB at the door, encoded.
const MAX_CALL: usize = 8 << 20;
/// The most bytes of one call on [`Channel::Founding`], which anybody may make: the largest takes some tens.
const MAX_FOUNDING: usize = 1 << 10;
/// The most calls on one connection of [`Channel::Founding`] that are not answered yet.
const MAX_FOUNDING_CALLS: usize = 16;
/// The most connections of callers that are not known to be members.
const MAX_UNNAMED: usize = 64;
/// How long an append waits for room in the log.
const ROOM: Duration = Duration::from_secs(1);
/// Appends read ahead of Raft, and answers that wait to be written.
const QUEUE: usize = 64;

/// Accepts connections of other nodes.
pub(crate) struct Listener {
    pub(crate) listener: TcpListener,
    pub(crate) served: Arc<Served>,
}

/// What other nodes may ask of.
pub(crate) struct Served {
    pub(crate) peers: Arc<Peers>,
    pub(crate) founding: Founding,
    /// Where a snapshot is received.
    pub(crate) generations: Arc<Generations>,
    /// Absent until this node belongs to a cluster.
    pub(crate) handle: OnceLock<Handle>,
}

impl Listener {
    /// Accepts until the task is ended, and all connections with it.
    pub(crate) async fn run(self) {
        let mut connections = JoinSet::new();
        let mut unnamed = Unnamed::default();
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let served = Arc::clone(&self.served);
                    connections.spawn(served.serve(stream, from, unnamed.next()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a peer could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

/// The connections of callers that are not known to be members, the oldest first: those that have not said who calls, and
/// those on [`Channel::Founding`], which need no membership. Each takes a descriptor, and anybody can open them: so there
/// are at most [`MAX_UNNAMED`], and one more ends the oldest. A node says who it is as soon as it is connected, and
/// connects again when it next has something to ask.
#[derive(Default)]
struct Unnamed(VecDeque<oneshot::Sender<()>>);

impl Unnamed {
    /// What resolves when a connection that is accepted now has to end. It is counted until this is dropped.
    fn next(&mut self) -> oneshot::Receiver<()> {
        self.0.retain(|waiting| !waiting.is_closed());
        if self.0.len() >= MAX_UNNAMED {
            self.0.pop_front();
        }
        let (waiting, evicted) = oneshot::channel();
        self.0.push_back(waiting);
        evicted
    }
}

impl Served {
    async fn serve(self: Arc<Self>, stream: TcpStream, from: SocketAddr, evicted: oneshot::Receiver<()>) {
        // A node that stops or restarts closes its connections, and is called before it can answer: nobody's fault.
        let expected = [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::NotConnected,
            io::ErrorKind::AlreadyExists,
        ];
        match self.talk(stream, evicted).await {
            Ok(()) => {}
            Err(error) if expected.contains(&error.kind()) => {
                tracing::debug!(%from, %error, "peer connection ended")
            }
            Err(error) => tracing::warn!(%from, %error, "peer connection closed"),
        }
    }

    async fn talk(self: Arc<Self>, stream: TcpStream, mut evicted: oneshot::Receiver<()>) -> io::Result<()> {
        let too_many = || io::Error::new(io::ErrorKind::NotConnected, "too many callers that are no members");
        let (mut incoming, writer) = tokio::select! {
            accepted = Incoming::accept(&self, stream) => accepted?,
            _ = &mut evicted => return Err(too_many()),
        };
        if incoming.channel() != Channel::Founding {
            // The caller is a member: the connection is not counted any more.
            evicted.close();
        }
        match incoming.channel() {
            Channel::Founding => {
                incoming.set_max(MAX_FOUNDING);
                tokio::select! {
                    result = self.calls(incoming, writer, MAX_FOUNDING_CALLS) => result,
                    _ = evicted => Err(too_many()),
                }
            }
            Channel::Votes | Channel::Forwards | Channel::Mirror => {
                incoming.set_max(MAX_CALL);
                self.calls(incoming, writer, MAX_CALLS).await
            }
            Channel::Appends | Channel::Heartbeats => {
                incoming.set_max(MAX_APPEND);
                self.appends(incoming, writer).await
            }
            Channel::Snapshots => {
                incoming.set_max(CHUNK + 1);
                self.snapshots(incoming, writer).await
            }
        }
    }

    fn handle(&self) -> io::Result<&Handle> {
        self.handle.get().ok_or_else(|| invalid("a node that belongs to no cluster has no Raft".to_owned()))
    }

    /// Answers calls, `max` at once. Dropping the future ends the connection.
    async fn calls(
        self: Arc<Self>,
        mut incoming: Incoming,
        mut writer: OwnedWriteHalf,
        max: usize,
    ) -> io::Result<()> {
        let (answers, mut queue) = mpsc::channel::<(u64, Answer)>(QUEUE);
        let write = async {
            let mut out = BytesMut::new();
            while let Some(next) = queue.recv().await {
                let mut next = Some(next);
                while let Some((number, answer)) = next {
                    put_frame(&mut out, |out| {
                        put_numbered(out, number, &answer);
                        ANSWER
                    });
                    next = queue.try_recv().ok();
                }
                writer.write_all(&out).await?;
                out.clear();
            }
            io::Result::Ok(())
        };
        let permits = Arc::new(Semaphore::new(max));
        let read = async {
            while let Some((kind, body)) = incoming.next().await? {
                if kind != CALL {
                    return Err(invalid(format!("a frame of kind {kind} in place of a call")));
                }
                let (number, call) = get_numbered::<Call>(body)?;
                if call.channel() != incoming.channel() {
                    return Err(invalid(format!("a call on the wrong channel, {:?}", incoming.channel())));
                }
                let permit =
                    Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
                let served = Arc::clone(&self);
                let answers = answers.clone();
                tokio::spawn(async move {
                    let answer = served.answer(call).await;
                    // The caller may have gone.
                    let _ = answers.send((number, answer)).await;
                    drop(permit);
                });
            }
            Ok(())
        };
        // Whichever ends first ends the connection: the caller starts a new one.
        tokio::select! {
            result = read => result,
            result = write => result,
        }
    }

    async fn answer(&self, call: Call) -> Answer {
        match call {
            Call::Probe => Answer::Probed(self.probed()),
            Call::Adopt { cluster } => match self.founding.adopt(cluster) {
                Ok(()) => Answer::Adopted,
                Err(error) => Answer::Refused { reason: error.to_string() },
            },
            other => match self.handle.get() {
                Some(handle) => answer(handle, other).await,
                None => Answer::NotDone,
            },
        }
    }

    fn probed(&self) -> Probed {
        let members = self.peers.memberships().map(|known| {
            known.effective.membership().nodes().map(|(id, member)| (*id, member.clone())).collect()
        });
        Probed {
            incarnation: self.peers.identity.incarnation,
            cluster: self.founding.cluster(),
            pristine: self.founding.is_pristine(),
            members: members.unwrap_or_default(),
        }
    }

    async fn appends(self: Arc<Self>, mut incoming: Incoming, mut writer: OwnedWriteHalf) -> io::Result<()> {
        let shared = &self.handle()?.shared;
        // Raft may stand still, waiting for its disk. It is to do first what earlier connections have left: each new one
        // would leave as much again.
        if !matches!(timeout(TIMEOUT, shared.raft.with_raft_state(|_| ())).await, Ok(Ok(()))) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "Raft does not answer here"));
        }
        let (requests, queue) = mpsc::channel::<AppendEntriesRequest<Consensus>>(QUEUE);
        let input =
            futures_util::stream::unfold(
                queue,
                |mut queue| async move { Some((queue.recv().await?, queue)) },
            );
        let mut answers = Box::pin(shared.raft.stream_append(input));
        // Of the appends that are not answered yet.
        let (kinds, mut kinds_asked) = mpsc::unbounded_channel();
        let read = async {
            while let Some((kind, body)) = incoming.next().await? {
                if ![APPEND, COMMITTED].contains(&kind) {
                    return Err(invalid(format!("a frame of kind {kind} in place of an append")));
                }
                let request = read_append(body).map_err(|error| invalid(error.to_string()))?;
                if !request.entries.is_empty() && timeout(ROOM, shared.log.room()).await.is_err() {
                    // To wait longer would leave the caller with a connection of which it hears nothing.
                    return Err(io::Error::new(
                        io::ErrorKind::NotConnected,
                        "the log has no room: its disk hangs",
                    ));
                }
                if kinds.send(kind).is_err() || requests.send(request).await.is_err() {
                    return Ok(());
                }
            }
            Ok(())
        };
        let write = async {
            let mut out = BytesMut::new();
            while let Some(answer) = answers.next().await {
                let answer = answer.map_err(io::Error::other)?;
                if answer.is_ok() {
                    *shared.followed_at() = Some(Instant::now());
                }
                let kind = kinds_asked.try_recv().map_err(io::Error::other)?;
                if kind == COMMITTED && answer.is_ok() {
                    continue;
                }
                put_frame(&mut out, |out| {
                    put_appended(out, &answer);
                    APPENDED
                });
                writer.write_all(&out).await?;
                out.clear();
            }
            io::Result::Ok(())
        };
        // Whichever ends first ends the connection: the caller starts a new one.
        tokio::select! {
            result = read => result,
            result = write => result,
        }
    }

    async fn snapshots(
        self: Arc<Self>,
        mut incoming: Incoming,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<()> {
        while let Some((kind, body)) = incoming.next().await? {
            if kind != SNAPSHOT_BEGIN {
                return Err(invalid(format!("a frame of kind {kind} in place of a snapshot")));
            }
            let begin = Begin::read(body)?;
            let (vote, snapshot) = begin.receive(&self.generations, &mut incoming).await?;
            let response = self.handle()?.shared.raft.install_full_snapshot(vote, snapshot).await;
            let response = response.map_err(io::Error::other)?;
            let mut out = BytesMut::new();
            put_frame(&mut out, |out| {
                put_vote(out, &response.vote);
                SNAPSHOT_INSTALLED
            });
            writer.write_all(&out).await?;
        }
        Ok(())
    }
}

/// Answers what concerns Raft and the table.
async fn answer(handle: &Handle, call: Call) -> Answer {
    let raft = &handle.shared.raft;
    match call {
        Call::Vote(ballot) => match raft.vote(ballot.into()).await {
            Ok(response) => Answer::Vote(response.into()),
            Err(error) => Answer::Refused { reason: error.to_string() },
        },
        Call::PreVote(ballot) => match raft.pre_vote(ballot.into()).await {
            Ok(response) => Answer::Vote(response.into()),
            Err(error) => Answer::Refused { reason: error.to_string() },
        },
        Call::TransferLeader { from, to, last } => {
            let request = TransferLeaderRequest::new(from.into(), to, last.map(Into::into));
            let refused = match raft.handle_transfer_leader(request).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            Answer::TransferLeader { refused }
        }
        Call::Confirm { vote } => {
            let vote = Vote::from(vote);
            // Raft's own state, in turn with the votes that it grants. Its metrics may lag behind a vote that was granted.
            let is_own = raft.with_raft_state(move |state| vote.committed && *state.vote_ref() == vote);
            Answer::Confirmed(is_own.await.unwrap_or(false))
        }
        Call::Propose(commands) => match handle.propose_here(commands, Instant::now() + TIMEOUT).await {
            Ok(outcomes) => Answer::Outcomes(outcomes),
            Err(Failure::Rejected(_)) => Answer::NotDone,
            Err(Failure::Unknown) => Answer::Unknown,
        },
        Call::ReadIndex => match handle.shared.reads.confirm_here().await {
            Some(point) => point.into(),
            None => Answer::NotDone,
        },
        Call::Order(order) => match handle.order_here(order, Instant::now() + members::TIMEOUT).await {
            Ok(()) => Answer::Ordered,
            Err(MembersError::Refused(reason)) => Answer::Refused { reason },
            Err(MembersError::Unanswered(Unanswered::Unavailable)) => Answer::NotDone,
            Err(MembersError::Unanswered(Unanswered::Indeterminate)) => Answer::Unknown,
        },
        Call::Stands { keys, revision } => Answer::Stands(handle.stands_here(&keys, revision).await),
        Call::Probe | Call::Adopt { .. } => Answer::NotDone,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;
    use crate::peer::frame::FrameReader;
    use crate::peer::hello::{HELLO, Hello, MAX_HELLO, PREFACE, WELCOME, put};
    use crate::storage::identity::DataDir;
    use crate::storage::log_store::LogStore;

    const SOON: Duration = Duration::from_secs(30);

    /// A node with the id 1 that belongs to no cluster, and where it listens.
    async fn node(dir: &TempDir) -> (JoinSet<()>, SocketAddr) {
        let (data, identity) = DataDir::open(dir.path(), 1).unwrap();
        let data = Arc::new(data);
        let log = LogStore::open(&dir.path().join("log"), Default::default()).unwrap();
        let served = Arc::new(Served {
            peers: Arc::new(Peers::new(identity.clone(), String::new(), BTreeMap::new())),
            founding: Founding::new(Arc::clone(&data), log, identity),
            generations: Arc::new(Generations::open(data).unwrap()),
            handle: OnceLock::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut running = JoinSet::new();
        running.spawn(Listener { listener, served }.run());
        (running, address)
    }

    /// A stranger, who was welcome to found a cluster.
    async fn stranger(address: SocketAddr) -> FrameReader<TcpStream> {
        let mut reader = FrameReader::new(TcpStream::connect(address).await.unwrap(), MAX_HELLO);
        let mut out = BytesMut::from(&PREFACE[..]);
        let hello = Hello {
            group: 0,
            channel: Channel::Founding,
            cluster: None,
            from: 9,
            incarnation: Uuid::from_u128(9),
            to: 1,
            to_incarnation: None,
            member_as_of: None,
            url: String::new(),
        };
        put_frame(&mut out, |out| {
            put(out, &hello);
            HELLO
        });
        reader.source_mut().write_all(&out).await.unwrap();
        reader.read_raw(&mut [0; PREFACE.len()]).await.unwrap();
        assert_eq!(next(&mut reader).await.unwrap(), Some(WELCOME));
        reader
    }

    /// The kind of the next frame; `None` at the end of the connection.
    async fn next(reader: &mut FrameReader<TcpStream>) -> io::Result<Option<u8>> {
        let frame =
            timeout(SOON, reader.next()).await.expect("neither a frame nor the end of the connection");
        Ok(frame?.map(|(kind, _)| kind))
    }

    async fn call(reader: &mut FrameReader<TcpStream>, call: Call) {
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| {
            put_numbered(out, 1, &call);
            CALL
        });
        reader.source_mut().write_all(&out).await.unwrap();
    }

    /// They once stayed for as long as the stranger wished.
    #[tokio::test]
    async fn one_founding_connection_too_many_ends_the_oldest() {
        let dir = TempDir::new().unwrap();
        let (_running, address) = node(&dir).await;
        let mut strangers = Vec::new();
        for _ in 0..MAX_UNNAMED + 1 {
            strangers.push(stranger(address).await);
        }
        assert_eq!(next(&mut strangers[0]).await.unwrap(), None);
        for other in &mut strangers[1..] {
            call(other, Call::Probe).await;
            assert_eq!(next(other).await.unwrap(), Some(ANSWER));
        }
    }

    /// A stranger could once have 8 MiB kept for each connection.
    #[tokio::test]
    async fn a_founding_call_is_short() {
        let dir = TempDir::new().unwrap();
        let (_running, address) = node(&dir).await;
        let mut stranger = stranger(address).await;
        call(&mut stranger, Call::Adopt { cluster: Uuid::from_u128(7) }).await;
        assert_eq!(next(&mut stranger).await.unwrap(), Some(ANSWER));
        // Only the length of a frame of 2 KiB, and its checksum.
        stranger.source_mut().write_all(&[0, 8, 0, 0, 0, 0, 0, 0]).await.unwrap();
        assert_eq!(next(&mut stranger).await.unwrap(), None);
    }

    /// Each takes a descriptor: there once was no bound.
    #[test]
    fn one_silent_connection_too_many_ends_the_oldest_that_is_still_silent() {
        let mut unnamed = Unnamed::default();
        let mut connections: Vec<_> = (0..MAX_UNNAMED).map(|_| unnamed.next()).collect();
        // The caller of the first is known by now.
        drop(connections.remove(0));
        connections.push(unnamed.next());
        let is_evicted = |evicted: &mut oneshot::Receiver<()>| {
            matches!(evicted.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        assert!(!connections.iter_mut().any(is_evicted));
        connections.push(unnamed.next());
        assert!(is_evicted(&mut connections[0]));
        assert!(!connections[1..].iter_mut().any(is_evicted));
    }
}
