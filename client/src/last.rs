//! The last chance of a release: its runtime has ended, as when `main` returns.
//!
//! A runtime drops its tasks when it ends, and with them leases, acquires that wait, and releases under way. Nobody would tell the
//! cluster, and others would wait for the time-to-live. So a thread of its own tells it, and the end of the runtime waits for this thread,
//! but only a second in all, however many leases there are. Then the program may end. If it goes on, so does the thread. Leases that come
//! while [some requests](AT_ONCE) are under way share the next one.
//!
//! A lease may be dropped after its runtime has ended, on a thread without another runtime. That drop waits in the same way. A running task
//! never waits here: its runtime does the release.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use ringfence_wire::{BatchAnswer, BatchRelease, BatchRenew, BatchRequest, LeaseId, MAX_BATCH, Operation};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::attempts::Attempts;
use crate::cluster::{Cluster, deletion, no_content, renewal};
use crate::lifetime::Confirmation;
use crate::outcome::Outcome;
use crate::outlive::Least;
use crate::releases::{Job, Worker};
use crate::transport::{Request, Response};

/// How long the end of a runtime waits for all that it leaves behind.
const WITHIN: Duration = Duration::from_secs(1);
/// How long one node may take: another may be asked then.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(450);
/// How often one is tried, at one node or another.
const ATTEMPTS: usize = 3;
/// How many requests are under way at once.
const AT_ONCE: usize = 8;
/// How long the thread waits for more.
const LINGERS: Duration = Duration::from_secs(1);

/// Releases, and waits for that.
pub(crate) fn take(cluster: &Arc<Cluster>, lease_id: LeaseId, least: Option<Least>) {
    let (done, waits) = channel();
    let until = begin(cluster, lease_id, least, done);
    // The thread says nothing: it drops the other end.
    let _ = waits.recv_timeout(until.saturating_duration_since(Instant::now()));
}

/// Returns until when to wait.
fn begin(cluster: &Arc<Cluster>, lease_id: LeaseId, least: Option<Least>, done: Sender<()>) -> Instant {
    let mut worker = cluster.releases.last.lock().expect("no code panics while it holds this lock");
    let now = Instant::now();
    let job = |under_way: &Arc<()>| Job { lease_id, least, _done: done, under_way: Arc::clone(under_way) };
    let job = match &mut *worker {
        Some(Worker { jobs, until, under_way }) => {
            if Arc::strong_count(under_way) == 1 {
                *until = now + WITHIN;
            }
            match jobs.send(job(under_way)) {
                Ok(()) => return *until,
                Err(unsent) => unsent.0,
            }
        }
        None => job(&Arc::default()),
    };
    // Their tasks are those of a runtime that has ended.
    cluster.nodes.forget_connections();
    let (jobs, received) = unbounded_channel();
    let under_way = Arc::clone(&job.under_way);
    // The thread is not running yet.
    let _ = jobs.send(job);
    let of_thread = Arc::clone(cluster);
    match ringfence_aside::start("ringfence-last", move || run(&of_thread, received)) {
        Ok(()) => {
            let until = now + WITHIN;
            *worker = Some(Worker { jobs, until, under_way });
            until
        }
        Err(error) => {
            tracing::warn!(%error, "a lease is not released, and ends with its time-to-live");
            now
        }
    }
}

fn run(cluster: &Arc<Cluster>, mut jobs: UnboundedReceiver<Job>) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return tracing::warn!(%error, "leases are not released, and end with their time-to-live");
        }
    };
    runtime.block_on(async {
        let mut releasing = JoinSet::new();
        loop {
            while releasing.len() >= AT_ONCE {
                releasing.join_next().await;
            }
            let mut batch = Vec::new();
            match timeout(LINGERS, jobs.recv_many(&mut batch, MAX_BATCH)).await {
                Ok(0) => break,
                Ok(_) => {
                    let cluster = Arc::clone(cluster);
                    releasing.spawn(async move { release(&cluster, batch).await });
                }
                // What comes now, another thread takes.
                Err(_) => jobs.close(),
            }
        }
        while releasing.join_next().await.is_some() {}
    });
    // These connections end with this runtime.
    cluster.nodes.forget_connections();
}

async fn release(cluster: &Cluster, mut jobs: Vec<Job>) {
    let mut attempts = Attempts::new(&cluster.nodes);
    for _ in 0..ATTEMPTS {
        if jobs.len() < 2 {
            return each_alone(cluster, &jobs).await;
        }
        let operations = jobs.iter().map(operation).collect();
        let request = Request::post("/v1/batch", &BatchRequest { operations });
        match attempts.attempt(&request, ATTEMPT_TIMEOUT, Response::json::<BatchAnswer>).await {
            Outcome::Done(BatchAnswer { results }) => {
                let mut results = results.iter();
                jobs.retain(|_| results.next().is_none_or(|result| !is_definite(result.status)));
            }
            // As a node refuses the whole batch if it does not know one of the fields.
            Outcome::Refused(_) => return each_alone(cluster, &jobs).await,
            Outcome::Limited(..) | Outcome::NotDone(_) | Outcome::Ambiguous(_) => {}
        }
    }
}

async fn each_alone(cluster: &Cluster, jobs: &[Job]) {
    stream::iter(jobs).for_each_concurrent(AT_ONCE, |job| release_alone(cluster, job)).await;
}

fn operation(job: &Job) -> Operation {
    let lease_id = job.lease_id;
    match job.least {
        Some(least) => Operation::Renew(BatchRenew { lease_id, ttl_ms: Some(least.ttl()) }),
        None => Operation::Release(BatchRelease { lease_id }),
    }
}

/// Whether a repeat of an operation changes nothing.
fn is_definite(status: u16) -> bool {
    // 429 is too many requests, and 413 that the results of others were too long.
    status < 500 && ![413, 429].contains(&status)
}

async fn release_alone(cluster: &Cluster, job: &Job) {
    match job.least {
        Some(least) => {
            let renewal = renewal(job.lease_id, Some(least.ttl()));
            attempt(cluster, &renewal, |response| Confirmation::read(response).map(drop)).await;
        }
        None => attempt(cluster, &deletion(job.lease_id), no_content).await,
    }
}

async fn attempt(cluster: &Cluster, request: &Request, read: impl Fn(&Response) -> serde_json::Result<()>) {
    let mut attempts = Attempts::new(&cluster.nodes);
    for _ in 0..ATTEMPTS {
        if let Outcome::Done(()) | Outcome::Refused(_) =
            attempts.attempt(request, ATTEMPT_TIMEOUT, &read).await
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Nodes;

    /// The time of the first release once counted for all later ones that came less than a second apart.
    #[test]
    fn what_comes_once_all_is_done_has_a_time_of_its_own() {
        let nodes = Nodes::parse(["http://127.0.0.1:1"], &crate::Tls::default()).unwrap();
        let cluster = Arc::new(Cluster::new(nodes));
        let begin = || {
            let (done, waits) = channel();
            (begin(&cluster, LeaseId::random(), None, done), waits)
        };
        let (first, waits) = begin();
        // The job is dropped.
        assert!(waits.recv().is_err());
        let is_under_way = || {
            let worker = cluster.releases.last.lock().unwrap();
            worker.as_ref().is_some_and(|worker| Arc::strong_count(&worker.under_way) > 1)
        };
        while is_under_way() {
            std::thread::yield_now();
        }
        assert!(begin().0 > first);
    }
}
