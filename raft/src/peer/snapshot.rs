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

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tokio::time::Instant;

use super::directory::{Directory, Target};
use super::frame::{FrameWriter, closed, invalid, unexpected};
use super::link::Incoming;
use super::message::{SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_END, SNAPSHOT_INSTALLED};
use crate::applied::state_machine::Raft;
use crate::consensus::{NodeId, SnapshotMeta, Vote};
use crate::storage::log_store::LogStore;
use crate::storage::record::{RecordError, put_meta, put_vote, read_meta, read_vote};
use crate::storage::snapshots::Generations;
use crate::storage::snapshots::generation::{Reader, Snapshot};

/// The size of a chunk in bytes.
pub(super) const CHUNK: usize = 1 << 20;
/// How often the progress of a transfer is logged.
const LOG_EVERY: Duration = Duration::from_secs(2);

/// Sends a snapshot, and waits until it is installed. Gives the other side's vote.
pub(super) async fn send(
    directory: &Directory,
    target: Target,
    vote: Vote,
    Snapshot { meta, snapshot: generation }: Snapshot,
) -> io::Result<Vote> {
    let mut link = directory.connect(target, CHUNK).await?;
    let bytes = generation.head().bytes;
    let mut progress = Progress::new("sent", target.to, &meta, bytes);
    link.writer.put(SNAPSHOT_BEGIN, |out| {
        put_vote(out, &vote);
        out.put_u64_le(bytes);
        put_meta(out, &meta);
    });
    let mut reader = generation.open().await?;
    let mut chunk = reader.run(next_chunk).await?;
    while !chunk.is_empty() {
        link.writer.put(SNAPSHOT_CHUNK, |out| out.extend_from_slice(&chunk));
        let sent = chunk.len();
        ((), chunk) = tokio::try_join!(biased; link.writer.flush(), reader.run(next_chunk))?;
        progress.add(sent);
    }
    link.writer.put(SNAPSHOT_END, |out| out.put_u64_le(bytes));
    link.writer.flush().await?;
    match link.reader.next().await? {
        Some((SNAPSHOT_INSTALLED, mut body)) => {
            progress.end("snapshot sent and installed");
            let vote = read_vote(&mut body).map_err(malformed)?;
            directory.check_term(vote.leader_id.term).map(|()| vote)
        }
        Some((kind, _)) => Err(unexpected(kind, "an answer to a snapshot")),
        None => Err(closed("the connection was closed before the snapshot was installed")),
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
    log: &LogStore,
    generations: &Arc<Generations>,
    mut incoming: Incoming,
    mut writer: FrameWriter,
) -> io::Result<()> {
    while let Some((kind, body)) = incoming.next().await? {
        if kind != SNAPSHOT_BEGIN {
            return Err(unexpected(kind, "a snapshot"));
        }
        let (vote, snapshot) = receive_one(log, generations, body, &mut incoming).await?;
        let covers = snapshot.meta.last_log_id;
        let response = raft.install_full_snapshot(vote, snapshot).await.map_err(io::Error::other)?;
        if response.vote == vote {
            let applies = raft.wait(None);
            let applied = applies.metrics(move |it| it.last_applied >= covers, "a snapshot is applied");
            applied.await.map_err(io::Error::other)?;
            log.barrier().await?;
        }
        writer.put(SNAPSHOT_INSTALLED, |out| put_vote(out, &response.vote));
        writer.flush().await?;
    }
    Ok(())
}

/// Receives what follows the frame BEGIN. The result is on disk, and not yet one of the node's own snapshots.
async fn receive_one(
    log: &LogStore,
    generations: &Arc<Generations>,
    mut begin: Bytes,
    incoming: &mut Incoming,
) -> io::Result<(Vote, Snapshot)> {
    let vote = read_vote(&mut begin).map_err(malformed)?;
    let bytes = begin.try_get_u64_le().map_err(|_| malformed(RecordError::Short))?;
    let meta = read_meta(&mut begin).map_err(malformed)?;
    incoming.check_vote(&vote, meta.last_log_id)?;
    incoming.check_log(log, &vote, meta.last_log_id.into_iter())?;
    let mut progress = Progress::new("received", incoming.from, &meta, bytes);
    let mut writer = generations.writer().await?;
    let mut left = bytes;
    loop {
        match incoming.next().await? {
            // Nobody sends one, and each would take a thread.
            Some((SNAPSHOT_CHUNK, chunk)) if chunk.is_empty() => {
                return Err(invalid("a snapshot with an empty chunk"));
            }
            Some((SNAPSHOT_CHUNK, chunk)) if chunk.len() as u64 <= left => {
                let received = chunk.len();
                writer.run(move |writer| writer.write_all(&chunk)).await?;
                left -= received as u64;
                progress.add(received);
            }
            Some((SNAPSHOT_END, body)) if left == 0 && body[..] == bytes.to_le_bytes() => break,
            Some((SNAPSHOT_CHUNK | SNAPSHOT_END, _)) => {
                return Err(invalid("the length of a snapshot is not the announced one"));
            }
            Some((kind, _)) => return Err(unexpected(kind, "the rest of a snapshot")),
            None => return Err(closed("the connection was closed in the middle of a snapshot")),
        }
    }
    let covers = meta.clone();
    let generation = writer.end(move |writer| writer.finish(covers)).await?;
    progress.end("snapshot received");
    Ok((vote, Snapshot { meta, snapshot: Arc::new(generation) }))
}

/// Logs the progress of a transfer.
struct Progress {
    verb: &'static str,
    peer: NodeId,
    index: Option<u64>,
    all: u64,
    done: u64,
    started: Instant,
    logged: Instant,
}

impl Progress {
    fn new(verb: &'static str, peer: NodeId, meta: &SnapshotMeta, all: u64) -> Self {
        let index = meta.last_log_id.map(|id| id.index());
        tracing::info!(peer, index, bytes = all, "a snapshot is being {verb}");
        let now = Instant::now();
        Self { verb, peer, index, all, done: 0, started: now, logged: now }
    }

    fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.logged.elapsed() >= LOG_EVERY {
            self.logged = Instant::now();
            let percent = 100 * self.done / self.all.max(1);
            tracing::info!(peer = self.peer, bytes = self.done, "{percent} % of a snapshot {}", self.verb);
        }
    }

    fn end(&self, what: &str) {
        tracing::info!(peer = self.peer, index = self.index, took = ?self.started.elapsed(), "{what}");
    }
}

fn malformed(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
