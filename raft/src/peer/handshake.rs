//! The first messages on a connection between nodes.
//!
//! The caller sends the preface (a magic word and the protocol version) and a hello; the other side answers with its own
//! preface and a welcome or a refusal. Both check that they talk to whom they mean: the same cluster, the node with that id,
//! and the data directory that the membership names. Without the last check, a node whose disk was wiped could vote twice in
//! a term, and acknowledged grants could be lost.
//!
//! A connection belongs to the two incarnations that made it. The caller expects the one that the membership names when it
//! connects, and closes the connection when the membership names another. The other side checks the caller again with every
//! frame.
//!
//! A node that was away may know an old membership, in which a node that was removed and added again still has its old data
//! directory. So the hello carries the position of the newest membership that includes the caller as it is now. A side
//! without a leader accepts a position that is newer than its own. A side with a leader does not: its leader would have sent it. A
//! wiped node has no leader until it is added.
//!
//! Behind the hello and the welcome each side sends its [`Starts`]: see [`copies`](super::copies).
//!
//! A message of Raft counts only from the node that it names, and in a term that an honest node can have reached.

use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use ringfence_wire::{RulesRange, check_peer_address};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::frame::{FrameReader, FrameWriter, closed, invalid};
use crate::consensus::NodeId;
use crate::storage::starts::{Start, Starts};

/// The first bytes in each direction: a magic word, and the version of the protocol.
pub(crate) const PREFACE: [u8; 10] = *b"RINGPEER\x01\x00";
/// The kinds of the first frames.
pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSAL: u8 = 3;
/// The most bytes of one of them.
pub(crate) const MAX_HELLO: usize = 16 << 10;

/// What a connection is for. Each channel has connections of its own, so that none delays another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Channel {
    /// Probing nodes, and founding a cluster.
    Founding,
    /// Votes, leadership transfers and leadership confirmations: small messages that are answered at once.
    Votes,
    /// Commands and reads forwarded to the leader.
    Forwards,
    /// Log entries.
    Appends,
    Heartbeats,
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
    /// The term and index of the newest membership that the caller knows, if it includes the caller's incarnation.
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

/// What a node says of its program, behind its welcome. Older builds send nothing there, and ignore what follows a welcome;
/// later builds may add more. A hello says nothing of a program, because anybody can send one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The rules that it supports.
    pub(crate) rules: RulesRange,
    /// The newest frames that it reads.
    pub(crate) frames: u8,
    /// Empty if it is not known.
    pub(crate) version: String,
}

/// The newest frames that this program reads: 2 has [`Call::Upgrade`](super::message::Call::Upgrade) and
/// [`Call::Difference`](super::message::Call::Difference), 3 has [`Call::ProposeBy`](super::message::Call::ProposeBy),
/// 4 has [`Call::ProposeOf`](super::message::Call::ProposeOf).
const FRAMES: u8 = 4;

/// The most characters of a version that are kept.
const MAX_VERSION: usize = 40;

impl Program {
    /// This program, if it supports `rules`.
    pub(crate) fn of_this(rules: RulesRange) -> Self {
        Self { rules, frames: FRAMES, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// A program that says nothing of itself.
    pub(super) fn silent() -> Self {
        Self { rules: RulesRange { oldest: 1, newest: 1 }, frames: 1, version: String::new() }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version.as_str() {
            "" => f.write_str("an unknown version of ringfence"),
            version => write!(f, "ringfence {version}"),
        }
    }
}

/// The other side closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// Why, in a sentence.
    pub(crate) reason: String,
}

/// What stands between a hello and the starts. Some builds sent their program behind a hello, whose first byte is never this.
const STARTS: u8 = 0;

/// What a caller says of the processes on both sides, behind its hello. Older builds do not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Processes {
    /// The caller's.
    pub(super) starts: Starts,
    /// The newest start of the other side that the caller has met.
    pub(super) met: Option<Start>,
    /// Behind the rest: builds that say the rest did not all say it.
    #[serde(skip)]
    pub(super) places: Places,
}

/// What a caller says of addresses. Empty: it has nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Places {
    /// Where the caller's operator has it listen.
    pub(super) own: String,
    /// Where it called the other side.
    pub(super) called: String,
}

impl Places {
    /// Without what is no address. It is shown to operators.
    fn checked(mut self) -> Self {
        for address in [&mut self.own, &mut self.called] {
            if check_peer_address(address).is_err() {
                address.clear();
            }
        }
        self
    }
}

/// Queues the preface and a hello.
pub(super) fn put_hello(writer: &mut FrameWriter, hello: &Hello, processes: &Processes) {
    put_first(writer, HELLO, &(hello, STARTS, processes, &processes.places));
}

/// Reads a hello, and what follows it.
pub(super) fn get_hello(body: &Bytes) -> io::Result<(Hello, Processes)> {
    let (hello, rest) = take(body)?;
    match rest.split_first() {
        Some((&STARTS, rest)) => {
            let (mut processes, rest): (Processes, _) = take(rest)?;
            if !rest.is_empty() {
                processes.places = take::<Places>(rest)?.0.checked();
            }
            Ok((hello, processes))
        }
        _ => Ok((hello, Processes::default())),
    }
}

/// Queues the preface and a refusal. If the caller `is_copy`, it must not go on.
pub(super) fn put_refusal(writer: &mut FrameWriter, reason: String, is_copy: bool) {
    put_first(writer, REFUSAL, &(Refusal { reason }, is_copy));
}

/// Reads the reason of a refusal, and whether it is that this process runs with a copy of a data directory.
pub(super) fn get_refusal(body: &Bytes) -> io::Result<(String, bool)> {
    let (Refusal { reason }, rest) = take(body)?;
    Ok((reason, rest.first().is_some_and(|is_copy| *is_copy != 0)))
}

/// Queues the preface and the first frame. A welcome is followed by the [`Program`] and the [`Starts`].
pub(super) fn put_first(writer: &mut FrameWriter, kind: u8, message: &impl Serialize) {
    writer.put_raw(&PREFACE);
    writer.put(kind, |out| put(out, message));
}

/// Reads the preface and the first frame, which should be `what`.
pub(super) async fn read_first(reader: &mut FrameReader, what: &str) -> io::Result<(u8, Bytes)> {
    let mut preface = [0; PREFACE.len()];
    reader.read_raw(&mut preface).await?;
    if preface[..8] != PREFACE[..8] {
        return Err(invalid("the other end is no node of ringfence"));
    }
    if preface[8..] != PREFACE[8..] {
        let [.., low, high] = preface;
        let version = u16::from_le_bytes([low, high]);
        return Err(invalid(format!("it speaks version {version} of the protocol, this node version 1")));
    }
    reader.next().await?.ok_or_else(|| closed(format!("it closed before its {what}")))
}

/// Appends `value` in postcard's encoding.
pub(crate) fn put(out: &mut BytesMut, value: &impl Serialize) {
    let bytes = postcard::to_stdvec(value).expect("messages contain nothing that postcard cannot encode");
    out.extend_from_slice(&bytes);
}

/// Reads a body, and ignores what follows the value: some builds sent their program behind a hello.
pub(crate) fn get<T: DeserializeOwned>(body: &Bytes) -> io::Result<T> {
    postcard::from_bytes(body).map_err(|error| invalid(format!("a malformed message: {error}")))
}

/// Reads a welcome, and what the other side says of its program and its starts.
pub(super) fn get_welcome(body: &Bytes) -> io::Result<(Welcome, Program, Starts)> {
    let (welcome, rest) = take(body)?;
    let (mut program, rest) = if rest.is_empty() { (Program::silent(), rest) } else { take(rest)? };
    let starts = if rest.is_empty() { Starts::default() } else { take(rest)?.0 };
    // It is printed on the terminals of operators.
    program.version = program.version.chars().filter(char::is_ascii_graphic).take(MAX_VERSION).collect();
    Ok((welcome, program, starts))
}

fn take<T: DeserializeOwned>(body: &[u8]) -> io::Result<(T, &[u8])> {
    postcard::take_from_bytes(body).map_err(|error| invalid(format!("a malformed message: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_cannot_fill_the_memory_or_a_terminal() {
        let rules = RulesRange { oldest: 1, newest: 1 };
        let program =
            Program { rules, frames: 1, version: "\u{1b}[2J 1.0\n".to_owned() + &"x".repeat(9_999) };
        let mut out = BytesMut::new();
        put(&mut out, &(&Welcome { incarnation: Uuid::nil(), url: String::new() }, &program));
        let (_, read, _) = get_welcome(&out.freeze()).unwrap();
        assert_eq!(read.version, "[2J1.0".to_owned() + &"x".repeat(MAX_VERSION - 6));
    }

    /// Builds of different versions talk to each other: these bytes must not change under this preface version.
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
        put(&mut out, &hello);
        let mut golden = vec![0, 3, 1, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
        golden.extend([16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xac, 2, 0, 1, 4, 0xc8, 1, 8]);
        golden.extend(b"http://a");
        assert_eq!(out[..], golden);
        // What other builds add.
        let mut other = out.clone();
        other.extend_from_slice(b"more");
        assert_eq!(get_hello(&other.freeze()).unwrap(), (hello.clone(), Processes::default()));
        let mut starts = Starts::default();
        starts.add(5);
        starts.add(300);
        let processes = Processes { met: starts.newest(), starts, places: Places::default() };
        out.clear();
        put(&mut out, &(&hello, STARTS, &processes));
        golden.extend([0, 2, 2, 5, 0xac, 2, 1, 2, 0xac, 2]);
        assert_eq!(out[..], golden);
        assert_eq!(get_hello(&out.clone().freeze()).unwrap(), (hello.clone(), processes));
        // As builds from before the starts read it.
        assert_eq!(get::<Hello>(&out.freeze()).unwrap(), hello);
        assert_eq!((HELLO, WELCOME, REFUSAL), (1, 2, 3));
        assert_eq!(&PREFACE, b"RINGPEER\x01\x00");
    }

    #[test]
    fn a_refusal_says_whether_the_caller_is_a_copy_and_older_builds_read_its_reason() {
        let mut out = BytesMut::new();
        put(&mut out, &(Refusal { reason: "no".to_owned() }, true));
        assert_eq!(out[..], *b"\x02no\x01");
        assert_eq!(get_refusal(&out.clone().freeze()).unwrap(), ("no".to_owned(), true));
        assert_eq!(get_refusal(&out.clone().freeze().slice(..3)).unwrap(), ("no".to_owned(), false));
        assert_eq!(get::<Refusal>(&out.freeze()).unwrap().reason, "no");
    }

    #[test]
    fn the_bytes_of_a_welcome_are_fixed() {
        let welcome = Welcome { incarnation: Uuid::from_u128(2), url: "http://a".to_owned() };
        let mut out = BytesMut::new();
        put(&mut out, &welcome);
        let mut golden = vec![16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 8];
        golden.extend(b"http://a");
        assert_eq!(out[..], golden);
        let silent = (welcome.clone(), Program::silent(), Starts::default());
        assert_eq!(get_welcome(&out.clone().freeze()).unwrap(), silent);

        let program =
            Program { rules: RulesRange { oldest: 1, newest: 3 }, frames: 2, version: "1.2".to_owned() };
        out.clear();
        put(&mut out, &(&welcome, &program));
        golden.extend(b"\x01\x03\x02\x031.2");
        assert_eq!(out[..], golden);
        assert_eq!(
            get_welcome(&out.clone().freeze()).unwrap(),
            (welcome.clone(), program.clone(), Starts::default())
        );
        let mut starts = Starts::default();
        starts.add(300);
        out.clear();
        put(&mut out, &(&welcome, &program, &starts));
        golden.extend([1, 1, 0xac, 2]);
        assert_eq!(out[..], golden);
        // What later builds may add.
        out.extend_from_slice(b"more");
        assert_eq!(get_welcome(&out.clone().freeze()).unwrap(), (welcome.clone(), program, starts));
        // As builds from before the program read it.
        assert_eq!(get::<Welcome>(&out.freeze()).unwrap(), welcome);
    }
}
