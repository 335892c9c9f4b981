//! A connection that another node has made: its first words, and its frames for as long as it is who the cluster knows.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringfence_mutant::{Mutant, is};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::frame::{FrameReader, invalid, put_frame};
use super::hello::{Channel, HELLO, Hello, MAX_HELLO, PREFACE, REFUSAL, Refusal, WELCOME, Welcome, get, put};
use super::link::{check_preface, tune};
use super::server::Served;
use super::{Peers, as_of};
use crate::consensus::NodeId;

/// How long the first words of a connection may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// What comes from a caller who was welcome.
pub(super) struct Incoming {
    peers: Arc<Peers>,
    hello: Hello,
    frames: FrameReader<OwnedReadHalf>,
}

impl Incoming {
    /// Hears who calls, and answers with a welcome or a refusal.
    pub(super) async fn accept(served: &Served, stream: TcpStream) -> io::Result<(Self, OwnedWriteHalf)> {
        tune(&stream)?;
        let (reader, mut writer) = stream.into_split();
        let mut frames = FrameReader::new(reader, MAX_HELLO);
        let hello = match timeout(HELLO_TIMEOUT, read_hello(&mut frames)).await {
            Ok(hello) => hello,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it said nothing in time")),
        };
        let peers = &served.peers;
        let mut first = BytesMut::from(&PREFACE[..]);
        let verdict = hello.and_then(|hello| match served.check(&hello) {
            Ok(()) => Ok(hello),
            Err(error) => Err(peers.note_refused(hello.from, error)),
        });
        match &verdict {
            Ok(_) => put_frame(&mut first, |out| {
                let welcome = Welcome { incarnation: peers.identity.incarnation, url: peers.own_url.clone() };
                put(out, &welcome);
                WELCOME
            }),
            Err(error) => put_frame(&mut first, |out| {
                put(out, &Refusal { reason: error.to_string() });
                REFUSAL
            }),
        }
        // The caller may have gone; then the verdict is the better thing to report.
        let written = writer.write_all(&first).await;
        let hello = verdict?;
        written?;
        Ok((Self { peers: Arc::clone(peers), hello, frames }, writer))
    }

    pub(super) fn from(&self) -> NodeId {
        self.hello.from
    }

    pub(super) fn channel(&self) -> Channel {
        self.hello.channel
    }

    /// Refuses frames with more than `max` bytes of kind and body.
    pub(super) fn set_max(&mut self, max: usize) {
        self.frames.set_max(max);
    }

    /// The next frame; `None` where the caller closed between two. An error if the membership has changed since, and the
    /// caller is no longer who the cluster knows. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let frame = self.frames.next().await?;
        if let Err(error) = self.peers.check_caller(&self.hello) {
            return Err(self.peers.note_refused(self.hello.from, error));
        }
        Ok(frame)
    }
}

impl Served {
    /// Whether the caller means this node, and is who the cluster knows.
    fn check(&self, hello: &Hello) -> io::Result<()> {
        let own = &self.peers.identity;
        if hello.group != 0 {
            return Err(refusal(format!("there is no Raft group {}", hello.group)));
        }
        if hello.to != own.node_id {
            return Err(refusal(format!("this is node {}, not node {}", own.node_id, hello.to)));
        }
        let is_other = hello.to_incarnation.is_some_and(|expected| expected != own.incarnation);
        if is_other && !is(Mutant::LetsWipedNodeIn) {
            return Err(refusal(format!(
                "node {} has another data directory than the cluster knows",
                own.node_id
            )));
        }
        if hello.channel == Channel::Founding {
            return Ok(());
        }
        if self.handle.get().is_none() {
            let reason =
                format!("node {} does not belong to a cluster yet, or is still starting", own.node_id);
            return Err(io::Error::new(io::ErrorKind::NotConnected, reason));
        }
        let cluster = self.peers.cluster_id();
        if hello.cluster != Some(cluster) {
            return Err(refusal(format!(
                "node {} belongs to cluster {cluster}, the caller does not",
                own.node_id
            )));
        }
        self.peers.check_caller(hello)?;
        self.peers.learn_url(hello.from, &hello.url);
        self.peers.note_welcome(hello.from);
        Ok(())
    }
}

impl Peers {
    /// Whether the caller is a member with the incarnation that the cluster knows, unless it knows a newer membership.
    ///
    /// That a node was removed counts once it is committed: until then another leader may undo it, even the node itself.
    /// That another incarnation has its id counts at once: its removal was committed before the other was added.
    fn check_caller(&self, hello: &Hello) -> io::Result<()> {
        let Some(known) = self.memberships().filter(|_| hello.channel != Channel::Founding) else {
            return Ok(());
        };
        let is_other =
            known.effective.get_node(&hello.from).is_some_and(|node| node.incarnation != hello.incarnation);
        // `None`, which is less than all others, is what an emptied node knows.
        if is_other && hello.member_as_of <= as_of(&known.effective) && !is(Mutant::LetsWipedNodeIn) {
            return Err(refusal(format!(
                "node {} comes with another data directory than the cluster knows: it may have voted or acknowledged \
                 what it no longer remembers",
                hello.from
            )));
        }
        let committed_as_of = as_of(&known.committed);
        let is_member = known.committed.get_node(&hello.from).is_some();
        // Before the first membership is committed, nobody is known not to be a member.
        if !is_member && committed_as_of.is_some() && hello.member_as_of <= committed_as_of {
            return Err(refusal(format!("node {} is no member of the cluster", hello.from)));
        }
        Ok(())
    }
}

fn refusal(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

async fn read_hello(reader: &mut FrameReader<OwnedReadHalf>) -> io::Result<Hello> {
    let mut preface = [0; PREFACE.len()];
    reader.read_raw(&mut preface).await?;
    check_preface(&preface)?;
    match reader.next().await? {
        Some((HELLO, body)) => get(&body),
        Some((kind, _)) => Err(invalid(format!("a frame of kind {kind} in place of a hello"))),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed before its hello")),
    }
}
