//! Clients whose addresses lead to another cluster than theirs.

use std::process::Stdio;
use std::time::Duration;

use ringfence_client::{Client, Consistency};
use ringfence_harness::{Answered, Cluster, until};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{PROGRAM, SOON};

/// A time-to-live longer than any test.
const LONG: Duration = Duration::from_secs(86_400);

/// A waiter once followed the URL that its cluster advertised, as after a tunnel it leads elsewhere, and ran its command under
/// a lease of the cluster there.
#[tokio::test]
async fn no_command_runs_under_a_lease_of_another_cluster() {
    let other = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let advertised = format!("--advertise-http={}", other.node(1).url());
    let own = Cluster::builder(PROGRAM).nodes(1).argument(advertised).start().await.unwrap();
    let of_own = Client::connect([own.node(1).url()]).unwrap();
    let held = of_own.lock("job").ttl(LONG).no_renew().acquire().await.unwrap();
    let mut program = Command::new(PROGRAM);
    program.env("RINGFENCE_URLS", own.node(1).url()).args(["lock", "job", "--ttl", "2s", "--", "sh", "-c"]);
    program.arg("sleep 5").stdin(Stdio::null()).stdout(Stdio::piped());
    let waiter = program.stderr(Stdio::inherit()).kill_on_drop(true).spawn().unwrap();
    let waits = async || {
        let view = of_own.key("job", Consistency::Linearizable).await.unwrap();
        (view.waiters.len() == 1).then_some(())
    };
    until(SOON, "it waits", waits).await.unwrap();
    held.release().await.unwrap();
    // It renews its lease for longer than that would live without.
    let output = timeout(SOON, waiter.wait_with_output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let metrics = other.node(1).client().metrics().await.done();
    let asked: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("ringfence_acquire_total")).collect();
    assert!(
        !asked.is_empty() && asked.iter().all(|line| line.ends_with(" 0")),
        "the other was asked: {asked:?}"
    );
}
