//! Calls that share a request. A program in which many take and release leases at once pays for few requests, and the
//! leader as well: that is what most of a call costs.
//!
//! ```text
//!  a call ─▶ a lane is free? ─ yes ─▶ on its own, as it is ──────────────────┐
//!                  │ no                                                      │
//!                  ▼                                                         ▼
//!               the queue ◀─ all that is in it, as one batch ─ a lane that becomes free
//! ```
//! Nothing lingers: where fewer calls than [`LANES`] are under way, each goes at once and alone. A lane is free again when
//! its call is answered, or takes longer than an answer that nobody waits for: a node that hangs, or an acquire that stands
//! in the queue of the cluster, holds up nobody.
//!
//! What comes back is what each call would have been answered alone. Where the batch has no answer, none of its calls has.

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
use tokio::time::timeout;

use crate::exchange::{Answer, CONNECT, Call, Failure, Node, Shared};

/// How many calls to one node go on their own.
const LANES: usize = 8;
/// For how long a call keeps its lane.
const LANE_FOR: Duration = Duration::from_millis(20);
/// The longest body of a batch: nodes read one of 1 MiB, and a single operation may have a 20th of that.
const LONGEST: usize = 512 << 10;

/// The calls to one node.
#[derive(Debug, Default)]
pub(crate) struct Gather(Mutex<Gathered>);

#[derive(Debug, Default)]
struct Gathered {
    /// How many lanes are taken.
    taken: usize,
    queue: VecDeque<Queued>,
}

/// A call that waits for a lane.
#[derive(Debug)]
struct Queued {
    operation: Box<RawValue>,
    within: Duration,
    answer: oneshot::Sender<Result<Answer, Failure>>,
    /// Where whoever asks is at home: it lives, or nobody waits.
    runtime: Handle,
}

/// The right to a call of one's own. Whoever gives it up lets the queue go on.
struct Lane(Arc<Node>);

/// Sends a call to `node`, on its own or along with others, and reads the whole answer.
pub(crate) async fn exchange(node: &Arc<Node>, call: &Call, within: Duration) -> Result<Answer, Failure> {
    let Some(shared) = call.shared() else { return node.exchange(call, within).await };
    let answered = match enter(node, shared, within) {
        Ok(lane) => return in_lane(lane, node.exchange(call, within)).await,
        Err(answered) => answered,
    };
    match timeout(within + CONNECT, answered).await {
        Ok(Ok(came)) => came,
        Ok(Err(_)) => Err(Failure::Broken(format!("{node}: the runtime that asked it has ended"))),
        Err(_) => Err(Failure::Broken(format!("{node}: no answer within {} ms", within.as_millis()))),
    }
}

/// A lane, or where the answer will be.
fn enter(
    node: &Arc<Node>,
    shared: &Shared,
    within: Duration,
) -> Result<Lane, oneshot::Receiver<Result<Answer, Failure>>> {
    let mut gathered = node.gather.lock();
    if gathered.taken < LANES {
        gathered.taken += 1;
        return Ok(Lane(Arc::clone(node)));
    }
    let operation = serde_json::value::to_raw_value(&shared.operation)
        .expect("requests contain nothing that JSON cannot say");
    let (answer, answered) = oneshot::channel();
    let within = within.saturating_sub(shared.sooner);
    gathered.queue.push_back(Queued { operation, within, answer, runtime: Handle::current() });
    Err(answered)
}

async fn in_lane<T>(lane: Lane, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    match timeout(LANE_FOR, &mut call).await {
        Ok(came) => came,
        Err(_) => {
            drop(lane);
            call.await
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut gathered = self.0.gather.lock();
        let batch = gathered.batch();
        let Some(first) = batch.first() else {
            gathered.taken -= 1;
            return;
        };
        drop(gathered);
        let (runtime, lane, node) = (first.runtime.clone(), Self(Arc::clone(&self.0)), Arc::clone(&self.0));
        drop(runtime.spawn(async move { in_lane(lane, send(&node, batch)).await }));
    }
}

/// Sends one batch, and tells everybody what came of it.
async fn send(node: &Arc<Node>, batch: Vec<Queued>) {
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

/// What each of so many calls is answered. An answer to the batch as a whole is one to each.
fn parts(node: &Node, answer: Answer, count: usize) -> Result<Vec<Answer>, Failure> {
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
    if answer.status != StatusCode::OK {
        return Ok(vec![answer; count]);
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
        Ok(Answer { status, body, sent: answer.sent, leader: answer.leader.clone() })
    };
    results.into_iter().map(part).collect()
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
        while batch.len() < MAX_BATCH && length < LONGEST {
            let Some(queued) = self.queue.pop_front() else { break };
            if !queued.answer.is_closed() {
                length += queued.operation.get().len();
                batch.push(queued);
            }
        }
        batch
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
    fn queued(bytes: usize, runtime: &Handle) -> (Queued, oneshot::Receiver<Result<Answer, Failure>>) {
        let (answer, answered) = oneshot::channel();
        let operation = RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        (Queued { operation, within: CONNECT, answer, runtime: runtime.clone() }, answered)
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
            let (queued, answered) = queued(LONGEST / 2, runtime.handle());
            gathered.queue.push_back(queued);
            waiting.push(answered);
        }
        assert_eq!((gathered.batch().len(), gathered.queue.len()), (2, 1));
    }

    /// It kept its lane for ever, and the others waited for ever.
    #[test]
    fn a_runtime_that_has_ended_takes_no_lane_along() {
        let (node, alive, ended) = (node(), runtime(), runtime());
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
        drop(Lane(Arc::clone(&node)));
        assert!(alive.block_on(answered).is_err(), "nobody asks for it");
        assert_eq!(node.gather.lock().taken, 0);
        let answered = wait_for_a_lane_on(alive.handle());
        drop(Lane(Arc::clone(&node)));
        // Nothing listens there.
        assert!(matches!(alive.block_on(answered), Ok(Err(Failure::NotSent(_)))));
        while node.gather.lock().taken > 0 {
            alive.block_on(tokio::task::yield_now());
        }
    }
}
