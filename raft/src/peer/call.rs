//! Calls to another node: many in flight over one connection, which is made when needed and made again after it broke. Once it is stale,
//! another takes its place ([`successor`](super::successor)). The old one stays open for the answers that it owes.
//!
//! A link belongs to one incarnation of a node. An answer that arrives on it comes from that incarnation, even if another
//! has the same id before or after. When the membership stops naming the incarnation, the link is closed and its open calls
//! fail.
//!
//! Askers take turns in the leader's queue, but not on the link that leads to it. So a link refuses proposals of an asker that has its part
//! of those without an answer ([`Room`]), even if their clients are gone: the leader has them. While answers come, the client is told so at
//! once, as by the leader's queue. If none has come for [`LATELY`], the other side may have gone, or nobody has asked: a refused call then
//! fails as not sent, and is tried again, perhaps at the next leader.
//!
//! A call fails as *not sent* only if none of its bytes was given to the connection. From then on its outcome is unknown
//! until its answer arrives. Whoever stops waiting before that takes the call back: the connection and the caller race for it,
//! and one of them wins.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use ringfence_room::{Bound, Portion, Room};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::directory::{Directory, Target};
use super::frame::{FrameReader, closed, unexpected};
use super::link::{Link, timed_out};
use super::message::{ANSWER, Answer, CALL, Call, get_numbered, put_numbered};
use super::successor::Successor;
use crate::gate::Since;
use crate::propose::asker::Asker;

/// The most unanswered calls on one connection. At this limit the caller sends no more, and the other side reads no more.
pub(super) const MAX_CALLS: usize = 4_096;
/// The most of them that are proposals. The rest is for what the nodes ask.
const PROPOSALS: Bound = Bound { max: MAX_CALLS / 16 * 15, little: 16 };
/// A proposal counts once for each part of this many bytes.
const PART: usize = 16 << 10;
/// The most calls that wait to be sent. More fail at once: the other side has hung for long by then.
pub(super) const MAX_QUEUED: usize = 4_096;
/// Pause after a failed connection attempt. Without it, each round of reads of a leader would try to connect again.
const AGAIN: Duration = Duration::from_millis(50);
/// An answer within this time shows that the other side works.
pub(super) const LATELY: Duration = Duration::from_millis(500);
/// The most bytes of one answer: a thousand grants with all the keys that a lease may have.
const MAX_ANSWER: usize = 64 << 20;
/// How long a connection that another has replaced waits for answers. A change of the members may take 10 s.
const LEFT_FOR: Duration = Duration::from_secs(15);
/// How many bytes of calls are encoded ahead of the connection.
const WRITE_BYTES: usize = 256 << 10;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// None of it was sent.
    #[error(transparent)]
    NotSent(io::Error),
    /// None of a proposal was sent, as its asker has its part of the link.
    #[error("too many proposals of the same client are unanswered")]
    Full,
    /// It may have arrived.
    #[error(transparent)]
    Unknown(io::Error),
}

/// Where an answer goes. A proposal counts until it is answered.
struct Reply {
    to: oneshot::Sender<Result<Answer, CallError>>,
    _portion: Option<Portion<Asker>>,
}

impl Reply {
    /// The caller may have gone.
    fn send(self, answered: Result<Answer, CallError>) {
        let _ = self.to.send(answered);
    }
}

/// A call on its way to a connection, or back to its caller.
struct Queued {
    call: Call,
    reply: Reply,
    claim: Claim,
}

/// The right to decide whether a call is sent. The connection claims it before the first byte, the caller when it waits no more.
#[derive(Clone, Default)]
struct Claim(Arc<AtomicBool>);

impl Claim {
    /// Whether nobody was earlier.
    fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// A call without an answer so far. Dropping it takes the call back, if none of it was sent.
pub(super) struct Pending {
    answer: oneshot::Receiver<Result<Answer, CallError>>,
    claim: Claim,
}

impl Pending {
    /// The answer, unless `end` comes first.
    pub(super) async fn answer_before(
        mut self,
        end: impl Future<Output = io::Error>,
    ) -> Result<Answer, CallError> {
        let error = tokio::select! {
            biased;
            answer = &mut self.answer => match answer {
                Ok(answer) => return answer,
                Err(_) => closed("the connection was closed before the answer"),
            },
            error = end => error,
        };
        Err(match self.claim.claim() {
            true => CallError::NotSent(error),
            false => CallError::Unknown(error),
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.claim.claim();
    }
}

/// The connection for calls to one node on one channel. Dropping it closes the connection.
pub(super) struct CallLink {
    queue: mpsc::Sender<Queued>,
    proposals: Arc<Room<Asker>>,
    /// When the last answer came; at first, when the link was made.
    answered: Arc<Mutex<Instant>>,
    task: AbortHandle,
}

impl Drop for CallLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CallLink {
    pub(super) fn start(directory: Arc<Directory>, since: Since, target: Target, runtime: &Handle) -> Self {
        let (queue, calls) = mpsc::channel(MAX_QUEUED);
        let answered = Arc::new(Mutex::new(Instant::now()));
        let caller = Caller { directory, since, target, calls, answered: Arc::clone(&answered) };
        let task = runtime.spawn(caller.run()).abort_handle();
        Self { queue, proposals: Room::new(PROPOSALS), answered, task }
    }

    pub(super) fn send(&self, call: Call) -> Result<Pending, CallError> {
        let portion = match &call {
            Call::ProposeOf { asker, request, .. } => {
                let asker = Asker::from_number(*asker);
                let portion = self.proposals.take(asker, 1 + request.size_hint() / PART);
                Some(portion.ok_or_else(|| self.no_room())?)
            }
            _ => None,
        };
        let (to, answer) = oneshot::channel();
        let reply = Reply { to, _portion: portion };
        let claim = Claim::default();
        match self.queue.try_send(Queued { call, reply, claim: claim.clone() }) {
            Ok(()) => Ok(Pending { answer, claim }),
            Err(TrySendError::Full(_)) => {
                Err(CallError::NotSent(io::Error::other("too many calls wait to be sent")))
            }
            Err(TrySendError::Closed(_)) => {
                Err(CallError::NotSent(io::Error::other("this node is stopping")))
            }
        }
    }

    fn no_room(&self) -> CallError {
        match self.answered.lock().expect(UNPOISONED).elapsed() < LATELY {
            true => CallError::Full,
            false => CallError::NotSent(timed_out("too many proposals are unanswered, and no answer comes")),
        }
    }
}

const UNPOISONED: &str = "nothing panics while the time is locked";

/// Connects when there is a call, and again after a break. For [`AGAIN`] after a failed attempt, calls fail at once.
struct Caller {
    directory: Arc<Directory>,
    since: Since,
    target: Target,
    calls: mpsc::Receiver<Queued>,
    answered: Arc<Mutex<Instant>>,
}

impl Caller {
    async fn run(mut self) {
        let mut failed: Option<(Instant, io::Error)> = None;
        while let Some(first) = self.calls.recv().await {
            if let Some((at, error)) = &failed
                && at.elapsed() < AGAIN
            {
                not_sent(first.reply, error);
                continue;
            }
            match self.directory.connect(self.target, MAX_ANSWER).await {
                Ok(link) => self.talk(link, first).await,
                Err(error) => {
                    not_sent(first.reply, &error);
                    while let Some(Queued { reply, .. }) = self.next_now() {
                        not_sent(reply, &error);
                    }
                    failed = Some((Instant::now(), error));
                }
            }
        }
    }

    /// The next call, if one is queued. `try_recv` would park this thread while another is in the middle of sending.
    fn next_now(&mut self) -> Option<Queued> {
        self.calls.recv().now_or_never()?
    }

    /// Sends calls and receives answers until the connection breaks, or no more calls will come.
    ///
    /// It never waits for one of the two alone: the other side stops reading calls while its answers are not read.
    async fn talk(&mut self, link: Link, first: Queued) {
        let (unanswered, successor) = (BTreeMap::new(), Successor::new());
        let mut sent = Sent { link, before: None, successor, since: self.since, unanswered, number: 0 };
        sent.push(first);
        let error = loop {
            sent.renew();
            while sent.has_room()
                && let Some(call) = self.next_now()
            {
                sent.push(call);
            }
            let (has_room, is_writing) = (sent.has_room(), !sent.link.writer.is_flushed());
            // Writes go first, and stop when `MAX_CALLS` are unanswered. Queued calls are taken above, too, so no flood of
            // frames holds them up.
            tokio::select! {
                biased;
                written = sent.link.writer.write_some(), if is_writing => match written {
                    Ok(()) => {}
                    Err(error) => break error,
                },
                answered = next_answer(&mut sent.link.reader) => match answered {
                    Ok((number, answer)) => {
                        *self.answered.lock().expect(UNPOISONED) = Instant::now();
                        sent.complete(number, answer);
                    }
                    Err(error) => break error,
                },
                answered = Before::next_answer(&mut sent.before) => match answered {
                    Ok((number, answer)) => {
                        *self.answered.lock().expect(UNPOISONED) = Instant::now();
                        sent.complete(number, answer);
                    }
                    Err(error) => sent.forget_before(&error),
                },
                () = sent.successor.changed() => if let Err(error) = sent.look(&self.directory, self.target) {
                    break error;
                },
                call = self.calls.recv(), if has_room => match call {
                    Some(call) => sent.push(call),
                    None => return,
                },
            }
        };
        unknown(sent.unanswered, &error);
    }
}

async fn next_answer(reader: &mut FrameReader) -> io::Result<(u64, Answer)> {
    match reader.next().await? {
        Some((ANSWER, body)) => get_numbered(body),
        Some((kind, _)) => Err(unexpected(kind, "an answer")),
        None => Err(closed("the connection was closed")),
    }
}

/// The calls that were sent and are not answered, on a connection and on the one before it.
struct Sent {
    link: Link,
    before: Option<Before>,
    successor: Successor,
    since: Since,
    /// In the order in which they were sent.
    unanswered: BTreeMap<u64, Reply>,
    number: u64,
}

/// A connection that another has replaced, and that owes answers.
struct Before {
    link: Link,
    /// The number of the last call that was sent on it.
    last: u64,
    until: Instant,
}

impl Before {
    /// Waits for ever if there is no such connection.
    async fn next_answer(before: &mut Option<Self>) -> io::Result<(u64, Answer)> {
        match before {
            Some(Self { link, until, .. }) => {
                let none = || Err(timed_out("no answer on a connection that was replaced"));
                timeout_at(*until, next_answer(&mut link.reader)).await.unwrap_or_else(|_| none())
            }
            None => std::future::pending().await,
        }
    }
}

impl Sent {
    /// Goes on with another connection if it is there, unless an earlier one still owes answers.
    fn renew(&mut self) {
        if self.before.is_none()
            && self.link.writer.is_flushed()
            && let Some(link) = self.successor.take()
        {
            let (link, last) = (std::mem::replace(&mut self.link, link), self.number);
            let before = Before { link, last, until: Instant::now() + LEFT_FOR };
            self.before = (!self.unanswered.is_empty()).then_some(before);
        }
    }

    fn look(&mut self, directory: &Arc<Directory>, target: Target) -> io::Result<()> {
        self.successor.look(&self.link, directory, target, MAX_ANSWER)
    }

    fn has_room(&self) -> bool {
        self.link.writer.queued() < WRITE_BYTES && self.unanswered.len() < MAX_CALLS
    }

    /// Skips a call that was taken back.
    fn push(&mut self, Queued { call, reply, claim }: Queued) {
        let Some(call) = call.within(&self.link.program, self.since) else {
            let error = io::Error::new(io::ErrorKind::Unsupported, "its program is too old for this");
            return not_sent(reply, &error);
        };
        if !claim.claim() {
            return;
        }
        self.number += 1;
        self.link.writer.put(CALL, |out| put_numbered(out, self.number, &call));
        self.unanswered.insert(self.number, reply);
    }

    fn complete(&mut self, number: u64, answer: Answer) {
        if let Some(reply) = self.unanswered.remove(&number) {
            reply.send(Ok(answer));
        }
        let unanswered = &self.unanswered;
        self.before.take_if(|before| unanswered.range(..=before.last).next().is_none());
    }

    fn forget_before(&mut self, error: &io::Error) {
        if let Some(before) = self.before.take() {
            let later = self.unanswered.split_off(&(before.last + 1));
            unknown(std::mem::replace(&mut self.unanswered, later), error);
        }
    }
}

fn unknown(calls: BTreeMap<u64, Reply>, error: &io::Error) {
    for reply in calls.into_values() {
        reply.send(Err(CallError::Unknown(copy(error))));
    }
}

fn not_sent(reply: Reply, error: &io::Error) {
    reply.send(Err(CallError::NotSent(copy(error))));
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}
