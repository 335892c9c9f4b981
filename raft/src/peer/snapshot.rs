//! Sending a snapshot to one node, on a connection of its own.

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use super::Peers;
use super::frame::{invalid, put_frame};
use super::hello::Channel;
use super::message::{SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_END, SNAPSHOT_INSTALLED};
use crate::consensus::{NodeId, Snapshot, SnapshotMeta, Vote};
use crate::record::{RecordError, put_vote, read_vote};
use crate::snapshot::{put_meta, read_meta};

/// The size of a chunk in bytes.
pub(super) const CHUNK: usize = 1 << 20;

impl Peers {
    /// Sends a snapshot, and waits until it is installed. Gives the vote of the other side.
    pub(super) async fn send_snapshot(
        self: &Arc<Self>,
        to: NodeId,
        vote: Vote,
        snapshot: Snapshot,
    ) -> io::Result<Vote> {
        let mut link = self.connect(to, Channel::Snapshots, CHUNK).await?;
        let bytes = snapshot.snapshot.len();
        tracing::info!(peer = to, bytes, "sending a snapshot");
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| {
            put_vote(out, &vote);
            put_meta(out, &snapshot.meta);
            SNAPSHOT_BEGIN
        });
        for chunk in snapshot.snapshot.chunks(CHUNK) {
            put_frame(&mut out, |out| {
                out.extend_from_slice(chunk);
                SNAPSHOT_CHUNK
            });
            link.writer.write_all(&out).await?;
            out.clear();
        }
        put_frame(&mut out, |out| {
            out.put_u64_le(bytes as u64);
            SNAPSHOT_END
        });
        link.writer.write_all(&out).await?;
        match link.reader.next().await? {
            Some((SNAPSHOT_INSTALLED, mut body)) => read_vote(&mut body).map_err(malformed),
            Some((kind, _)) => Err(invalid(format!("a frame of kind {kind} in answer to a snapshot"))),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the snapshot was not taken")),
        }
    }
}

/// Reads the first frame of a snapshot.
pub(super) fn read_begin(mut body: Bytes) -> io::Result<(Vote, SnapshotMeta)> {
    let vote = read_vote(&mut body).map_err(malformed)?;
    let meta = read_meta(&mut body).map_err(malformed)?;
    Ok((vote, meta))
}

fn malformed(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
