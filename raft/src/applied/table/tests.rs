use std::sync::mpsc;

use ringfence_lease::Command;
use ringfence_wire::{LeaseId, Revision};

use super::*;
use crate::applied::lease_wait::LeaseWait;
use crate::consensus::log_id;
use crate::reply::Reply;

/// Threads that take the lock again and again once kept Raft waiting.
#[test]
fn raft_has_the_lock_next_however_many_others_want_it() {
    const OTHERS: usize = 4;
    for _ in 0..100 {
        let applied = Applied::new();
        let (others_try, has_lock) = (AtomicBool::new(false), mpsc::channel());
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let _locked = applied.lock();
                others_try.store(true, Ordering::Relaxed);
                has_lock.0.send(()).unwrap();
                while !applied.gate.wanted.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                order.lock().push("the first");
            });
            for _ in 0..OTHERS {
                scope.spawn(|| {
                    while !others_try.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    let _locked = applied.lock();
                    order.lock().push("another");
                });
            }
            has_lock.1.recv().unwrap();
            let _locked = applied.lock();
            order.lock().push("raft");
        });
        let order = order.into_inner();
        assert_eq!((&order[..2], order.len()), (&["the first", "raft"][..], 2 + OTHERS));
    }
}

/// It once went before readers as Raft does, and a stranger may wait for as many leases as it likes.
#[test]
fn a_wait_for_a_lease_has_its_turn_as_readers_have() {
    let applied = Applied::new();
    thread::scope(|scope| {
        let locked = applied.lock();
        let waiting = scope.spawn(|| {
            let lease = LeaseId::from_u128(1).unwrap();
            drop(LeaseWait::start(&applied, (lease, None), Reply::new(None)).unwrap());
        });
        while applied.gate.turn.try_lock().is_some() {
            assert!(!waiting.is_finished() && !applied.gate.wanted.load(Ordering::Relaxed));
            thread::yield_now();
        }
        assert!(!applied.gate.wanted.load(Ordering::Relaxed));
        drop(locked);
    });
}

/// The Raft thread once took all HTTP threads with it if it hung while it had the lock, and nobody answered `/livez`.
#[test]
fn a_thread_that_hangs_with_the_lock_takes_no_thread_with_it_that_serves_clients() {
    let applied = Applied::new();
    let wait = || LeaseWait::start(&applied, (LeaseId::from_u128(1).unwrap(), None), Reply::new(None));
    let waits = || applied.lock().waits.count();
    thread::scope(|scope| {
        let begun = scope.spawn(|| wait().unwrap()).join().unwrap();
        assert_eq!(waits(), 1);
        let hangs = applied.lock();
        let goes_on = scope.spawn(|| {
            drop(begun);
            assert_eq!(applied.try_read(|_| ()), Err(Stuck));
            assert!(wait().is_err());
            // Nobody else waits for as long.
            assert!(applied.gate.stuck.load(Ordering::Relaxed));
        });
        goes_on.join().unwrap();
        drop(hangs);
        assert_eq!(scope.spawn(|| applied.try_read(|_| ())).join().unwrap(), Ok(()));
        assert!(!applied.gate.stuck.load(Ordering::Relaxed));
        applied.announce();
        assert_eq!(waits(), 0, "it was given up meanwhile");
    });
}

/// A page or a watch that panicked once ended the node, and with the client's repeats, one node after the other.
#[test]
fn only_who_may_change_the_state_poisons_it_by_a_panic() {
    let applied = Applied::new();
    let panics = |work: &(dyn Fn() + Sync)| {
        thread::scope(|scope| assert!(scope.spawn(work).join().is_err()));
    };
    panics(&|| applied.read(|_| panic!("a reader")));
    panics(&|| applied.try_read(|_| panic!("a reader")).unwrap());
    assert_eq!(thread::scope(|scope| scope.spawn(|| applied.try_read(|_| ())).join().unwrap()), Ok(()));
    drop(applied.lock());
    panics(&|| {
        let _locked = applied.lock();
        panic!("a writer");
    });
    assert_eq!(thread::scope(|scope| scope.spawn(|| applied.try_read(|_| ())).join().unwrap()), Err(Stuck));
    panics(&|| drop(applied.lock()));
}

/// A follower that is started with a snapshot of all there is applies nothing before the next write.
#[test]
fn the_table_of_a_snapshot_counts_as_applied_at_once() {
    let applied = Applied::new();
    let index = log_id(3, 7);
    let meta = SnapshotMeta { last_log_id: Some(index), last_membership: StoredMembership::default() };
    applied.replace(LeaseTable::new(), &meta);
    assert_eq!(*applied.progress().borrow(), Some(index));
}

/// Otherwise a watch could not begin there before the next change.
#[test]
fn the_history_goes_on_from_a_snapshot_and_from_the_start_of_a_numbering_at_once() {
    let started = |at_ms, revision| {
        let commands = vec![Command::Start { revision: Revision(revision) }];
        let requests = vec![commands.into()];
        Batch { rules: 1, at_ms, max_bytes: u64::MAX, floor: Revision(0), requests }
    };
    let applied = Applied::new();
    applied.lock().apply(started(1, 7), false);
    assert_eq!(applied.lock().history.last(), Revision(7));
    let mut table = LeaseTable::new();
    table.apply_requests(1, started(1, 9).requests, &mut Vec::new());
    let meta = SnapshotMeta { last_log_id: None, last_membership: StoredMembership::default() };
    applied.replace(table, &meta);
    assert_eq!(applied.lock().history.last(), Revision(9));
}
