//! Calls that share a request. A program in which many take and release leases at once pays for few requests, and the
//! leader as well: that is what most of a call costs.
//!
//! ```text
//!  a call ─▶ a lane is free? ─ yes ─▶ on its own, as it is ───────────────────────────────┐
//!                  │ no                                                                   │
//!                  ▼                                                                      ▼
//!               the queue ◀─ all that is in it, as one batch ─ a lane that becomes free, or 20 ms without one
//! ```
//! Nothing lingers: where few calls are under way, each goes at once and alone. Acquires that may stand in the queue of the
//! cluster take half of the lanes at most; further ones go as part of a batch, which is answered at once, and wait for their
//! turn outside. Where nodes hang, or futures that hold lanes are not polled, the queue goes on without a lane.
//!
//! What comes back is what each call would have been answered alone. Where the batch has no answer, none of its calls has.
//! Where it is refused as a whole, as by a node that does not know all of it, each goes alone after all.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use ringfence_wire::MAX_BATCH;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::exchange::{Answer, CONNECT, Call, Failure, InBatch, Node};
use crate::fate::problem;

/// How many calls to one node are under way before others share requests.
const LANES: usize = 8;
/// How many of them may be acquires that wait.
const FOR_WAITERS: usize = LANES / 2;
/// How long a call is in the queue at most.
const STUCK: Duration = Duration::from_millis(20);
/// The longest body of a batch: nodes read 1 MiB.
const LONGEST: usize = 512 << 10;

/// The calls to one node.
#[derive(Debug, Default)]
pub(crate) struct Gather(Mutex<Gathered>);

#[derive(Debug, Default)]
struct Gathered {
    /// How many lanes are taken, and how many of these by acquires that wait.
    taken: usize,
    waiters: usize,
    queue: VecDeque<Queued>,
}

/// What a call of a batch is answered; `None` where it has to be made alone.
type Came = Result<Option<Answer>, Failure>;

/// A call that goes as part of a batch.
#[derive(Debug)]
struct Queued {
    operation: Box<RawValue>,
    within: Duration,
    since: Instant,
    answer: oneshot::Sender<Came>,
    /// Where whoever asks is at home: it lives, or nobody waits.
    runtime: Handle,
}

/// The right to a request. Whoever gives it up lets the queue go on.
struct Lane {
    node: Arc<Node>,
    is_waiter: bool,
}

/// Sends a call to `node`, on its own or along with others, and reads the whole answer.
pub(crate) async fn exchange(node: &Arc<Node>, call: &Call, within: Duration) -> Result<Answer, Failure> {
    let Some(in_batch) = call.in_batch() else { return node.exchange(call, within).await };
    if let Some(lane) = Lane::take(node, !in_batch.waits.is_zero()) {
        let came = node.exchange(call, within).await;
        drop(lane);
        return came;
    }
    match queue(node, in_batch, within.saturating_sub(in_batch.waits)).await? {
        Some(answer) => Ok(answer),
        None => node.exchange(call, within).await,
    }
}

async fn queue(node: &Arc<Node>, in_batch: &InBatch, within: Duration) -> Came {
    let operation = serde_json::value::to_raw_value(&in_batch.operation)
        .expect("requests contain nothing that JSON cannot say");
    let (answer, mut answered) = oneshot::channel();
    let queued = Queued { operation, within, since: Instant::now(), answer, runtime: Handle::current() };
    node.gather.lock().queue.push_back(queued);
    // There may be a lane for a batch.
    drop(Lane::take(node, false));
    let told = match timeout(STUCK, &mut answered).await {
        Ok(told) => told,
        Err(_) => {
            let stuck = node.gather.lock().stuck();
            send_in_background(node, stuck, None);
            timeout(within + CONNECT, answered).await.map_err(|_| {
                Failure::Broken(format!("{node}: no answer to a batch within {} ms", within.as_millis()))
            })?
        }
    };
    told.unwrap_or_else(|_| Err(Failure::Broken(format!("{node}: the runtime that asked it has ended"))))
}

/// On the runtime of the first of them.
fn send_in_background(node: &Arc<Node>, batch: Vec<Queued>, lane: Option<Lane>) {
    let (node, Some(first)) = (Arc::clone(node), batch.first()) else { return };
    let runtime = first.runtime.clone();
    drop(runtime.spawn(async move {
        send(&node, batch).await;
        drop(lane);
    }));
}

/// Sends one batch, and tells everybody what came of it.
async fn send(node: &Node, batch: Vec<Queued>) {
    #[derive(Serialize)]
    struct Request<'a> {
        operations: Vec<&'a RawValue>,
    }
    let operations = batch.iter().map(|queued| &*queued.operation).collect();
    let call = Call::new(Method::POST, "/v1/batch").with(&Request { operations });
    let within = batch.iter().map(|queued| queued.within).max().unwrap_or_default();
    let came = node.exchange(&call, within).await.and_then(|answer| parts(node, answer, batch.len()));
    match came {
        Ok(parts) => {
            for (queued, part) in batch.into_iter().zip(parts) {
                // Whoever asked may be gone.
                let _ = queued.answer.send(Ok(part));
            }
        }
        Err(failure) => {
            for queued in batch {
                let _ = queued.answer.send(Err(failure.clone()));
            }
        }
    }
}

/// What each of so many calls is answered.
fn parts(node: &Node, answer: Answer, count: usize) -> Result<Vec<Option<Answer>>, Failure> {
    #[derive(Deserialize)]
    struct Results<'a> {
        #[serde(borrow)]
        results: Vec<One<'a>>,
    }
    #[derive(Deserialize)]
    struct One<'a> {
        status: u16,
        #[serde(borrow)]
        body: Option<&'a RawValue>,
    }
    if answer.status.is_client_error() && problem(&answer).is_some() {
        return Ok(vec![None; count]);
    }
    if answer.status != StatusCode::OK {
        return Ok(vec![Some(answer); count]);
    }
    let unreadable = |why: String| Failure::Broken(format!("{node}: a batch's answer: {why}"));
    let Results { results } =
        serde_json::from_slice(&answer.body).map_err(|error| unreadable(error.to_string()))?;
    if results.len() != count {
        return Err(unreadable(format!("{} results of {count} operations", results.len())));
    }
    let part = |one: One<'_>| {
        let status = StatusCode::from_u16(one.status).map_err(|error| unreadable(error.to_string()))?;
        let body = one.body.map_or_else(Bytes::new, |body| answer.body.slice_ref(body.get().as_bytes()));
        Ok(Some(Answer { status, body, sent: answer.sent, leader: answer.leader.clone() }))
    };
    results.into_iter().map(part).collect()
}

impl Lane {
    fn take(node: &Arc<Node>, is_waiter: bool) -> Option<Self> {
        let mut gathered = node.gather.lock();
        let is_free = gathered.taken < LANES && (!is_waiter || gathered.waiters < FOR_WAITERS);
        is_free.then(|| {
            gathered.taken += 1;
            gathered.waiters += usize::from(is_waiter);
            Self { node: Arc::clone(node), is_waiter }
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut gathered = self.node.gather.lock();
        gathered.waiters -= usize::from(self.is_waiter);
        let batch = gathered.batch();
        if batch.is_empty() {
            gathered.taken -= 1;
            return;
        }
        drop(gathered);
        let lane = Self { node: Arc::clone(&self.node), is_waiter: false };
        send_in_background(&self.node, batch, Some(lane));
    }
}

impl Gather {
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.0.lock().expect("nothing that panics is done while it is locked")
    }
}

impl Gathered {
    /// As much of the queue as goes into one request, without those for whom nobody waits any more.
    fn batch(&mut self) -> Vec<Queued> {
        let (mut batch, mut length) = (Vec::new(), 0);
        while batch.len() < MAX_BATCH
            && let Some(queued) = self.queue.pop_front()
        {
            if queued.answer.is_closed() {
                continue;
            }
            length += queued.operation.get().len() + 1;
            if length > LONGEST && !batch.is_empty() {
                self.queue.push_front(queued);
                break;
            }
            batch.push(queued);
        }
        batch
    }

    /// The same, of a queue that does not move.
    fn stuck(&mut self) -> Vec<Queued> {
        let is_stuck = self.queue.front().is_some_and(|first| first.since.elapsed() >= STUCK);
        if is_stuck { self.batch() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn node() -> Arc<Node> {
        Arc::new(Node::parse("http://127.0.0.1:1").unwrap())
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A call with an operation of so many bytes, and where its answer will be.
    fn queued(bytes: usize, runtime: &Handle) -> (Queued, oneshot::Receiver<Came>) {
        let (answer, answered) = oneshot::channel();
        let operation = RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        let since = Instant::now();
        (Queued { operation, within: CONNECT, since, answer, runtime: runtime.clone() }, answered)
    }

    #[test]
    fn a_batch_takes_along_whom_somebody_waits_for_while_a_node_would_read_it() {
        let runtime = runtime();
        let mut gathered = Gathered::default();
        let mut waiting = Vec::new();
        for _ in 0..2 * MAX_BATCH {
            for is_gone in [true, false] {
                let (queued, answered) = queued(40, runtime.handle());
                gathered.queue.push_back(queued);
                waiting.extend(Some(answered).filter(|_| !is_gone));
            }
        }
        assert_eq!(gathered.batch().len(), MAX_BATCH);
        assert_eq!((gathered.batch().len(), gathered.queue.len()), (MAX_BATCH, 0));
        for _ in 0..3 {
            let (queued, answered) = queued(LONGEST / 2 - 1, runtime.handle());
            gathered.queue.push_back(queued);
            waiting.push(answered);
        }
        assert_eq!((gathered.batch().len(), gathered.queue.len()), (2, 1));
    }

    #[test]
    fn who_waits_has_half_of_the_lanes_and_gives_them_back() {
        let node = node();
        for _ in 0..2 {
            let mut lanes: Vec<_> = (0..LANES).map_while(|_| Lane::take(&node, true)).collect();
            assert_eq!(lanes.len(), FOR_WAITERS);
            lanes.extend((0..LANES).map_while(|_| Lane::take(&node, false)));
            assert_eq!(lanes.len(), LANES);
        }
    }

    /// It kept its lane for ever, and the others waited for ever.
    #[test]
    fn a_runtime_that_has_ended_takes_no_lane_along() {
        let (node, alive, ended) = (node(), runtime(), runtime());
        let lane = || Lane { node: Arc::clone(&node), is_waiter: false };
        let handle = ended.handle().clone();
        drop(ended);
        let wait_for_a_lane_on = |runtime: &Handle| {
            let (queued, answered) = queued(2, runtime);
            let mut gathered = node.gather.lock();
            gathered.taken = 1;
            gathered.queue.push_back(queued);
            answered
        };
        let answered = wait_for_a_lane_on(&handle);
        drop(lane());
        assert!(alive.block_on(answered).is_err(), "nobody asks for it");
        assert_eq!(node.gather.lock().taken, 0);
        let answered = wait_for_a_lane_on(alive.handle());
        drop(lane());
        // Nothing listens there.
        assert!(matches!(alive.block_on(answered), Ok(Err(Failure::NotSent(_)))));
        while node.gather.lock().taken > 0 {
            alive.block_on(tokio::task::yield_now());
        }
    }
}
