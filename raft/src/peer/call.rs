//! Calls to another node: many at once over one connection, made when first needed and again after it broke.
//!
//! A call fails as *not sent* only if none of its bytes was given to the connection. From then on its fate is unknown
//! until its answer arrives.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::Peers;
use super::frame::{invalid, put_frame};
use super::hello::Channel;
use super::link::Link;
use super::message::{ANSWER, Answer, CALL, Call, get_numbered, put_numbered};
use crate::consensus::NodeId;

/// The most bytes of one answer: a thousand grants with all the keys that a lease may have.
const MAX_ANSWER: usize = 64 << 20;
/// As many bytes of queued calls are written at once.
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

/// The connection for calls to one node on one channel. Clones share it.
#[derive(Clone)]
pub(super) struct CallLink {
    queue: mpsc::UnboundedSender<(Call, Reply)>,
}

impl Peers {
    /// The answer of `to`. The caller bounds the time.
    pub(crate) async fn call(
        self: &Arc<Self>,
        to: NodeId,
        channel: Channel,
        call: Call,
    ) -> Result<Answer, CallError> {
        let (reply, answer) = oneshot::channel();
        let link = self.call_link(to, channel);
        if link.queue.send((call, reply)).is_err() {
            return Err(CallError::NotSent(io::Error::other("this node is stopping")));
        }
        match answer.await {
            Ok(result) => result,
            Err(_) => Err(CallError::Unknown(io::Error::other("this node is stopping"))),
        }
    }

    fn call_link(self: &Arc<Self>, to: NodeId, channel: Channel) -> CallLink {
        let mut links = self.links.lock().expect("no panic while the links are locked");
        let link = links.entry((to, channel)).or_insert_with(|| {
            let (queue, calls) = mpsc::unbounded_channel();
            let caller = Caller { peers: Arc::downgrade(self), to, channel, calls };
            tokio::spawn(caller.run());
            CallLink { queue }
        });
        link.clone()
    }
}

struct Caller {
    peers: std::sync::Weak<Peers>,
    to: NodeId,
    channel: Channel,
    calls: mpsc::UnboundedReceiver<(Call, Reply)>,
}

impl Caller {
    async fn run(mut self) {
        while let Some(first) = self.calls.recv().await {
            let Some(peers) = self.peers.upgrade() else { return };
            let mut queued = VecDeque::from([first]);
            let error = match peers.connect(self.to, self.channel, MAX_ANSWER).await {
                Ok(link) => {
                    drop(peers);
                    self.talk(link, &mut queued).await
                }
                Err(error) => error,
            };
            while let Ok(call) = self.calls.try_recv() {
                queued.push_back(call);
            }
            for (_, reply) in queued {
                // Whoever has gone meanwhile needs no answer.
                let _ = reply.send(Err(CallError::NotSent(copy(&error))));
            }
        }
    }

    /// Sends calls and takes answers until the connection breaks. What is left in `queued` was not sent.
    async fn talk(&mut self, mut link: Link, queued: &mut VecDeque<(Call, Reply)>) -> io::Error {
        let mut pending: HashMap<u64, Reply> = HashMap::new();
        let mut number = 0;
        let mut out = BytesMut::new();
        let error = loop {
            while let Ok(call) = self.calls.try_recv() {
                queued.push_back(call);
            }
            while out.len() < WRITE_BYTES
                && let Some((call, reply)) = queued.pop_front()
            {
                if reply.is_closed() {
                    continue;
                }
                number += 1;
                put_frame(&mut out, |out| {
                    put_numbered(out, number, &call);
                    CALL
                });
                pending.insert(number, reply);
            }
            if !out.is_empty() {
                if let Err(error) = link.writer.write_all(&out).await {
                    break error;
                }
                out.clear();
            }
            if !queued.is_empty() {
                continue;
            }
            tokio::select! {
                call = self.calls.recv() => match call {
                    Some(call) => queued.push_back(call),
                    None => break io::Error::other("this node is stopping"),
                },
                frame = link.reader.next() => match frame {
                    Ok(Some((ANSWER, body))) => match get_numbered(body) {
                        Ok((number, answer)) => {
                            if let Some(reply) = pending.remove(&number) {
                                let _ = reply.send(Ok(answer));
                            }
                        }
                        Err(error) => break error,
                    },
                    Ok(Some((kind, _))) => break invalid(format!("a frame of kind {kind} in place of an answer")),
                    Ok(None) => break io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"),
                    Err(error) => break error,
                },
            }
        };
        for (_, reply) in pending {
            let _ = reply.send(Err(CallError::Unknown(copy(&error))));
        }
        error
    }
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}
