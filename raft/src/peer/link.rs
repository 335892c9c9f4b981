//! Opening a connection to another node, and accepting one from it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::certificate::Certificate;
use super::copies::{copied, is_copy};
use super::directory::{Directory, Target, refusal};
use super::frame::{FrameReader, FrameWriter, invalid, unexpected};
use super::handshake::{
    Channel, HELLO, Hello, MAX_HELLO, Places, Processes, Program, REFUSAL, WELCOME, Welcome, get_hello,
    get_refusal, get_welcome, put_first, put_hello, put_refusal, read_first,
};
use super::known::Process;
use super::transport::Connection;
use crate::consensus::{LogId, NodeId, Vote};
use crate::storage::identity::Identity;
use crate::storage::log_store::LogStore;
use crate::storage::starts::Starts;

/// How long connecting and the handshake may take: five round trips of half a second, with TLS, and the time to ask whether
/// another process runs with the caller's data directory.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// How long a caller's hello may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a node after the handshake.
pub(super) struct Link {
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    /// The program of the other side, if that was called.
    pub(super) program: Program,
    certificate: Option<Certificate>,
    /// The other side, if that was called.
    to: Option<NodeId>,
}

impl Directory {
    /// Connects to `target`; refuses frames with more than `max` bytes.
    pub(super) async fn connect(&self, target: Target, max: usize) -> io::Result<Link> {
        let connecting = timeout(CONNECT_TIMEOUT, self.try_connect(target, max));
        let result = connecting.await.unwrap_or_else(|_| Err(timed_out("no answer in time")));
        self.note_reachable(target.to, result.as_ref().map(drop));
        result
    }

    async fn try_connect(&self, target: Target, max: usize) -> io::Result<Link> {
        let to = target.to;
        let no_address =
            || io::Error::new(io::ErrorKind::NotFound, format!("no address of node {to} is known"));
        let address = self.address(to).ok_or_else(no_address)?;
        let mut trying = Trying { directory: self, to, address: Some(address.clone()) };
        let greeted = self.greet_at(target, &address).await.inspect_err(|error| {
            if is_copy(error) {
                self.condemn(to, &error.to_string());
            }
        })?;
        let process = (to, greeted.welcome.incarnation);
        self.note_welcome(to, greeted.welcome, greeted.link.program.clone());
        self.check_starts(process, &greeted.starts).map_err(|error| self.note_refused(to, error))?;
        // While a cluster is founded, nobody is known to be a member.
        if let Some(newest) = greeted.starts.newest().filter(|_| target.channel != Channel::Founding) {
            self.meet(process, newest);
            greeted.link.certificate.iter().for_each(|it| it.note_newest(to));
        }
        trying.address = None;
        self.note_answered(to, address);
        let mut link = greeted.link;
        link.reader.set_max(max);
        Ok(link)
    }

    /// Connects to `target` at `address`, and says hello. What answers is only looked at. An error [`is_copy`] if it says that this
    /// process runs with a copy of a data directory.
    pub(super) async fn greet_at(&self, target: Target, address: &str) -> io::Result<Greeted> {
        let Target { to, incarnation, channel } = target;
        let at_address = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        // The transport itself is not kept while this waits: it is this node's port.
        let connecting = self.transport()?.connect(address);
        let connection = connecting.await.map_err(at_address)?;
        if connection.certificate.as_ref().is_some_and(|it| !it.is_of(to, Some(address))) {
            return Err(refusal(format!("{address}: its certificate is not of node {to}")));
        }
        let hello = Hello {
            group: 0,
            channel,
            cluster: self.cluster(),
            from: self.identity.node_id,
            incarnation: self.identity.incarnation,
            to,
            to_incarnation: incarnation,
            member_as_of: self.member_as_of(),
            url: self.own_url.clone(),
        };
        let mut link = Link { to: Some(to), ..Link::new(connection) };
        let (starts, met) = (self.identity.starts.clone(), self.met(to, incarnation));
        put_hello(&mut link.writer, &hello, &Processes { starts, met, places: self.places(address) });
        link.writer.flush().await?;
        let (welcome, program, starts) = match link.welcome().await {
            Ok(Answered::Welcome(welcome, program, starts)) => (welcome, program, starts),
            Ok(Answered::Refusal(reason, true)) => return Err(copied(format!("{address}: {reason}"))),
            Ok(Answered::Refusal(reason, false)) => return Err(at_address(refusal(reason))),
            Err(error) => return Err(at_address(error)),
        };
        let is_other = incarnation.is_some_and(|expected| expected != welcome.incarnation);
        if is_other {
            return Err(invalid(format!(
                "{address}: node {to} answers from another data directory than the cluster knows"
            )));
        }
        link.program = program;
        Ok(Greeted { link, welcome, starts })
    }
}

/// Notes that an address did not answer, also if nobody waits for it any more.
struct Trying<'a> {
    directory: &'a Directory,
    to: NodeId,
    address: Option<String>,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if let Some(address) = self.address.take() {
            self.directory.note_failed(self.to, address);
        }
    }
}

/// A node that was called, and has answered.
pub(super) struct Greeted {
    pub(super) link: Link,
    pub(super) welcome: Welcome,
    pub(super) starts: Starts,
}

/// The answer to a hello.
enum Answered {
    Welcome(Welcome, Program, Starts),
    /// Why, and whether it is that this process runs with a copy of a data directory.
    Refusal(String, bool),
}

impl Link {
    fn new(Connection { reader, writer, certificate, .. }: Connection) -> Self {
        let (reader, writer) = (FrameReader::new(reader, MAX_HELLO), FrameWriter::new(writer));
        Self { reader, writer, program: Program::silent(), certificate, to: None }
    }

    /// Whether another connection should replace it: this node would show another certificate, or trust another one, or the other
    /// side has another one to show.
    pub(super) fn is_stale(&self) -> bool {
        let is_stale = |of: &Certificate| of.is_stale() || self.to.is_some_and(|id| of.is_replaced(id));
        self.certificate.as_ref().is_some_and(is_stale)
    }

    /// # Errors
    /// This node no longer trusts the certificate that the other side has shown.
    pub(super) fn check_trusted(&self) -> io::Result<()> {
        self.certificate.as_ref().map_or(Ok(()), Certificate::check)
    }

    async fn welcome(&mut self) -> io::Result<Answered> {
        match read_first(&mut self.reader, "welcome").await? {
            (WELCOME, body) => get_welcome(&body)
                .map(|(welcome, program, starts)| Answered::Welcome(welcome, program, starts)),
            (REFUSAL, body) => get_refusal(&body).map(|(reason, is_copy)| Answered::Refusal(reason, is_copy)),
            (kind, _) => Err(unexpected(kind, "a welcome")),
        }
    }

    async fn hello(&mut self) -> io::Result<(Hello, Processes)> {
        match read_first(&mut self.reader, "hello").await? {
            (HELLO, body) => get_hello(&body),
            (kind, _) => Err(unexpected(kind, "a hello")),
        }
    }
}

/// What a caller who was welcome sends.
pub(super) struct Incoming {
    pub(super) directory: Arc<Directory>,
    pub(super) from: NodeId,
    pub(super) channel: Channel,
    hello: Hello,
    starts: Starts,
    reader: FrameReader,
}

impl Incoming {
    /// Reads the hello of a caller, and answers with a welcome or a refusal.
    pub(super) async fn accept(
        directory: Arc<Directory>,
        connection: Connection,
    ) -> io::Result<(Self, FrameWriter)> {
        let mut link = Link::new(connection);
        let hello = timeout(HELLO_TIMEOUT, link.hello()).await;
        let hello = hello.unwrap_or_else(|_| Err(timed_out("it said nothing in time")));
        let Link { reader, mut writer, certificate, .. } = link;
        let is_shown = |id| certificate.as_ref().is_none_or(|it| directory.is_shown(it, id));
        let admitted = match hello {
            Err(error) => Err((error, false)),
            // Not as a reason that the node is refused for: it may be another that said so.
            Ok((hello, processes)) if !is_shown(hello.from) => {
                Err((unshown(hello.from, &processes.places), false))
            }
            Ok((hello, processes)) => match directory.admit(&hello, &processes).await {
                Ok(()) => Ok((hello, processes.starts)),
                Err(error) => {
                    let is_copy = is_copy(&error);
                    Err((directory.note_refused(hello.from, error), is_copy))
                }
            },
        };
        match &admitted {
            Ok(_) => {
                let Identity { incarnation, starts, .. } = &directory.identity;
                let welcome = Welcome { incarnation: *incarnation, url: directory.own_url.clone() };
                put_first(&mut writer, WELCOME, &(&welcome, &directory.program, starts));
            }
            Err((error, is_copy)) => put_refusal(&mut writer, error.to_string(), *is_copy),
        }
        // If the caller has gone, the refusal is the better error.
        let written = writer.flush().await;
        let (hello, starts) = admitted.map_err(|(error, _)| error)?;
        // Whoever founds a cluster is checked no further.
        if let Some(certificate) = certificate.filter(|_| hello.channel != Channel::Founding) {
            certificate.note_newest(hello.from);
        }
        written?;
        Ok((Self { directory, from: hello.from, channel: hello.channel, hello, starts, reader }, writer))
    }

    /// The process that calls.
    pub(super) fn caller(&self) -> Process {
        (self.from, self.hello.incarnation)
    }

    /// Refuses frames with more than `max` bytes of kind and body.
    pub(super) fn set_max(&mut self, max: usize) {
        self.reader.set_max(max);
    }

    /// An error unless the caller speaks for itself, in a term that can be: `vote` has the node that a message is from, and
    /// `newest` is the newest log entry that it names.
    pub(super) fn check_vote(&self, vote: &Vote, newest: Option<LogId>) -> io::Result<()> {
        let (term, speaker) = (vote.leader_id.term, vote.leader_id.voted_for);
        if speaker != self.from {
            return Err(invalid(format!("node {} speaks for node {speaker}", self.from)));
        }
        if let Some(newest) = newest.filter(|newest| newest.committed_leader_id().term > term) {
            return Err(invalid(format!("node {speaker} names the entry {newest} in term {term}")));
        }
        self.directory.check_term(term)
    }

    /// An error if the caller, which leads with `vote` and has the entries `named`, lacks an entry that is committed in this
    /// `log`. openraft does not compare that.
    pub(super) fn check_log(
        &self,
        log: &LogStore,
        vote: &Vote,
        named: impl Iterator<Item = LogId>,
    ) -> io::Result<()> {
        match log.contradicted(vote.leader_id.term, named) {
            None => Ok(()),
            Some(own) => Err(self.directory.has_forgotten(self.from, own)),
        }
    }

    /// The next frame; `None` if the caller closed between two. An error if the caller is no longer admitted: the membership
    /// has changed, or it is known by now to run with a copy of a data directory. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let frame = self.reader.next().await?;
        let admitted = self.directory.check_caller(&self.hello);
        match admitted.and_then(|()| self.directory.check_starts(self.caller(), &self.starts)) {
            Ok(()) => Ok(frame),
            Err(error) => Err(self.directory.note_refused(self.from, error)),
        }
    }
}

/// The error for a caller whose certificate is of no place where this node knows `id` to be.
fn unshown(id: NodeId, places: &Places) -> io::Error {
    let own = places.own.as_str();
    let own = if own.is_empty() { "HOST:PORT" } else { own };
    refusal(format!(
        "the certificate of the caller is not of node {id}. If node {id} has moved to the host that it names, run `ringfence cluster \
         add {id} {own}`"
    ))
}

pub(super) fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}
