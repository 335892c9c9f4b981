//! The recovery drill is a command that works, and the one that a storage backend in this program takes part in.

use std::time::Duration;

use ringfence_harness::{Cluster, run};
use tokio::net::TcpListener;

use crate::support::PROGRAM;

const DRILL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/drill.sh");
/// Far longer than it takes.
const TEN_MINUTES: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_new_cluster_replaces_one_that_lost_two_of_three_disks() {
    // Its address is free for the drill, which uses other ports.
    let claimed = Cluster::builder(PROGRAM).lay_out().await.unwrap();
    let host = claimed.node(1).http().ip();
    let files = tempfile::tempdir().unwrap();
    let client = ringfence_client::Client::connect([format!("http://{host}:7411")]).unwrap();
    let backend = ringfence_storage::storage(client, files.path().to_owned());
    let listener = TcpListener::bind((host, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, backend).await.unwrap() });
    let settings =
        [("RINGFENCE", PROGRAM.to_owned()), ("HOST", host.to_string()), ("STORAGE", address.to_string())];
    let arguments = settings.map(|(name, value)| format!("{name}={value}"));
    let drill = run("env", arguments.iter().map(String::as_str).chain([DRILL]), TEN_MINUTES).await.unwrap();
    assert!(drill.status.success(), "{}", drill.output);
    let time = drill.output.lines().find_map(|line| line.strip_prefix("recovered in ")?.split_once(" s,"));
    assert!(time.is_some_and(|(seconds, _)| seconds.parse::<f64>().is_ok()), "{}", drill.output);
    println!("{}", drill.output);
}
