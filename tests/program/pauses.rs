//! A node that is stopped past the end of a lease, and continues without knowing that time has passed: it must not report the
//! dead token as live, nor act on its old state.

use std::sync::Arc;
use std::time::Duration;

use ringfence_harness::{
    Answered, Called, Client, Cluster, Consistency, Fate, LeaseView, Reply, Workers, granted, key, take,
    try_once, until,
};
use ringfence_wire::{AcquireRequest, LeaseId, ProblemKind, Token, Ttl, VerdictName};

use crate::support::{PROGRAM, SOON};

/// How long the node gets requests without a pause once it continues.
const HARD: Duration = Duration::from_secs(3);
/// Requests that wait while the node is stopped: the first that it sees.
const QUEUED: usize = 40;

#[tokio::test]
#[ignore = "slow"]
async fn a_leader_stopped_past_the_end_of_a_lease_calls_no_stale_token_live() {
    a_stopped_node(true).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_follower_stopped_past_the_end_of_a_lease_calls_no_stale_token_live() {
    a_stopped_node(false).await;
}

/// Two leases that ended while the node was stopped. Another client holds the key of one of them.
struct Dead {
    free: LeaseId,
    free_token: Token,
    taken: LeaseId,
    taken_token: Token,
    by: Token,
}

async fn a_stopped_node(leads: bool) {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let other = cluster.others(leader.id()).next().unwrap();
    let (stopped, other) = if leads { (leader, other) } else { (other, leader) };
    let (free, taken) = (LeaseId::random(), LeaseId::random());
    let short = |name| AcquireRequest { ttl_ms: Ttl::from_ms(10_000).unwrap(), ..try_once(name) };
    let free_token = granted(&stopped.client(), free, &short("free")).await.token;
    let taken_token = granted(&stopped.client(), taken, &short("taken")).await.token;
    for (name, token) in [("free", free_token), ("taken", taken_token)] {
        let verdict =
            stopped.client().patient().validate(&key(name), token, Consistency::Linearizable).await.done();
        assert_eq!(verdict.verdict, VerdictName::Live);
    }

    stopped.stop().unwrap();
    for lease in [free, taken] {
        let ended = || async {
            let lease = other.client().lease(lease, Consistency::Linearizable).await;
            matches!(lease, Ok(Reply::Refused(problem)) if problem.kind == ProblemKind::LeaseGone)
                .then_some(())
        };
        until(SOON, "the lease ends at the other nodes", ended).await.unwrap();
    }
    let by = take(&other.client(), "taken").await.token;
    assert!(by > taken_token && by > free_token);

    let dead = Arc::new(Dead { free, free_token, taken, taken_token, by });
    let askers = Workers::start(QUEUED, |number, work| {
        let (client, dead) = (stopped.client(), Arc::clone(&dead));
        async move {
            while work.goes_on() {
                work.did(dead.ask(&client, number).await);
            }
        }
    });
    // Whether the requests have arrived at the stopped process is not visible.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(askers.done(), 0, "it is stopped");
    stopped.resume().unwrap();
    tokio::time::sleep(HARD).await;
    // More answers than waiting requests.
    askers.more((QUEUED as u64).saturating_sub(askers.done())).await;
    askers.end().await;

    // Then it works normally.
    cluster.ready().await.unwrap();
    for (name, token) in [("free", free_token), ("taken", taken_token)] {
        for consistency in [Consistency::Linearizable, Consistency::Local] {
            let verdict = stopped.client().patient().validate(&key(name), token, consistency).await.done();
            assert_eq!(verdict.verdict, VerdictName::Stale, "{name}, {consistency:?}");
        }
    }
}

impl Dead {
    /// Makes one call, and panics if the answer is wrong. Returns the number of definite answers.
    async fn ask(&self, client: &Client, what: usize) -> u64 {
        let strong = Consistency::Linearizable;
        let (name, lease, token) = match what % 2 {
            0 => ("free", self.free, self.free_token),
            _ => ("taken", self.taken, self.taken_token),
        };
        match what / 2 % 6 {
            0 => answered(client.validate(&key(name), token, strong).await, |verdict| {
                assert_eq!(verdict.verdict, VerdictName::Stale);
                assert!(verdict.fence > token);
            }),
            1 => answered(client.validate(&key(name), token, Consistency::Local).await, |verdict| {
                assert_ne!(verdict.verdict, VerdictName::Live);
            }),
            2 => answered(client.key(&key(name), strong).await, |view| {
                let holders: Vec<Token> = view.holders.iter().map(|holder| holder.token).collect();
                assert_eq!(holders, if name == "free" { vec![] } else { vec![self.by] });
            }),
            3 => answered(client.lease(lease, strong).await, |view| match view {
                LeaseView::Granted(grant) => panic!("a dead lease is shown as {grant:?}"),
                LeaseView::Waiting(place) => panic!("a dead lease is shown as {place:?}"),
            }),
            4 => answered(client.renew(lease, None).await, |grant| {
                panic!("a dead lease is renewed: {grant:?}")
            }),
            _ => answered(client.acquire(LeaseId::random(), &try_once("taken")).await, |grant| {
                panic!("a key that is held is granted: {grant:?}")
            }),
        }
    }
}

/// 1 for a definite answer, 0 for none. `check` checks a success.
fn answered<T: std::fmt::Debug>(answer: Called<T>, check: impl FnOnce(T)) -> u64 {
    match answer {
        Ok(Reply::Done { body, .. }) => check(body),
        Ok(Reply::Refused(problem)) => {
            let expected = [ProblemKind::LeaseGone, ProblemKind::Held].contains(&problem.kind);
            assert!(expected, "{problem:?}");
        }
        Err(failure) => {
            assert_ne!(failure.fate, Fate::Malformed, "{failure}");
            return 0;
        }
    }
    1
}

#[tokio::test]
async fn a_pause_of_the_process_is_measured_as_loop_lag() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let node = cluster.node(1);
    let longest = || async { node.metric("ringfence_loop_lag_longest_seconds").await.unwrap() };
    // Longer than any delay that the machine has caused before.
    let before = until(SOON, "delays are measured", longest).await.unwrap();
    let pause = Duration::from_secs_f64(before + 1.5);
    node.stop().unwrap();
    tokio::time::sleep(pause).await;
    node.resume().unwrap();
    let shows = || async { longest().await.filter(|seconds| *seconds >= before + 1.4) };
    until(SOON, "the pause shows", shows).await.unwrap();
}
