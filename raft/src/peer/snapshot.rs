//! Snapshots on their way from one node to another, on a connection of their own.
//!
//! ```text
//! sender                                     receiver
//!   BEGIN   vote, what it covers, length ──▶   a new folder beside its own snapshots
//!   CHUNK   up to 1 MiB of the table     ──▶   written as they come
//!   …
//!   END                                  ──▶   synced, read back, given to Raft, which installs it
//!                                        ◀──   INSTALLED   its vote
//! ```
//! Neither side ever has more than a few chunks in memory. A connection that breaks off leaves nothing behind.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Peers;
use super::frame::{invalid, put_frame};
use super::hello::Channel;
use super::incoming::Incoming;
use super::message::{SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_END, SNAPSHOT_INSTALLED};
use crate::consensus::{NodeId, Snapshot, SnapshotMeta, Vote};
use crate::storage::record::{RecordError, put_meta, put_vote, read_meta, read_vote};
use crate::storage::snapshots::generation::{Generation, Reader, Writer};
use crate::storage::snapshots::{Generations, aside};

/// The size of a chunk in bytes.
pub(super) const CHUNK: usize = 1 << 20;
/// How many chunks are read ahead, and received ahead.
const AHEAD: usize = 2;
/// How often it is told how far a transfer has come.
const TELL: Duration = Duration::from_secs(2);

impl Peers {
    /// Sends a snapshot, and waits until it is installed. Gives the vote of the other side.
    pub(super) async fn send_snapshot(
        self: &Arc<Self>,
        to: NodeId,
        incarnation: Uuid,
        vote: Vote,
        snapshot: Snapshot,
    ) -> io::Result<Vote> {
        let mut link = self.connect(to, Some(incarnation), Channel::Snapshots, CHUNK).await?;
        let Snapshot { meta, snapshot: generation } = snapshot;
        let bytes = generation.head().bytes;
        let mut progress = Progress::new("sent", to, &meta, bytes);
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| {
            put_vote(out, &vote);
            out.put_u64_le(bytes);
            put_meta(out, &meta);
            SNAPSHOT_BEGIN
        });
        let (chunks, mut queue) = mpsc::channel(AHEAD);
        let reading = aside(move || read_chunks(generation.reader()?, &chunks));
        let sending = async {
            while let Some(chunk) = queue.recv().await {
                put_frame(&mut out, |out| {
                    out.extend_from_slice(&chunk);
                    SNAPSHOT_CHUNK
                });
                link.writer.write_all(&out).await?;
                out.clear();
                progress.add(chunk.len());
            }
            Ok(())
        };
        tokio::try_join!(reading, sending)?;
        put_frame(&mut out, |out| {
            out.put_u64_le(bytes);
            SNAPSHOT_END
        });
        link.writer.write_all(&out).await?;
        match link.reader.next().await? {
            Some((SNAPSHOT_INSTALLED, mut body)) => {
                progress.end("snapshot sent and installed");
                read_vote(&mut body).map_err(malformed)
            }
            Some((kind, _)) => Err(invalid(format!("a frame of kind {kind} in answer to a snapshot"))),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the snapshot was not taken")),
        }
    }
}

fn read_chunks(mut reader: Reader, chunks: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        reader.by_ref().take(CHUNK as u64).read_to_end(&mut chunk)?;
        // Nobody takes it where the connection has broken.
        if chunk.is_empty() || chunks.blocking_send(chunk).is_err() {
            return Ok(());
        }
    }
}

/// The first frame of a snapshot.
pub(super) struct Begin {
    vote: Vote,
    bytes: u64,
    meta: SnapshotMeta,
}

impl Begin {
    pub(super) fn read(mut body: Bytes) -> io::Result<Self> {
        let vote = read_vote(&mut body).map_err(malformed)?;
        let bytes = body.try_get_u64_le().map_err(|_| malformed(RecordError::Short))?;
        let meta = read_meta(&mut body).map_err(malformed)?;
        Ok(Self { vote, bytes, meta })
    }

    /// Receives the rest. What this returns is on disk, and not yet one of the node's own snapshots.
    pub(super) async fn receive(
        self,
        generations: &Arc<Generations>,
        incoming: &mut Incoming,
    ) -> io::Result<(Vote, Snapshot)> {
        let Self { vote, bytes, meta } = self;
        let mut progress = Progress::new("received", incoming.from(), &meta, bytes);
        let (chunks, queue) = mpsc::channel(AHEAD);
        let (generations, covers) = (Arc::clone(generations), meta.clone());
        let writing = aside(move || write_chunks(generations.writer()?, queue, bytes, covers));
        let receiving = async {
            loop {
                match incoming.next().await? {
                    Some((SNAPSHOT_CHUNK, chunk)) => {
                        progress.add(chunk.len());
                        if chunks.send(Some(chunk)).await.is_err() {
                            return Ok(());
                        }
                    }
                    Some((SNAPSHOT_END, body)) if body[..] == bytes.to_le_bytes() => {
                        // Who writes has failed, if it does not take this.
                        let _ = chunks.send(None).await;
                        return Ok(());
                    }
                    Some((kind, _)) => {
                        return Err(invalid(format!("a frame of kind {kind} within a snapshot")));
                    }
                    None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a snapshot broke off")),
                }
            }
        };
        let (generation, ()) = tokio::try_join!(writing, receiving)?;
        progress.end("snapshot received");
        Ok((vote, Snapshot { meta, snapshot: Arc::new(generation) }))
    }
}

fn write_chunks(
    mut writer: Writer,
    mut queue: mpsc::Receiver<Option<Bytes>>,
    bytes: u64,
    meta: SnapshotMeta,
) -> io::Result<Generation> {
    loop {
        match queue.blocking_recv() {
            Some(Some(chunk)) if writer.bytes() + chunk.len() as u64 <= bytes => writer.write_all(&chunk)?,
            Some(None) if writer.bytes() == bytes => return writer.finish(meta),
            Some(_) => return Err(invalid("a snapshot of another length than it said".to_owned())),
            None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a snapshot broke off")),
        }
    }
}

/// Tells in the log how far a transfer has come.
struct Progress<'a> {
    verb: &'static str,
    peer: NodeId,
    meta: &'a SnapshotMeta,
    all: u64,
    done: u64,
    started: Instant,
    told: Instant,
}

impl<'a> Progress<'a> {
    fn new(verb: &'static str, peer: NodeId, meta: &'a SnapshotMeta, all: u64) -> Self {
        tracing::info!(peer, index = index_of(meta), bytes = all, "a snapshot is being {verb}");
        let now = Instant::now();
        Self { verb, peer, meta, all, done: 0, started: now, told: now }
    }

    fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.told.elapsed() >= TELL {
            self.told = Instant::now();
            let percent = 100 * self.done / self.all.max(1);
            tracing::info!(peer = self.peer, bytes = self.done, "{percent} % of a snapshot {}", self.verb);
        }
    }

    fn end(&self, what: &str) {
        tracing::info!(peer = self.peer, index = index_of(self.meta), took = ?self.started.elapsed(), "{what}");
    }
}

fn index_of(meta: &SnapshotMeta) -> Option<u64> {
    meta.last_log_id.map(|id| id.index())
}

fn malformed(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
