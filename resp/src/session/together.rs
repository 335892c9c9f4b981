//! Requests that arrive together. The threads of a program may share a connection, and then none of them waits for another.
//!
//! Commands on keys and scripts, outside MULTI, wait for the cluster at the same time, unless they name the same key. Each begins in a turn
//! of its own. Everything else is done alone. The answers are in the order of the requests, and are sent together.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use bytes::{Buf, Bytes};
use futures_util::stream::FuturesOrdered;
use futures_util::{Stream, StreamExt};
use ringfence_http::Connection;
use ringfence_service::Caller;
use tokio::task::yield_now;

use super::{Answered, Asked, MAX_REPLY, Session};
use crate::command::Command;
use crate::frame::{Frame, Malformed, Request};
use crate::request_log::OpenRequest;
use crate::verbs::Place;
use crate::work::Work;

/// A request that has arrived.
pub(super) struct Received {
    pub(super) sent: Bytes,
    pub(super) request: Request,
    pub(super) name: &'static str,
    pub(super) command: Command,
}

impl Session {
    /// Answers all requests in `sent`, in their order.
    pub(crate) async fn answer_all(&mut self, sent: Bytes, connection: &Connection) -> Answered {
        let mut answered = Answered::default();
        let mut received = match all(sent) {
            Ok(received) => received,
            Err(malformed) => return Answered::last(&malformed.into()),
        };
        while let Some(first) = received.pop_front() {
            let others = received.iter().take_while(|one| one.may_join()).count();
            let caller = self.caller().ok();
            let next = match caller {
                Some(caller) if others > 0 && first.may_join() && !self.pending.is_queueing() => {
                    self.is_first = false;
                    let joined: Vec<Received> = [first].into_iter().chain(received.drain(..others)).collect();
                    self.answer_together(&joined, &caller, connection).await
                }
                _ => self.answer(first, connection).await,
            };
            answered.add(next);
            if answered.is_last {
                break;
            }
        }
        answered
    }

    async fn answer_together(
        &self,
        joined: &[Received],
        caller: &Caller,
        connection: &Connection,
    ) -> Answered {
        super::belongs_to(connection, Some(caller));
        let (mut answered, replies) = (Answered::default(), AtomicUsize::new(0));
        let (mut begun, mut named) = (FuturesOrdered::new(), BTreeSet::new());
        for Received { sent, request, name, command } in joined {
            let mut open = OpenRequest::new(&self.node.log, self.remote.address, name);
            open.is_of(caller.principal());
            let (name, command, arguments, replies) = (*name, *command, &request.arguments[..], &replies);
            let asked = Asked { name, command, arguments, sent, caller, connection, replies };
            let work = self.admit(asked).and_then(|()| {
                Command::check(name, arguments.len() - 1)?;
                Work::read(arguments, self.from(caller, Place::Alone))
            });
            let keys = work.as_ref().map_or(&[][..], Work::keys);
            if keys.iter().any(|key| named.contains(key)) || replies.load(Relaxed) > MAX_REPLY {
                while let Some(next) = begun.next().await {
                    answered.add(next);
                }
                named.clear();
                replies.store(0, Relaxed);
            }
            if answered.is_last {
                break;
            }
            named.extend(keys.iter().cloned());
            let is_refused = work.is_err();
            begun.push_back(async move {
                let done = match work {
                    Ok(work) => self.perform(asked, &work).await,
                    Err(refused) => Err(refused),
                };
                self.end(done, open, Some(caller), connection).await
            });
            // It begins.
            let ready = poll_fn(|cx| Poll::Ready(Pin::new(&mut begun).poll_next(cx))).await;
            if let Poll::Ready(Some(next)) = ready {
                answered.add(next);
            }
            // One that is refused for its rate holds back what is behind it.
            while is_refused && let Some(next) = begun.next().await {
                answered.add(next);
            }
            yield_now().await;
        }
        while let Some(next) = begun.next().await {
            answered.add(next);
        }
        answered
    }
}

impl Received {
    /// Whether it may wait for the cluster together with others.
    fn may_join(&self) -> bool {
        self.command == Command::Work && !self.request.is_words
    }
}

/// The requests in `sent`, but for empty ones.
fn all(mut sent: Bytes) -> Result<VecDeque<Received>, Malformed> {
    let mut received = VecDeque::new();
    while let Some(length) = Frame::default().advance(&sent)? {
        let one = sent.slice(..length);
        sent.advance(length);
        let request = Request::read(&one)?;
        if let Some(name) = request.arguments.first() {
            let (name, command) = Command::of(name);
            received.push_back(Received { sent: one, request, name, command });
        }
    }
    Ok(received)
}
