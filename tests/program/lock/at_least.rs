//! Keys that stay taken for a time after the command.

use std::time::{Instant, SystemTime};

use humantime::parse_rfc3339;

use super::*;

#[tokio::test]
#[ignore = "slow"]
async fn the_keys_of_a_quick_command_stay_taken_after_it_whatever_its_status() {
    let cluster = cluster().await;
    let least = Duration::from_secs(5);
    for (script, expected) in [("exit 0", 0), ("exit 3", 3), ("kill $$", 143)] {
        let begun = Instant::now();
        run(lock(&cluster, "a --ttl 2s --at-least 5s", script)).await.with(expected);
        let is_taken = !view(&cluster, "a").await.holders.is_empty();
        assert!(is_taken || begun.elapsed() >= least);
        run(lock(&cluster, "a", "echo ran")).await.says(0, "ran\n");
        assert!(begun.elapsed() >= least, "{script}");
    }
}

#[tokio::test]
async fn the_keys_are_free_after_a_command_that_took_longer() {
    let cluster = cluster().await;
    run(lock(&cluster, "a --ttl 24h --at-least 100ms", "sleep 0.2")).await.with(0);
    is_free(&cluster, "a").await;
}

/// Also if the lease was to live for longer than the keys were to be kept, so that nothing has to be renewed.
#[tokio::test]
async fn a_lease_that_was_lost_is_not_kept_and_the_exit_status_says_so() {
    let cluster = cluster().await;
    for words in ["a --at-least 1h", "a --ttl 2h --at-least 1h"] {
        let script = format!("{PROGRAM} revoke a $RINGFENCE_TOKEN >&2");
        let err = run(lock(&cluster, words, &script)).await.with(76).err;
        assert!(err.contains("revoked by an operator"), "{err}");
        is_free(&cluster, "a").await;
    }
}

/// The status is that of the command, which has succeeded: nobody would look for what is wrong.
#[tokio::test]
async fn in_an_outage_at_the_end_it_says_until_when_the_lease_certainly_lives() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    for (words, release) in [("a --ttl 60s --at-least 1h", "keep the keys"), ("b --ttl 60s", "release")] {
        let [runs, go] = ["runs", "go"].map(|name| dir.path().join(format!("{release} {name}")));
        let script =
            format!("echo $$ > '{}'; until [ -e '{}' ]; do sleep 0.1; done", runs.display(), go.display());
        let begun = SystemTime::now();
        let child = lock(&cluster, words, &script).spawn().unwrap();
        pids_in(&runs).await;
        for node in cluster.nodes() {
            node.stop().unwrap();
        }
        let stopped = SystemTime::now();
        std::fs::write(&go, "").unwrap();
        let err = end_of(child).await.with(0).err;
        let until = err.split_once("the lease lives until ").and_then(|(_, rest)| rest.split_once(' '));
        let until = parse_rfc3339(until.expect(&err).0).unwrap();
        assert!(err.starts_with(&format!("ringfence: cannot {release}")), "{err}");
        // Less the allowance for clocks and the rest of a second.
        assert!(
            until >= begun + Duration::from_secs(58) && until <= stopped + Duration::from_secs(60),
            "{err}"
        );
        for node in cluster.nodes() {
            node.resume().unwrap();
        }
    }
}
