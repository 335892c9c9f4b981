//! The commands of docs/security.md, with real processes.

use std::path::Path;
use std::time::Duration;

use ringfence_harness::{Cluster, run};

use crate::support::PROGRAM;

const DOCUMENT: &str = include_str!("../../docs/security.md");
const TEN_MINUTES: Duration = Duration::from_secs(600);

#[tokio::test]
async fn the_commands_of_the_document_found_a_cluster_that_two_principals_can_use() {
    let (blocks, mut script) = (DOCUMENT.split("```sh\n").skip(1), String::new());
    for block in blocks.map(|block| block.split("```").next().unwrap()) {
        script += block;
        if block.contains("ringfence serve") {
            script += "for id in 1 2 3; do until curl -sfo /dev/null --cacert authority.pem https://127.0.0.1:740$id/readyz; do sleep 0.1; done; done\n";
        }
    }
    assert!(script.contains("ringfence serve") && script.contains("access check"), "{script}");
    let script = format!(
        "set -euo pipefail
        export PATH={}:$PATH
        work=$(mktemp -d); cd $work
        trap 'cat $work/played; kill $(jobs -p); wait; rm -r $work' EXIT
        {{ {script} }} > $work/played
        [[ $(grep -c denied $work/played) = 2 ]]
        grep -q '^only I write' $work/played
        grep -q '^principal  billing' $work/played
        grep -q 'accounts/42' $work/played
        until RINGFENCE_CREDENTIAL=$(cat billing-2.credential) ringfence access show; do sleep 0.1; done",
        Path::new(PROGRAM).parent().unwrap().display()
    );
    // Its address is free, and nothing else uses it.
    let cluster = Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap();
    let script = script.replace("ringfence serve", "ringfence serve --die-with-parent $$");
    let script = script.replace("127.0.0.1", &cluster.node(1).http().ip().to_string());
    let played = run("bash", ["-c", &script], TEN_MINUTES).await.unwrap();
    assert!(played.status.success(), "{}", played.output);
}
