//! Calls to another node: many at once over one connection, made when first needed and again after it broke.
//!
//! A link belongs to one incarnation of a node. An answer that comes over it is that incarnation's, even if another has the
//! same id before or after. When the membership names the incarnation no longer, the link is closed and what was asked
//! over it fails.
//!
//! A call fails as *not sent* only if none of its bytes was given to the connection. From then on its fate is unknown
//! until its answer arrives.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use uuid::Uuid;

use super::Peers;
use super::frame::{invalid, put_frame};
use super::hello::Channel;
use super::link::Link;
use super::message::{ANSWER, Answer, CALL, Call, get_numbered, put_numbered};
use crate::consensus::NodeId;

/// Calls on one connection that are not answered yet. Either side stops there: the caller sends no more, and the other
/// reads no more.
pub(super) const MAX_CALLS: usize = 4_096;
/// Calls that wait to be sent. More fail at once: the other side has hung for long then.
const MAX_QUEUED: usize = 4_096;
/// After a connection could not be made, none is tried for so long: a leader asks each voter with every round of reads.
const AGAIN: Duration = Duration::from_millis(50);
/// The most bytes of one answer: a thousand grants with all the keys that a lease may have.
const MAX_ANSWER: usize = 64 << 20;
/// As many bytes of calls are encoded ahead of the connection.
const WRITE_BYTES: usize = 256 << 10;

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// None of it was sent.
    NotSent(io::Error),
    /// It may have arrived.
    Unknown(io::Error),
}

type Reply = oneshot::Sender<Result<Answer, CallError>>;
type Pending = oneshot::Receiver<Result<Answer, CallError>>;

/// The connection for calls to one node on one channel. Dropping it closes the connection.
pub(super) struct CallLink {
    queue: mpsc::Sender<(Call, Reply)>,
    task: AbortHandle,
}

impl Drop for CallLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peers {
    /// The answer of `to`: of the member that the membership names now, or of the node that answers there if it names none. The
    /// caller bounds the time.
    pub(crate) async fn call(self: &Arc<Self>, to: NodeId, call: Call) -> Result<Answer, CallError> {
        self.call_link(to, self.member(to).map(|member| member.incarnation), call).await
    }

    /// The answer of this incarnation of `to`, and of no other. The caller bounds the time.
    pub(crate) async fn call_member(
        self: &Arc<Self>,
        to: NodeId,
        incarnation: Uuid,
        call: Call,
    ) -> Result<Answer, CallError> {
        self.call_link(to, Some(incarnation), call).await
    }

    async fn call_link(
        self: &Arc<Self>,
        to: NodeId,
        incarnation: Option<Uuid>,
        call: Call,
    ) -> Result<Answer, CallError> {
        let channel = call.channel();
        let pending = {
            let mut links = self.links();
            let link = links
                .entry((to, incarnation, channel))
                .or_insert_with(|| CallLink::start(self, to, incarnation, channel));
            link.send(call)?
        };
        let given_up = |_| Err(CallError::Unknown(io::Error::other("the connection was given up")));
        pending.await.unwrap_or_else(given_up)
    }
}

impl CallLink {
    fn start(peers: &Arc<Peers>, to: NodeId, incarnation: Option<Uuid>, channel: Channel) -> Self {
        let (queue, calls) = mpsc::channel(MAX_QUEUED);
        let caller = Caller { peers: Arc::downgrade(peers), to, incarnation, channel, calls };
        Self { queue, task: peers.runtime.spawn(caller.run()).abort_handle() }
    }

    fn send(&self, call: Call) -> Result<Pending, CallError> {
        let (reply, pending) = oneshot::channel();
        match self.queue.try_send((call, reply)) {
            Ok(()) => Ok(pending),
            Err(TrySendError::Full(_)) => {
                Err(CallError::NotSent(io::Error::other("too many calls wait to be sent")))
            }
            Err(TrySendError::Closed(_)) => {
                Err(CallError::NotSent(io::Error::other("this node is stopping")))
            }
        }
    }
}

struct Caller {
    peers: Weak<Peers>,
    to: NodeId,
    incarnation: Option<Uuid>,
    channel: Channel,
    calls: mpsc::Receiver<(Call, Reply)>,
}

impl Caller {
    async fn run(mut self) {
        let mut failed: Option<(Instant, io::Error)> = None;
        while let Some(first) = self.calls.recv().await {
            if let Some((at, error)) = &failed
                && at.elapsed() < AGAIN
            {
                not_sent(first, error);
                continue;
            }
            let Some(peers) = self.peers.upgrade() else { return };
            match peers.connect(self.to, self.incarnation, self.channel, MAX_ANSWER).await {
                Ok(link) => {
                    drop(peers);
                    self.talk(link, first).await;
                }
                Err(error) => {
                    not_sent(first, &error);
                    while let Ok(call) = self.calls.try_recv() {
                        not_sent(call, &error);
                    }
                    failed = Some((Instant::now(), error));
                }
            }
        }
    }

    /// Sends calls and takes answers until the connection breaks.
    ///
    /// It never waits for one of the two alone: the other side reads no more calls while its answers are not taken.
    async fn talk(&mut self, mut link: Link, first: (Call, Reply)) {
        let mut sent = Sent { unanswered: HashMap::new(), number: 0, out: BytesMut::new() };
        sent.push(first);
        let error = loop {
            while sent.has_room()
                && let Ok(call) = self.calls.try_recv()
            {
                sent.push(call);
            }
            tokio::select! {
                frame = link.reader.next() => match frame {
                    Ok(Some((ANSWER, body))) => match get_numbered(body) {
                        Ok((number, answer)) => sent.settle(number, answer),
                        Err(error) => break error,
                    },
                    Ok(Some((kind, _))) => break invalid(format!("a frame of kind {kind} in place of an answer")),
                    Ok(None) => break io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"),
                    Err(error) => break error,
                },
                written = link.writer.write_buf(&mut sent.out), if !sent.out.is_empty() => match written {
                    Ok(_) => {}
                    Err(error) => break error,
                },
                call = self.calls.recv(), if sent.has_room() => match call {
                    Some(call) => sent.push(call),
                    None => return,
                },
            }
        };
        for (_, reply) in sent.unanswered {
            let _ = reply.send(Err(CallError::Unknown(copy(&error))));
        }
    }
}

/// The calls that one connection was given.
struct Sent {
    unanswered: HashMap<u64, Reply>,
    number: u64,
    /// What is still to be written.
    out: BytesMut,
}

impl Sent {
    fn has_room(&self) -> bool {
        self.out.len() < WRITE_BYTES && self.unanswered.len() < MAX_CALLS
    }

    /// A call that nobody waits for any more is left out.
    fn push(&mut self, (call, reply): (Call, Reply)) {
        if reply.is_closed() {
            return;
        }
        self.number += 1;
        put_frame(&mut self.out, |out| {
            put_numbered(out, self.number, &call);
            CALL
        });
        self.unanswered.insert(self.number, reply);
    }

    fn settle(&mut self, number: u64, answer: Answer) {
        if let Some(reply) = self.unanswered.remove(&number) {
            let _ = reply.send(Ok(answer));
        }
    }
}

fn not_sent((_, reply): (Call, Reply), error: &io::Error) {
    // The caller may have gone.
    let _ = reply.send(Err(CallError::NotSent(copy(error))));
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures_util::FutureExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use crate::peer::frame::FrameReader;
    use crate::peer::hello::{Hello, MAX_HELLO, PREFACE, WELCOME, Welcome, get, put};
    use crate::storage::identity::Identity;

    const SOON: Duration = Duration::from_secs(30);

    /// The node 1, which finds the node 2 at the other end.
    async fn node() -> (Arc<Peers>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity =
            Identity { node_id: 1, incarnation: Uuid::from_u128(1), cluster: None, founder: false };
        let addresses = BTreeMap::from([(2, listener.local_addr().unwrap().to_string())]);
        (Arc::new(Peers::new(identity, String::new(), addresses)), listener)
    }

    /// Takes the next connection, as the incarnation that is called.
    async fn welcome(listener: &TcpListener) -> (FrameReader<TcpStream>, Hello) {
        let (stream, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
        let mut reader = FrameReader::new(stream, MAX_HELLO);
        reader.read_raw(&mut [0; PREFACE.len()]).await.unwrap();
        let (_, body) = reader.next().await.unwrap().unwrap();
        let hello: Hello = get(&body).unwrap();
        let mut out = BytesMut::from(&PREFACE[..]);
        let incarnation = hello.to_incarnation.unwrap_or_default();
        put_frame(&mut out, |out| {
            put(out, &Welcome { incarnation, url: String::new() });
            WELCOME
        });
        reader.source_mut().write_all(&out).await.unwrap();
        reader.set_max(MAX_ANSWER);
        (reader, hello)
    }

    async fn answer(reader: &mut FrameReader<TcpStream>, answer: Answer) {
        let (_, body) = reader.next().await.unwrap().unwrap();
        let (number, _) = get_numbered::<Call>(body).unwrap();
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| {
            put_numbered(out, number, &answer);
            ANSWER
        });
        reader.source_mut().write_all(&out).await.unwrap();
    }

    fn call(
        peers: &Arc<Peers>,
        incarnation: u128,
        call: Call,
    ) -> tokio::task::JoinHandle<Result<Answer, CallError>> {
        let peers = Arc::clone(peers);
        tokio::spawn(async move { peers.call_member(2, Uuid::from_u128(incarnation), call).await })
    }

    #[tokio::test]
    async fn each_incarnation_has_a_link_of_its_own_and_an_answer_is_its_own() {
        let (peers, listener) = node().await;
        let old = call(&peers, 10, Call::ReadIndex);
        let (mut old_end, hello) = welcome(&listener).await;
        assert_eq!(hello.to_incarnation, Some(Uuid::from_u128(10)));
        let new = call(&peers, 11, Call::ReadIndex);
        let (mut new_end, hello) = welcome(&listener).await;
        assert_eq!(hello.to_incarnation, Some(Uuid::from_u128(11)));
        answer(&mut old_end, Answer::Unknown).await;
        assert_eq!(old.await.unwrap().unwrap(), Answer::Unknown);
        assert!(!new.is_finished());
        answer(&mut new_end, Answer::NotDone).await;
        assert_eq!(new.await.unwrap().unwrap(), Answer::NotDone);
    }

    #[tokio::test]
    async fn what_was_asked_over_a_link_that_is_dropped_fails_as_unknown() {
        let (peers, listener) = node().await;
        let asked = call(&peers, 10, Call::ReadIndex);
        let (mut end, _) = welcome(&listener).await;
        assert!(end.next().await.unwrap().is_some());
        peers.links().clear();
        assert!(matches!(asked.await.unwrap(), Err(CallError::Unknown(_))));
        assert!(end.next().await.unwrap().is_none());
    }

    /// The queue once grew for as long as the other side hung.
    #[tokio::test]
    async fn a_node_that_hangs_is_soon_asked_no_more() {
        let (peers, listener) = node().await;
        let first = call(&peers, 10, Call::ReadIndex);
        let (mut end, _) = welcome(&listener).await;
        let (mut taken, mut refused) = (Vec::new(), 0);
        for _ in 0..2 * (MAX_CALLS + MAX_QUEUED) {
            let mut asked = Box::pin(peers.call_member(2, Uuid::from_u128(10), Call::ReadIndex));
            match (&mut asked).now_or_never() {
                None => taken.push(asked),
                Some(Err(CallError::NotSent(_))) => refused += 1,
                Some(other) => panic!("{other:?}"),
            }
            // The link takes what it can.
            tokio::task::yield_now().await;
        }
        assert_eq!(taken.len() + 1, MAX_CALLS + MAX_QUEUED);
        assert_eq!(refused, MAX_CALLS + MAX_QUEUED + 1);
        answer(&mut end, Answer::NotDone).await;
        assert_eq!(first.await.unwrap().unwrap(), Answer::NotDone);
    }

    /// The caller once took no answers while it wrote: the other side, which writes before it reads on, waited for it.
    #[tokio::test]
    async fn answers_are_taken_while_calls_are_written() {
        let (peers, listener) = node().await;
        let large = "x".repeat(256 << 10);
        let asked: Vec<_> = (0..200)
            .map(|_| {
                let order = crate::members::Order::Add { id: 3, peer: large.clone() };
                call(&peers, 10, Call::Order(order))
            })
            .collect();
        let (mut end, _) = welcome(&listener).await;
        let all = async {
            for _ in 0..asked.len() {
                answer(&mut end, Answer::Refused { reason: large.clone() }).await;
            }
        };
        timeout(SOON, all).await.expect("both wait for each other");
        for asked in asked {
            assert!(matches!(asked.await.unwrap(), Ok(Answer::Refused { .. })));
        }
    }
}
