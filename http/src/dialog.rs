//! Connections that speak another protocol than HTTP: requests, each with one response, in their order.
//!
//! The bounds for strangers are those of HTTP. A request begins in a turn of its tenant. Some need not wait for those before them: a client
//! may share a connection among its threads. All others are done alone, and meanwhile the bytes after them are not read, except to see
//! whether the client hangs up. Large requests and responses take portions of the same memory. The same phases (`connections`) limit the
//! time: a whole request counts as the head of a request of HTTP.
//!
//! ```text
//!                          ┌─▶ beside others ─┐
//!  incoming ─▶ its turn ───┤                  ├──▶ its answer and all before it are known ─▶ outgoing
//!                          └─▶ alone ─────────┘
//! ```

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;
mod under_way;

use std::future::{pending, poll_fn};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::under_way::{Next, UnderWay};
use crate::connections::{BESIDE, Connection, Connections, InFlight, Portion};
use crate::encryption::Tls;
use crate::socket::{END_TIMEOUT, Reader, Socket, end};
use crate::threads::Threads;
use crate::turns::{PER_TURN, Turns, in_turns};
use crate::{Open, Protocol, Remote, serve_all};

/// The server's side of a connection.
///
/// Requests are answered also after the client has hung up, though perhaps not sent, as a release must reach others all the same. One that
/// only its client needs can ask [`Connection::is_gone`]. Their futures are dropped if the connection must close.
pub trait Dialog: Send + 'static {
    /// A request that has begun, and must be done alone.
    type Alone: Send;

    /// The length of the first request in `received`, which is not empty; `None` if the end of the request has not arrived. Then the next
    /// call has the same bytes and more, so a dialog should remember how far it has read.
    ///
    /// # Errors
    /// The bytes are no request. The error is the last response, and the connection closes.
    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Bytes>;

    /// Begins a request, whose turn it is. A large one begins when those before it are answered.
    fn begin(
        &mut self,
        request: Bytes,
        connection: &Arc<Connection>,
    ) -> Begun<impl Future<Output = Answer> + Send + 'static, Self::Alone>;

    /// Answers a request when those before it are answered, and before others begin.
    fn answer_alone(
        &mut self,
        request: Self::Alone,
        connection: &Arc<Connection>,
    ) -> impl Future<Output = Answer> + Send;
}

/// How a request is answered.
pub enum Begun<B, A> {
    /// It need not wait for those that are under way, nor those behind it for it.
    Beside(B),
    /// It must be done alone.
    Alone(A),
}

/// The answer to a request.
pub struct Answer {
    /// Whether no further request begins. The connection closes when all that have begun are answered.
    pub is_last: bool,
    /// Makes the response when the answers to all earlier requests are known, and it is about to be sent.
    pub respond: Box<dyn FnOnce() -> Response + Send>,
}

/// The response to a request.
#[derive(Default)]
pub struct Response {
    /// May be empty.
    pub bytes: Bytes,
    /// The memory of the bytes: see [`Connection::keep_response`].
    pub kept: Option<Portion>,
    /// Called once the kernel has all of the bytes, and else dropped. If the client has hung up before, they are not sent.
    pub sent: Option<Box<dyn FnOnce() + Send>>,
}

impl Answer {
    /// The answer to what is no request.
    fn last(bytes: Bytes) -> Self {
        Self { is_last: true, respond: Box::new(|| Response { bytes, ..Response::default() }) }
    }
}

/// Begins a dialog for each connection.
#[derive(Clone)]
struct Dialogs<B>(B);

/// Serves the connections of `listener`, each with a dialog from `begin`, until `draining` turns true. Then waits up to `within` for open
/// requests to end. With `tls`, connections are encrypted. Runs on the first of `threads`, which accepts.
///
/// A connection that belongs to a principal may be idle for any time.
pub async fn serve_dialogs<D: Dialog>(
    listener: TcpListener,
    tls: Option<Tls>,
    threads: Arc<Threads>,
    connections: Arc<Connections>,
    begin: impl Fn(Arc<Remote>) -> D + Clone + Send + Sync + 'static,
    draining: watch::Receiver<bool>,
    within: Duration,
) {
    serve_all(listener, tls, threads, connections, Dialogs(begin), draining, within).await;
}

impl<B, D> Protocol for Dialogs<B>
where
    B: Fn(Arc<Remote>) -> D + Clone + Send + Sync + 'static,
    D: Dialog,
{
    const ENDS_WITH_CLIENT: bool = false;

    async fn serve(self, open: Open) {
        let Open { socket, remote, turns, watcher: _watcher, draining } = open;
        socket.reader().becomes_dialog();
        if let Err(error) = Course::new(self.0(remote), socket, turns, draining).run().await {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// A dialog, with the state of its connection.
struct Course<D: Dialog> {
    dialog: D,
    socket: Socket,
    reader: Arc<Reader>,
    turns: Arc<Turns>,
    incoming: Incoming,
    under_way: UnderWay<D::Alone>,
    /// No further response is sent: the client would take it for one that was withheld.
    is_mute: bool,
}

impl<D: Dialog> Course<D> {
    fn new(dialog: D, socket: Socket, turns: Arc<Turns>, draining: watch::Receiver<bool>) -> Self {
        let reader = socket.reader();
        let incoming = Incoming::new(Arc::clone(&reader), Arc::clone(&turns), draining);
        Self { dialog, socket, reader, turns, incoming, under_way: UnderWay::default(), is_mute: false }
    }

    async fn run(mut self) -> io::Result<()> {
        // tokio reads from a new socket before it has polled the system for a close.
        yield_now().await;
        loop {
            self.respond().await;
            match self.under_way.take_next() {
                Some(Next::Large(in_flight, request)) => {
                    self.answer_large(in_flight, request).await;
                    continue;
                }
                Some(Next::Alone(in_flight, request)) => {
                    self.answer_alone(in_flight, async |dialog, on| dialog.answer_alone(request, on).await)
                        .await;
                    continue;
                }
                Some(Next::Ended) => return timeout(END_TIMEOUT, self.socket.shutdown()).await?,
                Some(Next::Closes(_)) => return timeout(END_TIMEOUT, end(self.socket)).await?,
                Some(Next::Arrives) | None => {}
            }
            let reader = &self.reader;
            let may_begin = self.under_way.may_grow()
                && !reader.connection().is_evicted()
                && reader.connection().poll_held_back().is_pending();
            tokio::select! {
                biased;
                () = self.under_way.progress() => {}
                // One of these holds it back since they went on.
                () = poll_fn(|_| reader.connection().poll_held_back()), if may_begin => {}
                next = self.incoming.next(&mut self.dialog, &mut self.socket), if may_begin => self.begin(next).await,
                () = poll_fn(|cx| reader.poll_hangup(cx)), if !may_begin && !reader.connection().is_gone() => {}
            }
        }
    }

    /// Begins the next request, whose turn it is.
    async fn begin(&mut self, next: io::Result<Option<Result<Bytes, Bytes>>>) {
        let connection = self.reader.connection();
        let next = next.unwrap_or_else(|error| {
            tracing::debug!(%error, "a connection cannot be read");
            connection.hung_up();
            None
        });
        let Some(next) = next else {
            // What the client sends while requests are under way is not read.
            self.under_way.then(if self.under_way.is_empty() { Next::Ended } else { Next::Closes(None) });
            return;
        };
        let Some(in_flight) = connection.begin_now() else { return };
        self.reader.allow_ahead();
        self.reader.is_gone().await;
        match next {
            Err(last) => self.under_way.add_answered(in_flight, Answer::last(last)),
            Ok(request) => self.begin_request(in_flight, request),
        }
    }

    /// Begins a request if there is memory for it beside others. Otherwise it waits until it is alone.
    fn begin_request(&mut self, in_flight: InFlight, request: Bytes) {
        let connection = &in_flight.0;
        let is_first = self.under_way.is_empty();
        // The first one is part of what each connection takes.
        let portion = if is_first { None } else { connection.takes_beside(request.len()) };
        if request.len() > PER_TURN || !is_first && portion.is_none() {
            return self.under_way.then(Next::Large(in_flight, request));
        }
        let bytes = request.len();
        match self.dialog.begin(request, connection) {
            Begun::Beside(answer) => {
                debug_assert!(size_of_val(&answer) <= BESIDE, "{}", size_of_val(&answer));
                self.under_way.add(bytes, in_flight, portion, &self.turns, answer);
            }
            Begun::Alone(request) => self.under_way.then(Next::Alone(in_flight, request)),
        }
    }

    /// Begins a request while nothing else is under way, and answers it.
    async fn answer_large(&mut self, in_flight: InFlight, request: Bytes) {
        let connection = self.reader.connection();
        tokio::select! {
            biased;
            is_given = connection.handles(request.len()) => if !is_given {
                // The connection is about to be closed.
                return pending().await;
            },
            // There was no memory for it in time.
            () = poll_fn(|cx| self.reader.poll_hangup(cx)) => {
                drop(in_flight);
                self.is_mute = true;
                return;
            }
        }
        let answer =
            async |dialog: &mut D, connection: &Arc<Connection>| match dialog.begin(request, connection) {
                // In a box, as each connection would have room for it.
                Begun::Beside(answer) => Box::pin(answer).await,
                Begun::Alone(request) => dialog.answer_alone(request, connection).await,
            };
        self.answer_alone(in_flight, answer).await;
    }

    /// Answers a request while nothing else is under way.
    async fn answer_alone(
        &mut self,
        in_flight: InFlight,
        answer: impl AsyncFnOnce(&mut D, &Arc<Connection>) -> Answer,
    ) {
        self.incoming.portion = None;
        let connection = self.reader.connection();
        let tenant = || connection.tenant();
        if let Some(turn) = self.turns.ask_again(tenant) {
            turn.await;
        }
        self.reader.is_gone().await;
        let answer = in_turns(&self.turns, tenant, answer(&mut self.dialog, connection)).await;
        self.under_way.add_answered(in_flight, answer);
    }

    /// Sends the responses to all requests whose answers, and those to all before them, are known.
    async fn respond(&mut self) {
        loop {
            let mut outgoing = Outgoing::default();
            while !outgoing.is_full()
                && let Some((in_flight, answer)) = self.under_way.pop()
            {
                let is_gone = self.reader.is_gone().await;
                let response = (answer.respond)();
                self.is_mute |= is_gone && response.sent.is_some();
                if !self.is_mute {
                    outgoing.add(in_flight, response);
                }
            }
            if outgoing.is_empty() {
                break;
            }
            let sends = outgoing.send(&mut self.socket, &self.turns);
            if let Err(error) = self.under_way.beside(sends).await {
                tracing::debug!(%error, "a client does not get its answers any more");
                self.reader.connection().hung_up();
                self.is_mute = true;
            }
        }
        if self.is_mute {
            self.reader.connection().flushed();
        }
    }
}
