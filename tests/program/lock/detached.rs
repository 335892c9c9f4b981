//! Leases that outlive the program that acquired them.

use std::time::Instant;

use serde_json::Value;

use super::*;

/// `ringfence lock --detach` with these arguments, separated by spaces.
pub(super) fn detach(cluster: &Cluster, words: &str) -> Command {
    ringfence(cluster, &format!("lock --detach {words}"))
}

/// A detached lease on `a`.
pub(super) async fn detached(cluster: &Cluster, ttl: &str) -> Value {
    run(detach(cluster, &format!("a --ttl {ttl} --output json"))).await.json()
}

#[tokio::test]
async fn a_detached_lease_is_printed_and_lasts_for_its_time_to_live() {
    let cluster = cluster().await;
    let begun = Instant::now();
    let grant = detached(&cluster, "3s").await;
    let token = &grant["token"];
    assert!(grant["lease_id"].is_string() && grant["keys"][0]["fence"] == *token, "{grant}");
    let out = run(lock(&cluster, "a", "echo $RINGFENCE_TOKEN")).await.with(0).out;
    assert!(begun.elapsed() >= Duration::from_secs(3));
    assert!(out.trim().parse::<u64>().unwrap() > token.as_u64().unwrap());

    let out = run(detach(&cluster, "a b --ttl 24h")).await.with(0).out;
    assert!(out.starts_with("lease_id  ") && out.contains("\ntoken     ") && out.contains("\nb "), "{out}");
    for (words, expected) in [("c b --try", 75), ("b --wait 200ms -E 9", 9)] {
        run(detach(&cluster, words)).await.says(expected, "");
    }
    is_free(&cluster, "c").await;
}

#[tokio::test]
async fn a_detached_lock_that_waits_leaves_the_queue_at_a_signal() {
    let cluster = cluster().await;
    take(&cluster, "a").await;
    let child = detach(&cluster, "a").spawn().unwrap();
    waiters(&cluster, "a", 1).await;
    signal(&child, Signal::TERM);
    assert_eq!(as_shown(end_of(child).await.status), Some(143));
    waiters(&cluster, "a", 0).await;
}

#[tokio::test]
async fn options_that_exclude_each_other_are_named() {
    for (words, named) in [
        ("lock a --detach -- true", "--detach"),
        ("lock a --detach --max 3s", "--max"),
        ("lock a --detach --kill-after 3s", "--kill-after"),
        ("lock a --detach --signal INT", "--signal"),
        ("lock a --detach --at-least 3s", "--at-least"),
        ("lock a --output json -- true", "--output"),
        ("lock a --at-least 25h -- true", "--at-least"),
        ("lock a --at-least soon -- true", "--at-least"),
        ("hold 00000000-0000-4000-8000-000000000001 --max 3s", "--max"),
        ("hold 00000000-0000-4000-8000-000000000001 --signal INT", "--signal"),
        ("hold here", "LEASE_ID"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.env("RINGFENCE_URLS", "http://127.0.0.1:1").args(words.split(' '));
        let err = run(piped(command)).await.says(125, "");
        assert!(err.contains(named), "{words}: {err}");
    }
}
