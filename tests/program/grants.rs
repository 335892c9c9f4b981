//! Grants without faults: one token for a lease, and no early end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence_harness::{
    Acquired, Answered, Client, Consistency, LeaseView, Reply, granted, key, run, try_once, until, wait_for,
};
use ringfence_wire::{AcquireRequest, Grant, LeaseId, ProblemKind, Token, Ttl, VerdictName};

use crate::support::{PROGRAM, cluster};

/// Bounds how late a lease may end; on an idle machine it ends far earlier.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_grant_is_201_through_any_node_and_its_repeat_200_through_another() {
    let cluster = cluster().start().await.unwrap();
    let mut last = Token(0);
    for node in 1..=3u64 {
        let lease = LeaseId::random();
        let request = try_once(&format!("any/{node}"));
        let Reply::Done { status: 201, body: Acquired::Granted(grant) } =
            cluster.node(node).client().patient().acquire(lease, &request).await.unwrap()
        else {
            panic!("not granted");
        };
        assert!(grant.token > last, "tokens rise");
        last = grant.token;
        for other in 1..=3 {
            let repeat = cluster.node(other).client().patient().acquire(lease, &request).await.unwrap();
            let Reply::Done { status: 200, body: Acquired::Standing(repeat) } = repeat else {
                panic!("the repeat of {grant:?} through node {other} gave {repeat:?}");
            };
            assert_eq!((repeat.token, &repeat.keys), (grant.token, &grant.keys));
            let other = cluster.node(other).client().patient();
            other.acquire(LeaseId::random(), &request).await.refused(ProblemKind::Held);
        }
    }
}

#[tokio::test]
async fn a_released_or_revoked_token_is_stale_at_every_node() {
    let cluster = cluster().start().await.unwrap();
    let key = key("orders/42");
    for by_operator in [false, true] {
        let lease = LeaseId::random();
        let grant = granted(&cluster.node(1).client().patient(), lease, &try_once("orders/42")).await;
        for node in cluster.nodes() {
            let verdict =
                node.client().patient().validate(&key, grant.token, Consistency::Linearizable).await.done();
            assert_eq!((verdict.verdict, verdict.fence), (VerdictName::Live, grant.token));
        }
        match by_operator {
            false => cluster.node(2).client().patient().release(lease).await.done(),
            true => cluster.node(2).client().patient().revoke(&key, grant.token).await.done(),
        }
        for node in cluster.nodes() {
            let verdict =
                node.client().patient().validate(&key, grant.token, Consistency::Linearizable).await.done();
            assert_eq!(verdict.verdict, VerdictName::Stale, "at node {}", node.id());
            assert!(verdict.fence > grant.token);
            // The linearizable read has waited for this node to know it.
            let verdict =
                node.client().patient().validate(&key, grant.token, Consistency::Local).await.done();
            assert_eq!(verdict.verdict, VerdictName::Stale, "at node {}", node.id());
            node.client()
                .patient()
                .acquire(lease, &try_once("orders/42"))
                .await
                .refused(ProblemKind::LeaseGone);
        }
    }
}

#[tokio::test]
async fn a_lease_ends_no_earlier_than_its_client_counts_and_soon_after() {
    let cluster = cluster().start().await.unwrap();
    let watched = [100, 101, 350, 1_000, 2_500].into_iter().enumerate().map(|(index, ttl_ms)| {
        let asked = cluster.node(index as u64 % 3 + 1).client().patient();
        let watching = cluster.node((index as u64 + 1) % 3 + 1).client().patient();
        async move {
            let lease = LeaseId::random();
            let request = AcquireRequest {
                ttl_ms: Ttl::from_ms(ttl_ms).unwrap(),
                ..try_once(&format!("ttl/{ttl_ms}"))
            };
            let sent = Instant::now();
            let grant = granted(&asked, lease, &request).await;
            let ends = ended(&watching, lease, sent, &grant).await;
            assert!(
                ends < Duration::from_millis(ttl_ms.into()) + ENDS_WITHIN,
                "ttl {ttl_ms}: ended {ends:?} after the request"
            );
        }
    });
    futures_util::future::join_all(watched).await;
}

/// A waiter is granted at the moment of the end; polling would see it later. Regression: an entry had the time of the last
/// tick, up to 50 ms ago, but a lease ended by the time of the next one.
#[tokio::test]
async fn no_waiter_is_granted_while_the_holder_still_counts_on_its_lease() {
    let cluster = cluster().start().await.unwrap();
    let renewed = AtomicUsize::new(0);
    let held = (0..60u32).map(|number| {
        let renewed = &renewed;
        // Through all nodes, at various distances from a tick.
        let client = cluster.node(u64::from(number) % 3 + 1).client().patient();
        async move {
            tokio::time::sleep(Duration::from_millis(u64::from(number) * 17)).await;
            let name = format!("ends/{number}");
            // Some live long enough to be renewed even on a slow machine.
            let more_ms = if number % 15 == 0 { 5_000 } else { 0 };
            let (lease, ttl_ms) = (LeaseId::random(), Ttl::from_ms(400 + number * 13 + more_ms).unwrap());
            let mut sent = Instant::now();
            let mut grant = granted(&client, lease, &AcquireRequest { ttl_ms, ..try_once(&name) }).await;
            let waiter = tokio::spawn({
                let client = client.clone();
                async move {
                    let request = wait_for(&name, 60_000);
                    let waited = client.acquire(LeaseId::random(), &request).await.done();
                    (waited.grant().unwrap(), Instant::now())
                }
            });
            if number % 3 == 0 {
                tokio::time::sleep(Duration::from_millis(150)).await;
                let again = Instant::now();
                // On a slow machine it may have ended.
                if let Reply::Done { body, .. } = client.renew(lease, None).await.unwrap() {
                    (sent, grant) = (again, body);
                    renewed.fetch_add(1, Ordering::Relaxed);
                }
            }
            let mut counted = sent + Duration::from_millis(grant.expires_in_ms.unwrap());
            let asked = Instant::now();
            let read = client.lease(lease, Consistency::Linearizable).await.unwrap();
            if let Reply::Done { body: LeaseView::Granted(read), .. } = read {
                counted = counted.max(asked + Duration::from_millis(read.expires_in_ms.unwrap()));
            }
            let (next, at) = waiter.await.unwrap();
            assert!(next.token > grant.token);
            assert!(at < counted + ENDS_WITHIN, "{number}: {:?} after it should have ended", at - counted);
            (number, counted.checked_duration_since(at))
        }
    });
    let ends = futures_util::future::join_all(held).await;
    assert!(renewed.into_inner() > 0, "none was renewed before it ended");
    let early: Vec<_> = ends.into_iter().filter_map(|(number, early)| Some((number, early?))).collect();
    assert!(early.is_empty(), "{} of 60 ended early, by: {early:?}", early.len());
}

/// Regression: its clock stopped after 400 ms, because no follower acknowledged it.
#[tokio::test]
async fn the_leases_of_a_lone_node_end_too() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let lease = LeaseId::random();
    let request = AcquireRequest { ttl_ms: Ttl::from_ms(1_500).unwrap(), ..try_once("alone") };
    let sent = Instant::now();
    let grant = granted(&client, lease, &request).await;
    ended(&client, lease, sent, &grant).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_renewal_gives_the_full_time_again() {
    let cluster = cluster().start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let lease = LeaseId::random();
    let request = AcquireRequest { ttl_ms: Ttl::from_ms(6_000).unwrap(), ..try_once("renewed") };
    let grant = granted(&client, lease, &request).await;
    let began = Instant::now();
    let mut sent = began;
    let mut renewed = grant.clone();
    while began.elapsed() < Duration::from_millis(7_000) {
        sent = Instant::now();
        renewed = client.renew(lease, None).await.done();
        assert_eq!((renewed.token, renewed.expires_in_ms), (grant.token, Some(6_000)));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ended(&client, lease, sent, &renewed).await;
    client.renew(lease, None).await.refused(ProblemKind::LeaseGone);
}

#[tokio::test]
async fn a_new_cluster_counts_from_the_wall_clock_unless_told_otherwise() {
    let unix_ms = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let before = unix_ms();
    let cluster = cluster().nodes(1).first_revision(None).start().await.unwrap();
    let after = unix_ms();
    let grant = granted(&cluster.node(1).client().patient(), LeaseId::random(), &try_once("first")).await;
    assert!(grant.token.0 > before * 1_024, "{} < {before} × 1,024", grant.token);
    assert!(grant.token.0 <= after * 1_024 + 1, "{} > {after} × 1,024", grant.token);
    assert!(grant.token.0 < 1 << 53);
    // A new leader raises them to the clock.
    cluster.node(1).kill().unwrap();
    cluster.node(1).start().unwrap();
    cluster.ready().await.unwrap();
    let next = granted(&cluster.node(1).client().patient(), LeaseId::random(), &try_once("second")).await;
    assert!(next.token.0 > after * 1_024 && next.token.0 <= unix_ms() * 1_024 + 1, "{} then", next.token);
}

#[tokio::test]
async fn a_first_revision_beyond_what_json_keeps_exact_is_refused() {
    for revision in ["9007199254740992", "8936830510563329", "18446744073709551615", "-1", "x"] {
        let flag = format!("--first-revision={revision}");
        let ended = run(PROGRAM, ["serve", "--id=1", "--data=d", &flag], ENDS_WITHIN).await.unwrap();
        assert!(!ended.status.success(), "{revision}: {ended:?}");
        assert!(ended.output.contains("--first-revision"), "{revision}: {ended:?}");
    }
}

/// Waits until `client` sees that the lease has ended. Returns how long after `sent`, the time of the last acquire or renewal,
/// and fails if that is earlier than its answer, `grant`, promised.
async fn ended(client: &Client, lease: LeaseId, sent: Instant, grant: &Grant) -> Duration {
    let counted = Duration::from_millis(grant.expires_in_ms.unwrap());
    let within = counted + ENDS_WITHIN;
    let look = || async {
        // On a busy machine, there may be no leader for a while.
        match client.lease(lease, Consistency::Linearizable).await.ok()? {
            Reply::Done { body: LeaseView::Granted(still), .. } => {
                assert_eq!(still.token, grant.token);
                None
            }
            Reply::Refused(problem) if problem.kind == ProblemKind::LeaseGone => Some(sent.elapsed()),
            other => panic!("{other:?}"),
        }
    };
    let ends = until(within, "the lease ends", look).await.unwrap();
    assert!(ends >= counted, "ended {ends:?} after the request, which was promised {counted:?}");
    ends
}
