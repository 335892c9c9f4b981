//! A caller that speaks the protocol between nodes by hand, under any name.

use std::path::Path;

use ringfence_raft::{Connection, NodeId};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use super::address;
use super::network::Network;

/// Channels and kinds of frames by their numbers.
pub const FOUNDING: u32 = 0;
pub const VOTES: u32 = 1;
pub const FORWARDS: u32 = 2;
pub const HEARTBEATS: u32 = 4;
pub const SNAPSHOTS: u32 = 5;
pub const MIRROR: u32 = 6;
const WELCOME: u8 = 2;
const CALL: u8 = 16;
const ANSWER: u8 = 17;
pub const APPEND: u8 = 32;
pub const APPENDED: u8 = 33;
pub const SNAPSHOT_BEGIN: u8 = 48;
pub const SNAPSHOT_CHUNK: u8 = 49;
pub const SNAPSHOT_REFUSED: u8 = 52;

/// Calls, as they are encoded.
pub const READ_INDEX: &[u8] = &[4];
pub const PROBE: &[u8] = &[5];
/// Does the mirror show no key at revision 0?
pub const STANDS: &[u8] = &[8, 0, 0];

/// Answers begin with these.
pub const READ_POINT: u8 = 5;
pub const PROBED: u8 = 6;
pub const STANDING: u8 = 10;
pub const CONFIRMED: u8 = 11;

/// Asks for a vote in `term` with a log that nobody's is ahead of, lease or no lease.
pub fn vote(term: u64, node: NodeId) -> Vec<u8> {
    let (is_committed, last, hand_over) = (false, Some((term - 1, 1_000_000_u64)), true);
    postcard::to_stdvec(&(0_u32, ((term, node, is_committed), last, hand_over))).unwrap()
}

/// Asks whether this is still its vote.
pub fn confirm(term: u64, node: NodeId, is_committed: bool) -> Vec<u8> {
    postcard::to_stdvec(&(9_u32, (term, node, is_committed))).unwrap()
}

/// Who it says that it is.
pub struct Name {
    pub cluster: Option<Uuid>,
    pub from: NodeId,
    pub incarnation: Uuid,
    /// The membership that it says it knows.
    pub member_as_of: Option<(u64, u64)>,
}

impl Name {
    /// The member with this data directory.
    pub fn of(data: &Path, from: NodeId) -> Self {
        let text = std::fs::read_to_string(data.join("NODE")).unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse().unwrap()
        };
        Self { cluster: Some(value("cluster")), from, incarnation: value("incarnation"), member_as_of: None }
    }
}

/// Its connection.
pub struct Stranger(Connection);

impl Stranger {
    /// Calls the node `to` on `channel`; `None` if it is refused.
    pub async fn call(network: &Network, to: NodeId, channel: u32, name: &Name) -> Option<Self> {
        Self::call_over(network.connect("stranger", &address(to)).unwrap(), to, channel, name).await
    }

    /// As [`Stranger::call`], over this connection.
    pub async fn call_over(connection: Connection, to: NodeId, channel: u32, name: &Name) -> Option<Self> {
        let mut stream = Self(connection);
        let hello = (
            (0_u32, channel, name.cluster, name.from, name.incarnation),
            (to, None::<Uuid>, name.member_as_of, ""),
        );
        stream.send_bytes(b"RINGPEER\x01\x00").await;
        stream.send(1, &hello).await;
        let mut preface = [0; 10];
        stream.0.reader.read_exact(&mut preface).await.ok()?;
        let (kind, _) = stream.next().await?;
        (kind == WELCOME).then_some(stream)
    }

    async fn send(&mut self, kind: u8, body: &impl Serialize) {
        self.send_frame(kind, &postcard::to_stdvec(body).unwrap()).await;
    }

    pub async fn send_frame(&mut self, kind: u8, body: &[u8]) {
        self.send_bytes(&frame(kind, body)).await;
    }

    /// It may have closed.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.0.writer.write_all(bytes).await;
        let _ = self.0.writer.flush().await;
    }

    /// Asks `call`, `count` times at once.
    pub async fn ask(&mut self, call: &[u8], count: u64) {
        let calls: Vec<u8> =
            (1..=count).flat_map(|number| frame(CALL, &[&number.to_le_bytes(), call].concat())).collect();
        self.send_bytes(&calls).await;
    }

    /// The next answer, without its number; `None` if the node closed the connection.
    pub async fn answer(&mut self) -> Option<Vec<u8>> {
        let (kind, body) = self.next().await?;
        assert_eq!(kind, ANSWER);
        Some(body[8..].to_vec())
    }

    /// The next frame; `None` if the node closed the connection.
    pub async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let len = self.0.reader.read_u32_le().await.ok()?;
        self.0.reader.read_u32_le().await.ok()?;
        let mut body = vec![0; len as usize];
        self.0.reader.read_exact(&mut body).await.ok()?;
        let kind = body.remove(0);
        Some((kind, body))
    }
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let body = [&[kind], body].concat();
    let len = u32::try_from(body.len()).unwrap();
    [&len.to_le_bytes()[..], &crc32c::crc32c(&body).to_le_bytes(), &body].concat()
}
