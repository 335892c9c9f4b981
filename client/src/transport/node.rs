//! One node. Concurrent acquires and releases share requests: most of a call's cost, here and at the leader, is per request.
//!
//! ```text
//!  a call ─▶ is a permit free? ─ yes ─▶ its own request, at once
//!                  │ no
//!                  ▼
//!               the queue ─ a permit becomes free, or 20 ms pass ─▶ everything in the queue, as one POST /v1/batch
//! ```
//! A *permit* is the right to send one request. No call waits for others: while few calls are in flight, each is sent at
//! once and alone. Acquires that would wait in the cluster's queue get at most half of the permits. The others are
//! batched. The cluster responds to a batch at once, with a place in its queue, and they wait there with a request of
//! their own. If nodes hang, or nobody polls the futures that hold the permits, the queue is sent without a permit.
//!
//! Each call gets the response that it would have got alone. If a batch gets no response, none of its calls does. If it
//! is refused as a whole, for example by a node that does not know one of its fields, each call is sent alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use ringfence_tls::cut;
use ringfence_wire::MAX_BATCH;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::{Instant, timeout};

use super::http::{Batched, CONNECT_TIMEOUT, Failure, Request, Response, Server};
use super::tls::Encryption;

/// How many calls have a request of their own before others share one.
const PERMITS: usize = 8;
/// How many of them may be acquires that wait.
const WAITING_PERMITS: usize = PERMITS / 2;
/// How long the queue waits for a permit.
const PERMIT_TIMEOUT: Duration = Duration::from_millis(20);
/// The longest body of a batch: nodes read 1 MiB.
const MAX_BATCH_BYTES: usize = 512 << 10;

/// A node and the calls to it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) server: Server,
    permits: Semaphore,
    waiting_permits: Semaphore,
    queue: Mutex<Queue>,
}

/// Calls without a permit. While there are any, a task is about to send them.
#[derive(Debug)]
struct Queue {
    calls: VecDeque<Queued>,
    /// The task takes them by then, unless its runtime has ended or is not driven.
    sent_by: Instant,
}

#[derive(Debug)]
struct Queued {
    operation: Box<RawValue>,
    time: Duration,
    result: oneshot::Sender<BatchedResult>,
}

/// The response to one operation of a batch; `None` if it has to be sent alone.
type BatchedResult = Result<Option<Response>, Failure>;

/// The right to send a request; acquires that wait need two permits.
type Permit<'a> = (SemaphorePermit<'a>, Option<SemaphorePermit<'a>>);

impl Node {
    /// The node at `url`: `https://host:port` with encryption, `http://host:port` without, and perhaps a path.
    pub(crate) fn parse(url: &str, encryption: Option<&Arc<Encryption>>) -> Result<Self, String> {
        Ok(Self {
            server: Server::parse(url, encryption)?,
            permits: Semaphore::new(PERMITS),
            waiting_permits: Semaphore::new(WAITING_PERMITS),
            queue: Mutex::new(Queue { calls: VecDeque::new(), sent_by: Instant::now() }),
        })
    }

    /// Sends a request and reads the whole response; in a batch if it `may_batch`, and no permit is free.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        request: &Request,
        time: Duration,
        may_batch: bool,
    ) -> Result<Response, Failure> {
        let Some(batched) = request.batched.as_ref().filter(|_| may_batch) else {
            return self.server.send(request, time).await;
        };
        if let Some(_permit) = self.permit(!batched.wait.is_zero()) {
            return self.server.send(request, time).await;
        }
        match self.send_batched(batched, time.saturating_sub(batched.wait)).await? {
            Some(response) => Ok(response),
            None => self.server.send(request, time).await,
        }
    }

    fn permit(&self, waits: bool) -> Option<Permit<'_>> {
        let waiting = if waits { Some(self.waiting_permits.try_acquire().ok()?) } else { None };
        Some((self.permits.try_acquire().ok()?, waiting))
    }

    async fn send_batched(self: &Arc<Self>, batched: &Batched, time: Duration) -> BatchedResult {
        let operation = serde_json::value::to_raw_value(&batched.operation);
        let operation = operation.expect("JSON can express every operation");
        let (sender, result) = oneshot::channel();
        self.enqueue(Queued { operation, time, result: sender });
        match timeout(PERMIT_TIMEOUT + time + CONNECT_TIMEOUT, result).await {
            Ok(Ok(result)) => result,
            // The runtime that was to send the batch has ended, or is not driven.
            _ => Err(Failure::Broken(format!("{}: no response to a batch", self.server))),
        }
    }

    fn enqueue(self: &Arc<Self>, call: Queued) {
        let mut queue = self.queue();
        let has_sender = !queue.calls.is_empty() && Instant::now() < queue.sent_by;
        queue.calls.push_back(call);
        if !has_sender {
            self.spawn_sender(&mut queue);
        }
    }

    fn spawn_sender(self: &Arc<Self>, queue: &mut Queue) {
        queue.sent_by = Instant::now() + 2 * PERMIT_TIMEOUT;
        drop(tokio::spawn(Arc::clone(self).send_queue()));
    }

    /// Sends the queue as one batch, once a permit is free.
    async fn send_queue(self: Arc<Self>) {
        let _permit = timeout(PERMIT_TIMEOUT, self.permits.acquire()).await;
        let batch = {
            let mut queue = self.queue();
            let batch = queue.take_batch();
            if !queue.calls.is_empty() {
                self.spawn_sender(&mut queue);
            }
            batch
        };
        if batch.is_empty() {
            return;
        }
        let results = match self.send_batch(&batch).await {
            Ok(responses) => responses.into_iter().map(Ok).collect(),
            Err(failure) => vec![Err(failure); batch.len()],
        };
        for (call, result) in batch.into_iter().zip(results) {
            // Its caller may be gone.
            let _ = call.result.send(result);
        }
    }

    /// The responses to these, in their order; `None` for one that has to be sent alone.
    async fn send_batch(&self, batch: &[Queued]) -> Result<Vec<Option<Response>>, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            operations: Vec<&'a RawValue>,
        }
        let operations = batch.iter().map(|call| &*call.operation).collect();
        let request = Request::post("/v1/batch", &Body { operations });
        let time = batch.iter().map(|call| call.time).max().unwrap_or_default();
        let response = self.server.send(&request, time).await?;
        self.split(response, batch.len())
    }

    /// Splits the response to a batch of `count` operations.
    fn split(&self, response: Response, count: usize) -> Result<Vec<Option<Response>>, Failure> {
        #[derive(Deserialize)]
        struct Body<'a> {
            #[serde(borrow)]
            results: Vec<OneResult<'a>>,
        }
        #[derive(Deserialize)]
        struct OneResult<'a> {
            status: u16,
            #[serde(borrow)]
            body: Option<&'a RawValue>,
        }
        if response.status.is_client_error() && response.problem().is_some() {
            return Ok(vec![None; count]);
        }
        if response.status != StatusCode::OK {
            return Ok(vec![Some(response); count]);
        }
        let unreadable = |why: String| {
            Failure::Broken(format!("{}: unreadable response to a batch: {}", self.server, cut(why)))
        };
        let Body { results } =
            serde_json::from_slice(&response.body).map_err(|error| unreadable(error.to_string()))?;
        if results.len() != count {
            return Err(unreadable(format!("{} results of {count} operations", results.len())));
        }
        let one = |OneResult { status, body }: OneResult<'_>| {
            let status = StatusCode::from_u16(status).map_err(|error| unreadable(error.to_string()))?;
            if status == StatusCode::PAYLOAD_TOO_LARGE {
                // The others' results left no room for this one, which was not done.
                return Ok(None);
            }
            let body = body.map_or_else(Bytes::new, |body| response.body.slice_ref(body.get().as_bytes()));
            Ok(Some(Response { status, body, ..response.clone() }))
        };
        results.into_iter().map(one).collect()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no code panics while it holds this lock")
    }
}

impl Queue {
    /// Takes as many calls as fit into one request, and drops those whose callers are gone.
    fn take_batch(&mut self) -> Vec<Queued> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MAX_BATCH
            && let Some(call) = self.calls.pop_front()
        {
            if call.result.is_closed() {
                continue;
            }
            bytes += call.operation.get().len() + 1;
            if bytes > MAX_BATCH_BYTES && !batch.is_empty() {
                self.calls.push_front(call);
                break;
            }
            batch.push(call);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A call whose operation has this many bytes, and where its result will arrive.
    fn queued(bytes: usize) -> (Queued, oneshot::Receiver<BatchedResult>) {
        let (sender, result) = oneshot::channel();
        let operation = RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        (Queued { operation, time: CONNECT_TIMEOUT, result: sender }, result)
    }

    #[test]
    fn a_batch_holds_what_a_node_would_read_of_the_calls_that_still_have_callers() {
        let mut queue = Queue { calls: VecDeque::new(), sent_by: Instant::now() };
        let mut callers = Vec::new();
        for _ in 0..2 * MAX_BATCH {
            for is_gone in [true, false] {
                let (call, caller) = queued(40);
                queue.calls.push_back(call);
                callers.extend(Some(caller).filter(|_| !is_gone));
            }
        }
        assert_eq!(queue.take_batch().len(), MAX_BATCH);
        assert_eq!((queue.take_batch().len(), queue.calls.len()), (MAX_BATCH, 0));
        for _ in 0..3 {
            let (call, caller) = queued(MAX_BATCH_BYTES / 2 - 1);
            queue.calls.push_back(call);
            callers.push(caller);
        }
        assert_eq!((queue.take_batch().len(), queue.calls.len()), (2, 1));
    }

    #[test]
    fn a_call_for_whose_result_a_batch_had_no_room_is_sent_alone() {
        let node = Node::parse("http://127.0.0.1:1", None).unwrap();
        let body = r#"{"results":[{"status":204},{"status":413,"body":{"status":413}}]}"#;
        let (sent, status) = (crate::clock::Moment::now(), StatusCode::OK);
        let results = node
            .split(
                Response { sent, status, leader: None, cluster: None, retry_after: None, body: body.into() },
                2,
            )
            .unwrap();
        assert_eq!(results[0].as_ref().unwrap().status, 204);
        assert!(results[1].is_none());
    }

    #[test]
    fn acquires_that_wait_get_half_of_the_lanes_and_give_them_back() {
        let node = Node::parse("http://127.0.0.1:1", None).unwrap();
        for _ in 0..2 {
            let mut permits: Vec<_> = (0..PERMITS).map_while(|_| node.permit(true)).collect();
            assert_eq!(permits.len(), WAITING_PERMITS);
            permits.extend((0..PERMITS).map_while(|_| node.permit(false)));
            assert_eq!(permits.len(), PERMITS);
        }
    }

    #[test]
    fn a_runtime_that_ends_or_is_not_driven_does_not_stop_the_queue() {
        let node = Arc::new(Node::parse("http://127.0.0.1:1", None).unwrap());
        let (alive, idle, ended) = (runtime(), runtime(), runtime());
        let enqueue_on = |runtime: &Runtime| {
            let (call, result) = queued(2);
            let _inside = runtime.enter();
            node.enqueue(call);
            result
        };
        // Each spawns a task that never sends.
        let first = enqueue_on(&ended);
        drop(ended);
        std::thread::sleep(2 * PERMIT_TIMEOUT);
        let second = enqueue_on(&idle);
        std::thread::sleep(2 * PERMIT_TIMEOUT);
        let third = enqueue_on(&alive);
        for result in [first, second, third] {
            let result = alive.block_on(async { timeout(SOON, result).await.unwrap().unwrap() });
            // Nothing listens there.
            assert!(matches!(result, Err(Failure::NotSent(_))), "{result:?}");
        }
        assert_eq!(node.permits.available_permits(), PERMITS);
        drop(idle);
    }
}
