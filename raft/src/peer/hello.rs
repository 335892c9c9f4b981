//! The first words on a connection between nodes.
//!
//! The caller sends the preface (a magic word and the protocol version) and a hello; the other answers with its own
//! preface and a welcome or a refusal. Both sides check that they talk to whom they mean: the same cluster, the node
//! with that id, and the data directory that the membership knows. Without the last, a node whose disk was emptied
//! could vote a second time in a term, and acknowledged grants could be lost.
//!
//! A connection belongs to the two incarnations that made it. The caller expects the one that the membership names when
//! it connects, and closes the connection when another is named. The other side looks again with every frame.
//!
//! A node that was away may know an old membership, in which a node that was removed and added anew still has its old data
//! directory. So the caller tells of the newest membership that has it as it is now: if that is newer than what the other
//! side knows, it is believed. An emptied node knows of none, until it is added.

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::consensus::NodeId;

/// The first bytes on a connection, from both sides: what it is, and the version of the protocol.
pub(crate) const PREFACE: [u8; 10] = *b"RINGPEER\x01\x00";
/// The kinds of the first frames.
pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSAL: u8 = 3;
/// The most bytes of one of them.
pub(crate) const MAX_HELLO: usize = 16 << 10;

/// What a connection is for. Each has its own, so that none holds up another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Channel {
    /// Asking who is there, and founding a cluster.
    Founding,
    /// Votes, the hand-over of leadership, and the rounds that confirm it: small messages that are answered at once.
    Votes,
    /// Commands and reads passed on to the leader.
    Forwards,
    /// Log entries.
    Appends,
    /// Heartbeats.
    Heartbeats,
    /// Snapshots.
    Snapshots,
    /// Waiting for the leader's mirror.
    Mirror,
}

/// Who calls, whom, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The Raft group; there is one, 0.
    pub(crate) group: u32,
    pub(crate) channel: Channel,
    pub(crate) cluster: Option<Uuid>,
    pub(crate) from: NodeId,
    pub(crate) incarnation: Uuid,
    pub(crate) to: NodeId,
    /// Which data directory the caller expects there.
    pub(crate) to_incarnation: Option<Uuid>,
    /// The term and index of the newest membership that the caller knows, if that has it with its incarnation.
    pub(crate) member_as_of: Option<(u64, u64)>,
    /// The caller's HTTP URL.
    pub(crate) url: String,
}

/// The other side is who was meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) incarnation: Uuid,
    /// Its HTTP URL.
    pub(crate) url: String,
}

/// The other side will not talk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// Why, in a sentence.
    pub(crate) reason: String,
}

/// Appends `value` by position.
pub(crate) fn put<T: Serialize>(out: &mut BytesMut, value: &T) {
    let bytes = postcard::to_stdvec(value).expect("messages contain nothing that postcard cannot encode");
    out.extend_from_slice(&bytes);
}

/// Reads a whole body.
pub(crate) fn get<T: DeserializeOwned>(body: &Bytes) -> std::io::Result<T> {
    postcard::from_bytes(body).map_err(|error| super::frame::invalid(format!("a malformed message: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::frame::put_frame;

    /// Nodes of different builds talk to each other: these bytes may never change under this preface version.
    #[test]
    fn the_bytes_of_a_hello_are_fixed() {
        let hello = Hello {
            group: 0,
            channel: Channel::Appends,
            cluster: Some(Uuid::from_u128(1)),
            from: 1,
            incarnation: Uuid::from_u128(2),
            to: 300,
            to_incarnation: None,
            member_as_of: Some((4, 200)),
            url: "http://a".to_owned(),
        };
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| {
            put(out, &hello);
            HELLO
        });
        let mut golden = vec![HELLO, 0, 3, 1, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
        golden.extend([16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xac, 2, 0, 1, 4, 0xc8, 1, 8]);
        golden.extend(b"http://a");
        assert_eq!(out[8..], golden);
        assert_eq!(get::<Hello>(&Bytes::copy_from_slice(&out[9..])).unwrap(), hello);
        assert_eq!(&PREFACE, b"RINGPEER\x01\x00");
    }
}
