use std::cell::Cell;

use ringfence_service::{Acquired, Done, Failure, Results};
use ringfence_wire::{BatchAcquire, BatchRelease, BatchRenew, LeaseId, Operation, Ttl};

use futures_util::FutureExt;
use tokio::task::yield_now;

use crate::node::{Node, eventually, request_of};

/// Takes results until there are `room`.
struct Taken {
    room: usize,
    results: Vec<(Result<Done, Failure>, Option<LeaseId>)>,
}

impl Results for Taken {
    fn put(&mut self, result: Result<Done, Failure>, of: Option<LeaseId>) {
        self.results.push((result, of));
    }

    fn are_full(&mut self) -> bool {
        self.results.len() >= self.room
    }
}

async fn run(node: &Node, room: usize, operations: Vec<Operation>) -> Vec<Result<Done, Failure>> {
    let acquires = |operation: &Operation| match operation {
        Operation::Acquire(acquire) => Some(acquire.lease_id),
        Operation::Renew(_) | Operation::Release(_) => None,
    };
    let leases: Vec<_> = operations.iter().map(acquires).collect();
    let mut taken = Taken { room, results: Vec::new() };
    node.service.run(&mut node.visit(), operations, || (), &mut taken).await.unwrap();
    let (results, of): (Vec<_>, Vec<_>) = taken.results.into_iter().unzip();
    assert_eq!(of, leases, "each acquire is told with its lease");
    results
}

fn acquire<'a>(lease_id: LeaseId, keys: impl IntoIterator<Item = &'a str>, keep_place: bool) -> Operation {
    let request = request_of(keys);
    Operation::Acquire(BatchAcquire {
        lease_id,
        keys: request.keys,
        ttl_ms: Ttl::default(),
        keep_place,
        holder: None,
        metadata: request.metadata,
    })
}

fn release(lease_id: LeaseId) -> Operation {
    Operation::Release(BatchRelease { lease_id })
}

fn is_granted(result: &Result<Done, Failure>) -> bool {
    matches!(result, Ok(Done::Acquired(Acquired::Granted { standing: false, .. })))
}

#[tokio::test]
async fn an_acquire_among_many_enters_the_queue_with_keep_place() {
    let node = Node::start().await;
    let held = node.hold("held").await;
    let id = LeaseId::random();
    let operations = vec![
        acquire(id, ["held"], true),
        acquire(LeaseId::random(), ["free"], true),
        release(held.lease_id),
        acquire(id, ["held"], false),
    ];
    let results = run(&node, usize::MAX, operations).await;
    let [Ok(Done::Acquired(Acquired::Waiting(place))), free, Ok(Done::Released), again] = &results[..] else {
        panic!("{results:?}")
    };
    assert_eq!((place.lease_id, place.ahead), (id, 0));
    assert!(is_granted(free), "{free:?}");
    assert!(
        matches!(again, Ok(Done::Acquired(Acquired::Granted { standing: true, .. }))),
        "it had its turn: {again:?}"
    );
}

#[tokio::test]
async fn a_thousand_are_granted_at_once() {
    let node = Node::start().await;
    let names: Vec<String> = (0..1_000).map(|number| format!("k/{number}")).collect();
    let operations = names.iter().map(|name| acquire(LeaseId::random(), [name.as_str()], false));
    let results = run(&node, usize::MAX, operations.collect()).await;
    assert_eq!(results.iter().filter(|result| is_granted(result)).count(), 1_000);
    assert_eq!(node.handle.view(|table| table.live()), 1_000);
}

/// Regression: they were one log entry, and the response was encoded in one step.
#[tokio::test]
async fn operations_on_very_many_keys_are_proposed_in_parts() {
    let node = Node::start().await;
    let ids: Vec<_> = (0..200).map(|_| LeaseId::random()).collect();
    let entries = || node.handle.status().applied_index.unwrap();
    let before = entries();
    let results = run(&node, usize::MAX, on_many_keys(&ids)).await;
    assert!(results.iter().all(is_granted));
    let token = |result: &Result<Done, Failure>| match result {
        Ok(Done::Acquired(Acquired::Granted { grant, .. }) | Done::Renewed(grant)) => grant.token,
        other => panic!("{other:?}"),
    };
    assert!(results.iter().map(token).is_sorted(), "in their order");
    // 12,800 keys, of which an entry takes 4,096.
    assert!(entries() - before >= 4, "{} entries", entries() - before);
    let before = entries();
    let renew = |lease_id: &LeaseId| Operation::Renew(BatchRenew { lease_id: *lease_id, ttl_ms: None });
    let renewed = run(&node, usize::MAX, ids.iter().map(renew).collect()).await;
    assert!(renewed.iter().zip(&results).all(|(renewed, granted)| token(renewed) == token(granted)));
    assert!(entries() - before >= 4, "{} entries", entries() - before);
}

#[tokio::test]
async fn no_part_is_proposed_that_there_is_no_room_for() {
    let node = Node::start().await;
    let ids: Vec<_> = (0..200).map(|_| LeaseId::random()).collect();
    // 64 operations of 64 keys are a part.
    let results = run(&node, 65, on_many_keys(&ids)).await;
    assert!(results[..128].iter().all(is_granted));
    assert!(results[128..].iter().all(|result| matches!(result, Err(Failure::NoRoom))));
    assert_eq!(results.len(), 200);
    assert_eq!(node.handle.view(|table| table.live()), 128);
}

/// Runs operations on many keys, and puts other rules in place after the first part.
async fn run_under_new_rules(node: &Node, rules: &str) -> Vec<Result<Done, Failure>> {
    struct Replaces<'a>(&'a Node, &'a str, Vec<Result<Done, Failure>>);
    impl Results for Replaces<'_> {
        fn put(&mut self, result: Result<Done, Failure>, _: Option<LeaseId>) {
            self.2.push(result);
        }

        fn are_full(&mut self) -> bool {
            if self.2.len() == 64 {
                self.0.replace_rules(self.1);
            }
            false
        }
    }
    let ids: Vec<_> = (0..200).map(|_| LeaseId::random()).collect();
    let mut results = Replaces(node, rules, Vec::new());
    node.service.run(&mut node.visit(), on_many_keys(&ids), || (), &mut results).await.unwrap();
    results.2
}

/// A request with many parts, of which each may take seconds, once did all of them although its principal had lost the right.
#[tokio::test]
async fn each_part_is_decided_by_the_rules_in_use() {
    let may = |may: &str| format!("[anonymous]\nallow = [{{ keys = \"*\", may = [{may}] }}]\n");
    let node = Node::start_with(Some(&may("\"acquire\""))).await;
    let results = run_under_new_rules(&node, &may("\"read\"")).await;
    let is_denied = |result: &Result<Done, Failure>| matches!(result, Err(Failure::Unauthenticated(_)));
    assert!(
        results.len() == 200 && results[..64].iter().all(is_granted) && results[64..].iter().all(is_denied)
    );
    assert_eq!(node.handle.view(|table| table.live()), 64);
}

fn on_many_keys(ids: &[LeaseId]) -> Vec<Operation> {
    let acquire = |(number, id): (usize, &LeaseId)| {
        let keys: Vec<String> = (0..64).map(|key| format!("{number}/{key}")).collect();
        acquire(*id, keys.iter().map(String::as_str), false)
    };
    ids.iter().enumerate().map(acquire).collect()
}

/// Each part of it once was a task of its own.
#[tokio::test]
async fn a_batch_that_is_abandoned_in_a_later_part_is_one_task() {
    struct Counts<'a>(&'a Cell<usize>);
    impl Results for Counts<'_> {
        fn put(&mut self, _: Result<Done, Failure>, _: Option<LeaseId>) {
            self.0.set(self.0.get() + 1);
        }

        fn are_full(&mut self) -> bool {
            false
        }
    }
    let node = Node::start().await;
    let ids: Vec<_> = (0..200).map(|_| LeaseId::random()).collect();
    let (count, mut visit) = (Cell::new(0), node.visit());
    let mut counts = Counts(&count);
    let mut running = Box::pin(node.service.run(&mut visit, on_many_keys(&ids), || (), &mut counts));
    while count.get() < 128 {
        assert!((&mut running).now_or_never().is_none());
        yield_now().await;
    }
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    drop(running);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks() - before, 1);
    eventually("all are taken back", || node.handle.view(|table| table.live()) == 0).await;
}

/// Each of them once was a task and a proposal of its own.
#[tokio::test]
async fn many_abandoned_acquires_are_one_task() {
    let node = Node::start().await;
    let keys: Vec<_> = (0..100).map(|number| format!("abandoned/{number}")).collect();
    let operations = keys.iter().map(|key| acquire(LeaseId::random(), [key.as_str()], false)).collect();
    let mut taken = Taken { room: usize::MAX, results: Vec::new() };
    let mut visit = node.visit();
    let mut running = Box::pin(node.service.run(&mut visit, operations, || (), &mut taken));
    assert!((&mut running).now_or_never().is_none());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    drop(running);
    assert_eq!(tasks() - before, 1);
    for key in &keys {
        let next = crate::node::waiting(key, 60_000);
        node.acquire(LeaseId::random(), next).await.unwrap();
    }
}
