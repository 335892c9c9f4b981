//! Sending a snapshot to another node, on a connection of its own.
//!
//! ```text
//! sender                                     receiver
//!   BEGIN   vote, what it covers, length ──▶   a new folder beside its own snapshots
//!   CHUNK   up to 1 MiB of the table     ──▶   written as they come
//!   …
//!   END                                  ──▶   synced, read back, given to Raft, which installs it
//!                                        ◀──   INSTALLED   its vote
//! ```
//! The next chunk is read while one is sent. Neither side holds more than a few chunks in memory. A connection that breaks
//! leaves nothing behind.
//!
//! A node receives one snapshot at a time: each takes room on its disk, and a sender may have gone without a word. So a new one ends the
//! one before, and waits until that is installed or removed. If this takes long, the new one is refused with the reason. Only the leader
//! that this node's Raft would follow may begin one.
//!
//! What became of transfers that failed is in [`deliveries`](super::deliveries).
//!
//! A node that cannot store a snapshot stops, as one that cannot write its log does.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use super::directory::{Directory, Target, refusal};
use super::frame::{FrameWriter, closed, invalid, unexpected};
use super::link::{Incoming, Link};
use super::message::{SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_END, SNAPSHOT_INSTALLED, SNAPSHOT_REFUSED};
use crate::applied::state_machine::Raft;
use crate::consensus::{NodeId, SnapshotMeta, Vote};
use crate::lines::Lines;
use crate::storage::log_store::LogStore;
use crate::storage::record::{RecordError, put_meta, put_vote, read_meta, read_vote};
use crate::storage::snapshots::generation::{Reader, Snapshot};
use crate::storage::snapshots::{Generations, is_passing};

/// The size of a chunk in bytes.
pub(super) const CHUNK: usize = 1 << 20;
/// The most characters of a reason that are kept.
const MAX_REASON: usize = 1_000;
/// How long telling a reason may take.
const TELL: Duration = Duration::from_secs(1);
/// How long Raft may take to say whom it would follow.
const RAFT_ANSWERS: Duration = Duration::from_secs(5);
/// How often the progress of a transfer is logged.
const LOG_EVERY: Duration = Duration::from_secs(2);

/// Why a snapshot was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undeliverable {
    /// No connection was made. Who cannot be reached is known already.
    #[error("{0}")]
    Unreached(io::Error),
    /// This node cannot read its own snapshot.
    #[error("{0}")]
    Unreadable(io::Error),
    /// The connection broke, or the other side refused.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// The errors of a connection that the other side has closed, whichever comes first.
const HAS_CLOSED: [ErrorKind; 4] = [
    ErrorKind::ConnectionReset,
    ErrorKind::ConnectionAborted,
    ErrorKind::BrokenPipe,
    ErrorKind::UnexpectedEof,
];

/// Sends a snapshot, and waits until it is installed. Gives the other side's vote.
pub(super) async fn send(
    directory: &Directory,
    target: Target,
    vote: Vote,
    Snapshot { meta, snapshot: generation }: Snapshot,
) -> Result<Vote, Undeliverable> {
    let mut link = directory.connect(target, CHUNK).await.map_err(Undeliverable::Unreached)?;
    let bytes = generation.head().bytes;
    // Attempts are far apart.
    let mut progress = Progress::new("sent", target.to, &meta, bytes, true);
    link.writer.put(SNAPSHOT_BEGIN, |out| {
        put_vote(out, &vote);
        out.put_u64_le(bytes);
        put_meta(out, &meta);
    });
    let mut reader = generation.open().await.map_err(Undeliverable::Unreadable)?;
    let mut read = async || reader.run(next_chunk).await.map_err(Undeliverable::Unreadable);
    let mut chunk = read().await?;
    while !chunk.is_empty() {
        link.writer.put(SNAPSHOT_CHUNK, |out| out.extend_from_slice(&chunk));
        let sent = chunk.len();
        ((), chunk) = tokio::try_join!(biased; flush(&mut link), read())?;
        progress.add(sent);
    }
    link.writer.put(SNAPSHOT_END, |out| out.put_u64_le(bytes));
    let flushed = link.writer.flush().await;
    link.check(flushed).await?;
    let vote = installed(link.reader.next().await)?;
    progress.end("snapshot sent and installed");
    Ok(directory.check_term(vote.leader_id.term).map(|()| vote)?)
}

/// Writes all that is queued, unless the other side says before that it refuses, or closes.
async fn flush(link: &mut Link) -> Result<(), Undeliverable> {
    tokio::select! {
        biased;
        answer = link.reader.next() => match installed(answer) {
            Ok(_) => Err(invalid("a snapshot was installed before it was sent").into()),
            Err(error) => Err(error.into()),
        },
        flushed = link.writer.flush() => Ok(link.check(flushed).await?),
    }
}

impl Link {
    /// The better error, if writing failed: the other side may have said why it closed.
    async fn check(&mut self, flushed: io::Result<()>) -> io::Result<()> {
        let Err(error) = flushed else { return Ok(()) };
        let said = timeout(TELL, self.reader.next()).await.unwrap_or(Ok(None));
        Err(installed(said).err().unwrap_or(error))
    }
}

/// The other side's vote, which comes with its answer to a snapshot.
fn installed(answer: io::Result<Option<(u8, Bytes)>>) -> io::Result<Vote> {
    match answer {
        Ok(Some((SNAPSHOT_INSTALLED, mut body))) => read_vote(&mut body).map_err(malformed),
        Ok(Some((SNAPSHOT_REFUSED, body))) => {
            let said = String::from_utf8_lossy(&body);
            // It is printed on the terminals of operators.
            let said: String = said.chars().filter(|it| !it.is_control()).take(MAX_REASON).collect();
            Err(io::Error::other(format!("the node refuses it: {said}")))
        }
        Ok(Some((kind, _))) => Err(unexpected(kind, "an answer to a snapshot")),
        Err(error) if !HAS_CLOSED.contains(&error.kind()) => Err(error),
        _ => Err(closed("the node closed the connection before the snapshot was installed")),
    }
}

/// The next chunk of a table; empty at its end.
fn next_chunk(reader: &mut Reader) -> io::Result<Vec<u8>> {
    let mut chunk = Vec::with_capacity(CHUNK);
    reader.take(CHUNK as u64).read_to_end(&mut chunk)?;
    Ok(chunk)
}

/// Receives snapshots, and has Raft install them.
///
/// Of one that covers no more than what it has accepted, Raft says so at once, though that may not be on disk yet. The leader takes
/// the answer for an acknowledgement. If a power cut took what was acknowledged, openraft would send this node what it cannot
/// take, again and again, until it sends another snapshot. So the answer waits until what the snapshot covers is applied, as a
/// snapshot or from the log, and the log is on disk.
pub(super) async fn receive(
    raft: &Raft,
    receiver: Receiver<'_>,
    mut incoming: Incoming,
    mut writer: FrameWriter,
) -> io::Result<()> {
    while let Some((kind, body)) = incoming.next().await? {
        if kind != SNAPSHOT_BEGIN {
            return Err(unexpected(kind, "a snapshot"));
        }
        match receiver.install_one(raft, body, &mut incoming).await {
            Ok(vote) => writer.put(SNAPSHOT_INSTALLED, |out| put_vote(out, &vote)),
            Err(failed) => {
                tell(&failed, &mut incoming, &mut writer).await;
                return Err(receiver.failed(failed, incoming.from));
            }
        }
        writer.flush().await?;
        receiver.directory.note_received(incoming.from);
    }
    Ok(())
}

/// Tells the sender why its snapshot is not installed, and reads on for a moment: to close a connection before all is read may take
/// with it what was written.
async fn tell(failed: &Failed, incoming: &mut Incoming, writer: &mut FrameWriter) {
    writer.put(SNAPSHOT_REFUSED, |out| out.extend_from_slice(failed.to_string().as_bytes()));
    let told = async {
        writer.flush().await?;
        while incoming.next().await?.is_some() {}
        io::Result::Ok(())
    };
    // The sender may have gone.
    let _ = timeout(TELL, told).await;
}

/// Why a snapshot is not received.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// This node cannot store it.
    #[error("it cannot be stored: {0}")]
    Disk(io::Error),
    #[error("{0}")]
    Other(#[from] io::Error),
}

impl Failed {
    /// Of an error of the disk, unless the system lacks something for a while.
    fn to_store(error: io::Error) -> Self {
        if is_passing(&error) { Self::Other(error) } else { Self::Disk(error) }
    }
}

/// Where a node puts a snapshot that it is sent.
#[derive(Clone, Copy)]
pub(super) struct Receiver<'a> {
    pub(super) directory: &'a Directory,
    pub(super) log: &'a LogStore,
    pub(super) generations: &'a Arc<Generations>,
    /// Why this node cannot go on.
    pub(super) fault: &'a watch::Sender<Option<String>>,
    pub(super) turn: &'a Turn,
    pub(super) lines: &'a Lines,
}

/// The transfer that a node receives: the vote of its leader, and what ends it when it is dropped.
#[derive(Default)]
pub(crate) struct Turn(Mutex<Option<(Vote, oneshot::Sender<()>)>>);

impl Turn {
    /// Ends the transfer before. The result is to be held for as long as the new one lasts, and resolves when the next begins. An error
    /// if the one before is of a newer leader.
    fn next(&self, vote: Vote) -> io::Result<oneshot::Receiver<()>> {
        let mut current = self.0.lock().expect("no panic while the transfer is locked");
        let newer = current.as_ref().filter(|(of, ends)| !ends.is_closed() && (vote < *of));
        if let Some((of, _)) = newer {
            return Err(is_late(&vote, of));
        }
        let (ends, end) = oneshot::channel();
        *current = Some((vote, ends));
        Ok(end)
    }
}

/// The error that another leader has followed the one with this vote.
fn is_late(vote: &Vote, newer: &Vote) -> io::Error {
    let (term, newer) = (vote.leader_id.term, newer.leader_id.term);
    refusal(format!("it is of the leader of term {term}, and this node is in term {newer}"))
}

/// What the frame BEGIN says.
struct Begin {
    vote: Vote,
    bytes: u64,
    meta: SnapshotMeta,
}

impl Begin {
    fn read(mut body: Bytes) -> Result<Self, RecordError> {
        let vote = read_vote(&mut body)?;
        let bytes = body.try_get_u64_le().map_err(|_| RecordError::Short)?;
        Ok(Self { vote, bytes, meta: read_meta(&mut body)? })
    }
}

impl Receiver<'_> {
    async fn install_one(self, raft: &Raft, begin: Bytes, incoming: &mut Incoming) -> Result<Vote, Failed> {
        let begin = Begin::read(begin).map_err(malformed)?;
        incoming.check_vote(&begin.vote, begin.meta.last_log_id)?;
        incoming.check_log(self.log, &begin.vote, begin.meta.last_log_id.into_iter())?;
        let own = timeout(RAFT_ANSWERS, raft.with_raft_state(|state| *state.vote_ref())).await;
        let Ok(Ok(own)) = own else {
            return Err(io::Error::new(ErrorKind::NotConnected, "Raft does not answer here").into());
        };
        let would_follow = begin.vote >= own;
        // Otherwise Raft would refuse it at its end.
        if !would_follow {
            return Err(is_late(&begin.vote, &own).into());
        }
        let next = self.turn.next(begin.vote)?;
        tokio::select! {
            biased;
            _ = next => Err(io::Error::new(ErrorKind::NotConnected, "another transfer has begun").into()),
            installed = self.install(raft, begin, incoming) => installed,
        }
    }

    async fn install(self, raft: &Raft, begin: Begin, incoming: &mut Incoming) -> Result<Vote, Failed> {
        let (vote, snapshot) = self.receive_one(begin, incoming).await?;
        let covers = snapshot.meta.last_log_id;
        let response = raft.install_full_snapshot(vote, snapshot).await.map_err(io::Error::other)?;
        if response.vote == vote {
            let applies = raft.wait(None);
            let applied = applies.metrics(move |it| it.last_applied >= covers, "a snapshot is applied");
            applied.await.map_err(io::Error::other)?;
            self.log.barrier().await?;
        }
        Ok(response.vote)
    }

    /// The error for the log. Ends this node if it is the disk's.
    fn failed(self, failed: Failed, from: NodeId) -> io::Error {
        match failed {
            Failed::Disk(error) => {
                let path = self.generations.path();
                let why = format!("a snapshot cannot be stored in {}: {error}", path.display());
                self.fault.send_replace(Some(why));
                error
            }
            Failed::Other(error) => self.directory.note_unreceived(from, error),
        }
    }

    /// Receives what follows `begin`. The result is on disk, and not yet one of the node's own snapshots.
    async fn receive_one(
        self,
        Begin { vote, bytes, meta }: Begin,
        incoming: &mut Incoming,
    ) -> Result<(Vote, Snapshot), Failed> {
        let is_told = self.lines.take().is_some();
        let mut progress = Progress::new("received", incoming.from, &meta, bytes, is_told);
        let mut writer = self.generations.receive().await.map_err(Failed::to_store)?;
        let mut left = bytes;
        loop {
            match incoming.next().await? {
                // Nobody sends one, and each would take a thread.
                Some((SNAPSHOT_CHUNK, chunk)) if chunk.is_empty() => {
                    return Err(invalid("a snapshot with an empty chunk").into());
                }
                Some((SNAPSHOT_CHUNK, chunk)) if chunk.len() as u64 <= left => {
                    let received = chunk.len();
                    writer.run(move |writer| writer.write_all(&chunk)).await.map_err(Failed::to_store)?;
                    left -= received as u64;
                    progress.add(received);
                }
                Some((SNAPSHOT_END, body)) if left == 0 && body[..] == bytes.to_le_bytes() => break,
                Some((SNAPSHOT_CHUNK | SNAPSHOT_END, _)) => {
                    return Err(invalid("the length of a snapshot is not the announced one").into());
                }
                Some((kind, _)) => return Err(unexpected(kind, "the rest of a snapshot").into()),
                None => return Err(closed("the connection was closed in the middle of a snapshot").into()),
            }
        }
        let covers = meta.clone();
        let generation = writer.end(move |writer| writer.finish(covers)).await.map_err(Failed::to_store)?;
        progress.end("snapshot received");
        Ok((vote, Snapshot { meta, snapshot: Arc::new(generation) }))
    }
}

/// Logs the progress of a transfer, if it `is_told`.
struct Progress {
    is_told: bool,
    verb: &'static str,
    peer: NodeId,
    index: Option<u64>,
    all: u64,
    done: u64,
    started: Instant,
    logged: Instant,
}

impl Progress {
    fn new(verb: &'static str, peer: NodeId, meta: &SnapshotMeta, all: u64, is_told: bool) -> Self {
        let index = meta.last_log_id.map(|id| id.index());
        if is_told {
            tracing::info!(peer, index, bytes = all, "a snapshot is being {verb}");
        }
        let now = Instant::now();
        Self { is_told, verb, peer, index, all, done: 0, started: now, logged: now }
    }

    fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.is_told && self.logged.elapsed() >= LOG_EVERY {
            self.logged = Instant::now();
            let percent = 100 * self.done / self.all.max(1);
            tracing::info!(peer = self.peer, bytes = self.done, "{percent} % of a snapshot {}", self.verb);
        }
    }

    fn end(&self, what: &str) {
        if self.is_told {
            tracing::info!(peer = self.peer, index = self.index, took = ?self.started.elapsed(), "{what}");
        }
    }
}

fn malformed(error: RecordError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
