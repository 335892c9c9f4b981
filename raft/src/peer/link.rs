//! Opening a connection to another node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use ringfence_mutant::{Mutant, is};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use uuid::Uuid;

use super::Peers;
use super::frame::{FrameReader, invalid, put_frame};
use super::hello::{Channel, HELLO, Hello, MAX_HELLO, PREFACE, REFUSAL, Refusal, WELCOME, Welcome, get, put};
use crate::consensus::NodeId;

/// How long connecting and the first words may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long what was sent may stay unacknowledged by the other kernel, in milliseconds. A stopped process does not
/// count: its kernel answers.
const GONE_MS: u32 = 3_000;

/// A connection on which both sides know whom they talk to.
pub(super) struct Link {
    pub(super) reader: FrameReader<OwnedReadHalf>,
    pub(super) writer: OwnedWriteHalf,
}

impl Peers {
    /// Connects to `to`, to this incarnation of it where one is given; frames of up to `max` bytes will be read.
    pub(super) async fn connect(
        self: &Arc<Self>,
        to: NodeId,
        incarnation: Option<Uuid>,
        channel: Channel,
        max: usize,
    ) -> io::Result<Link> {
        let result = match timeout(CONNECT_TIMEOUT, self.try_connect(to, incarnation, channel, max)).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")),
        };
        self.note_reachable(to, result.as_ref().map(drop));
        result
    }

    async fn try_connect(
        &self,
        to: NodeId,
        incarnation: Option<Uuid>,
        channel: Channel,
        max: usize,
    ) -> io::Result<Link> {
        let address = self.address(to).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no address of node {to} is known"))
        })?;
        let stream = TcpStream::connect(&address)
            .await
            .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
        tune(&stream)?;
        let (reader, mut writer) = stream.into_split();
        let mut first = BytesMut::from(&PREFACE[..]);
        let hello = Hello {
            group: 0,
            channel,
            cluster: self.cluster.get().copied(),
            from: self.identity.node_id,
            incarnation: self.identity.incarnation,
            to,
            to_incarnation: incarnation,
            member_as_of: self.member_as_of(),
            url: self.own_url.clone(),
        };
        put_frame(&mut first, |out| {
            put(out, &hello);
            HELLO
        });
        writer.write_all(&first).await?;
        let mut link = Link { reader: FrameReader::new(reader, MAX_HELLO), writer };
        let welcome = link
            .welcome()
            .await
            .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
        let is_other = hello.to_incarnation.is_some_and(|expected| expected != welcome.incarnation);
        if is_other && !is(Mutant::LetsWipedNodeIn) {
            return Err(invalid(format!(
                "{address}: node {to} answers from another data directory than the cluster knows"
            )));
        }
        self.learn_url(to, &welcome.url);
        link.reader.set_max(max);
        Ok(link)
    }
}

impl Link {
    async fn welcome(&mut self) -> io::Result<Welcome> {
        let mut preface = [0; PREFACE.len()];
        self.reader.read_raw(&mut preface).await?;
        check_preface(&preface)?;
        match self.reader.next().await? {
            Some((WELCOME, body)) => get(&body),
            Some((REFUSAL, body)) => {
                let refusal: Refusal = get(&body)?;
                Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal.reason))
            }
            Some((kind, _)) => Err(invalid(format!("a frame of kind {kind} in place of a welcome"))),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection at once")),
        }
    }
}

/// Small messages go at once; and a connection whose other end is gone without a word is given up in seconds, not in the
/// minutes after which TCP would try it again.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(stream, GONE_MS)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// Checks the first bytes from another node.
pub(super) fn check_preface(preface: &[u8; PREFACE.len()]) -> io::Result<()> {
    if preface[..8] != PREFACE[..8] {
        return Err(invalid("what speaks there is no node of ringfence".to_owned()));
    }
    if preface[8..] != PREFACE[8..] {
        let [.., low, high] = *preface;
        return Err(invalid(format!(
            "it speaks version {} of the protocol, this node version 1",
            u16::from_le_bytes([low, high])
        )));
    }
    Ok(())
}

impl<R: tokio::io::AsyncRead + Unpin> FrameReader<R> {
    /// Reads the bytes before the first frame.
    pub(super) async fn read_raw(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.source_mut().read_exact(bytes).await.map(drop)
    }
}
