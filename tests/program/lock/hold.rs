//! `ringfence hold`, which renews a lease that another program has acquired.

use ringfence_harness::wait_for;
use tokio::io::AsyncWriteExt;

use super::detached::{detach, detached};
use super::lost_leases::die_without_the_cluster;
use super::*;

/// `ringfence hold` of a lease, with a shell that runs this script if there is one.
fn hold(cluster: &Cluster, lease_id: &str, script: Option<&str>) -> Command {
    let mut command = ringfence(cluster, &format!("hold {lease_id}"));
    if let Some(script) = script {
        command.args(["--", "sh", "-c", script]);
    }
    command
}

async fn id_of_detached(cluster: &Cluster, ttl: &str) -> String {
    detached(cluster, ttl).await["lease_id"].as_str().unwrap().to_owned()
}

/// Waits until the lease on `a` has more time left than at the look before.
async fn renewed(cluster: &Cluster) {
    let last = std::cell::Cell::new(u64::MAX);
    let grown = async || {
        let left = view(cluster, "a").await.holders.first().expect("it is held").expires_in_ms.unwrap();
        (left > last.replace(left)).then_some(())
    };
    until(SOON, "the lease is renewed", grown).await.unwrap();
}

#[tokio::test]
async fn a_command_runs_under_a_lease_that_another_program_has_acquired() {
    let cluster = cluster().await;
    let grant = detached(&cluster, "6s").await;
    // Longer than the lease lives by itself.
    let script = "sleep 7; cat; env | grep -E '^RINGFENCE_(TOKEN|KEYS|FENCE|HELD)'";
    let mut child = hold(&cluster, "-", Some(script)).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let id = grant["lease_id"].as_str().unwrap();
    input.write_all(format!("{id}\nsaid\n").as_bytes()).await.unwrap();
    drop(input);
    let out = end_of(child).await.with(0).out;
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.remove(0), "said", "the rest of the input is the command's");
    lines.sort_unstable();
    let token = &grant["token"];
    let [fence, held, of_lease] = ["FENCE", "HELD", "TOKEN"].map(|name| format!("RINGFENCE_{name}={token}"));
    assert_eq!(lines, [fence.as_str(), &format!("{held} a"), "RINGFENCE_KEYS=a", &of_lease]);
    is_free(&cluster, "a").await;
}

#[tokio::test]
#[ignore = "slow"]
async fn without_a_command_a_lease_is_held_until_a_signal_and_then_released() {
    let cluster = cluster().await;
    for sent in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let id = id_of_detached(&cluster, "6s").await;
        let child = hold(&cluster, &id, None).spawn().unwrap();
        // The first one may be that of the start.
        renewed(&cluster).await;
        renewed(&cluster).await;
        signal(&child, sent);
        assert_eq!(end_of(child).await.says(0, ""), "", "{sent:?}");
        is_free(&cluster, "a").await;
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_lease_that_is_lost_ends_the_hold_and_its_command() {
    let cluster = cluster().await;
    for script in [None, Some("exec sleep 1000")] {
        let grant = detached(&cluster, "6s").await;
        let child = hold(&cluster, grant["lease_id"].as_str().unwrap(), script).spawn().unwrap();
        renewed(&cluster).await;
        run(ringfence(&cluster, &format!("revoke a {}", grant["token"]))).await.with(0);
        let err = end_of(child).await.with(76).err;
        assert!(err.contains("revoked by an operator"), "{err}");
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn without_a_cluster_the_command_of_a_hold_dies_before_the_lease_can_end() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let id = id_of_detached(&cluster, "6s").await;
    let child = hold(&cluster, &id, Some(&stubborn(&file))).spawn().unwrap();
    let pids = pids_in(&file).await;
    die_without_the_cluster(&cluster, vec![child], &pids).await;
}

#[tokio::test]
async fn nothing_runs_under_an_id_without_a_live_lease() {
    let cluster = cluster().await;
    let fails = async |id: &str, expected: i32, why: &str| {
        for script in [None, Some("echo ran")] {
            let err = run(hold(&cluster, id, script)).await.says(expected, "");
            assert!(err.contains(why), "{err}");
        }
    };
    let ended = take(&cluster, "b").await;
    cluster.node(1).client().patient().release(ended).await.done();
    fails(&ended.to_string(), 76, "released").await;
    fails(&LeaseId::random().to_string(), 76, "no longer knows it").await;

    take(&cluster, "c").await;
    let waiting = LeaseId::random();
    let (client, request) = (cluster.node(1).client(), wait_for("c", 60_000));
    tokio::spawn(async move { client.acquire(waiting, &request).await });
    waiters(&cluster, "c", 1).await;
    fails(&waiting.to_string(), 125, "still in the queue").await;
}

/// It is left as it was.
#[tokio::test]
async fn a_lease_that_one_late_renewal_would_end_is_not_held() {
    let cluster = cluster().await;
    let mut refused = None;
    // On a busy machine it may end first.
    for _ in 0..10 {
        let id = id_of_detached(&cluster, "1999ms").await;
        let end = run(hold(&cluster, &id, Some("echo ran"))).await;
        if end.status.code() != Some(76) {
            refused = Some(end);
            break;
        }
        assert_eq!(end.out, "");
    }
    let err = refused.expect("the program starts in time").says(125, "");
    assert!(err.contains("time-to-live of 1999 ms"), "{err}");
}

/// To the cluster they are one holder, which ends when the first of them does.
#[tokio::test]
async fn the_second_of_two_holds_of_one_lease_ends_after_the_first_has() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pid");
    let id = id_of_detached(&cluster, "6s").await;
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    let first = hold(&cluster, &id, None).spawn().unwrap();
    renewed(&cluster).await;
    let second = hold(&cluster, &id, Some(&script)).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&first, Signal::TERM);
    end_of(first).await.with(0);
    let err = end_of(second).await.with(76).err;
    assert!(err.contains("released") && !lives(pids[0]), "{err}");
}

#[tokio::test]
async fn a_lock_below_a_hold_and_a_detached_one_below_a_lock_do_not_wait_for_themselves() {
    let cluster = cluster().await;
    let id = id_of_detached(&cluster, "60s").await;
    let below_hold = hold(&cluster, &id, Some(&format!("{PROGRAM} lock a -- echo ran")));
    let below_lock = lock(&cluster, "b", &format!("{PROGRAM} lock --detach b"));
    for command in [below_hold, below_lock] {
        let err = run(command).await.says(125, "");
        assert!(err.contains("wait for itself"), "{err}");
    }
    // The hold has released it.
    run(detach(&cluster, "a --try")).await.with(0);
}
