//! The requests that have begun and have no response yet, and what is behind them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::Answer;
use crate::connections::{InFlight, MOST_IN_FLIGHT, Portion};
use crate::turns::{PER_TURN, Turns, in_turns};

/// A request that is being answered: its number, and its answer.
type Running = Pin<Box<dyn Future<Output = (u64, Answer)> + Send>>;

/// What is behind the requests that are under way.
pub(super) enum Next<A> {
    /// A request that has not arrived.
    Arrives,
    /// One for which there is no memory beside others: its bytes.
    Large(InFlight, Bytes),
    /// One that must be done alone.
    Alone(InFlight, A),
    /// No request: the client has closed its side, or the server stops.
    Ended,
    /// No request, though the client may send more. One that had arrived gets no answer; it stays in flight, as what is sent before it
    /// may stay unread.
    Closes(Option<InFlight>),
}

/// The requests in their order. One that is to be done alone is not among them.
pub(super) struct UnderWay<A> {
    /// One whose answer is not known, if there are any. Most clients have no other, and a set costs more.
    one: Option<Running>,
    /// The others.
    others: FuturesUnordered<Running>,
    requests: VecDeque<Request>,
    /// The number of the first request.
    first: u64,
    /// The bytes of all of them.
    bytes: usize,
    next: Next<A>,
}

/// A request that has begun.
struct Request {
    in_flight: InFlight,
    /// Given back once the answer is known.
    portion: Option<Portion>,
    bytes: usize,
    answer: Option<Answer>,
}

impl<A> Default for UnderWay<A> {
    fn default() -> Self {
        let (others, requests, next) = (FuturesUnordered::new(), VecDeque::new(), Next::Arrives);
        Self { one: None, others, requests, first: 0, bytes: 0, next }
    }
}

impl<A> UnderWay<A> {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether another request may begin. All of them together are about as large as one that is not large may be.
    pub(super) fn may_grow(&self) -> bool {
        self.requests.len() < MOST_IN_FLIGHT && self.bytes < PER_TURN && matches!(self.next, Next::Arrives)
    }

    /// Sets what is behind them.
    pub(super) fn then(&mut self, next: Next<A>) {
        self.next = next;
    }

    /// What is behind them, once none is left.
    pub(super) fn take_next(&mut self) -> Option<Next<A>> {
        self.requests.is_empty().then(|| std::mem::replace(&mut self.next, Next::Arrives))
    }

    /// Adds a request that is being answered.
    pub(super) fn add(
        &mut self,
        bytes: usize,
        in_flight: InFlight,
        portion: Option<Portion>,
        turns: &Arc<Turns>,
        answer: impl Future<Output = Answer> + Send + 'static,
    ) {
        let number = self.first + self.requests.len() as u64;
        let connection = Arc::clone(&in_flight.0);
        let answer = in_turns(turns, move || connection.tenant(), answer);
        let running: Running = Box::pin(answer.map(move |answer| (number, answer)));
        match self.one {
            None => self.one = Some(running),
            Some(_) => self.others.push(running),
        }
        self.requests.push_back(Request { in_flight, portion, bytes, answer: None });
        self.bytes += bytes;
    }

    /// Adds a request whose answer is known.
    pub(super) fn add_answered(&mut self, in_flight: InFlight, answer: Answer) {
        self.notes(&answer);
        self.requests.push_back(Request { in_flight, portion: None, bytes: 0, answer: Some(answer) });
    }

    /// Lets the requests go on, while `other` does.
    pub(super) async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        poll_fn(|cx| {
            let polled = other.as_mut().poll(cx);
            if polled.is_pending() {
                self.poll(cx);
            }
            polled
        })
        .await
    }

    /// Lets the requests go on, until a further answer is known.
    pub(super) async fn progress(&mut self) {
        poll_fn(|cx| if self.poll(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Returns whether a further answer is known.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let mut is_any = false;
        if let Some(one) = &mut self.one
            && let Poll::Ready((number, answer)) = one.as_mut().poll(cx)
        {
            self.one = None;
            self.know(number, answer);
            is_any = true;
        }
        while let Poll::Ready(Some((number, answer))) = self.others.poll_next_unpin(cx) {
            self.know(number, answer);
            is_any = true;
        }
        is_any
    }

    fn know(&mut self, number: u64, answer: Answer) {
        self.notes(&answer);
        let request = &mut self.requests[(number - self.first) as usize];
        (request.answer, request.portion) = (Some(answer), None);
    }

    fn notes(&mut self, answer: &Answer) {
        if answer.is_last {
            let arrived = match std::mem::replace(&mut self.next, Next::Arrives) {
                Next::Large(in_flight, _) | Next::Alone(in_flight, _) => Some(in_flight),
                Next::Closes(arrived) => arrived,
                Next::Arrives | Next::Ended => None,
            };
            self.next = Next::Closes(arrived);
        }
    }

    /// Removes the first request, if its answer is known.
    pub(super) fn pop(&mut self) -> Option<(InFlight, Answer)> {
        let answer = self.requests.front_mut()?.answer.take()?;
        let Request { in_flight, bytes, .. } = self.requests.pop_front()?;
        self.first += 1;
        self.bytes -= bytes;
        Some((in_flight, answer))
    }
}
