//! `ringfence cluster wait-ready`, with nodes that are not.

use std::path::Path;

use ringfence_harness::{Ended, Node, run, until};

use crate::support::{PROGRAM, SOON, Secured, cluster, file_of};

async fn wait_ready(urls: &[String], more: &[&str]) -> Ended {
    let own = ["cluster".to_owned(), "wait-ready".to_owned(), format!("--urls={}", urls.join(","))];
    let more = more.iter().map(|word| (*word).to_owned());
    run(PROGRAM, own.into_iter().chain(more), SOON).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_names_the_nodes_that_are_missing_and_waits_for_them() {
    let cluster = cluster().start().await.unwrap();
    let urls: Vec<_> = cluster.nodes().iter().map(Node::url).collect();
    let ready = wait_ready(&urls, &[]).await;
    assert!(ready.status.success() && ready.output == "all 3 are ready\n", "{ready:?}");

    // One that hangs is like one that is gone.
    cluster.node(2).stop().unwrap();
    cluster.node(3).kill().unwrap();
    let missing = wait_ready(&urls, &["--within=10ms"]).await;
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    // Node 1 alone has no quorum, sooner or later.
    for url in &urls[1..] {
        assert!(missing.output.contains(&format!("not ready: {url}: ")), "{missing:?}");
    }
    cluster.node(2).resume().unwrap();
    let (_dir, said) = file_of("said");
    let script = format!(
        "exec {PROGRAM} cluster wait-ready --urls {} --within 10min 2> {}",
        urls.join(","),
        said.display()
    );
    let waiting = tokio::spawn(async move { run("sh", ["-c", &script], SOON).await.unwrap() });
    let line = format!("waits for: {}: ", urls[2]);
    let waits = async || std::fs::read_to_string(&said).ok().filter(|said| said.contains(&line));
    until(SOON, "it says that node 3 is missing", waits).await.unwrap();
    cluster.node(3).start().unwrap();
    let ready = waiting.await.unwrap();
    assert!(ready.status.success(), "{ready:?}");

    let unnamed = run("env", ["-u", "RINGFENCE_URLS", PROGRAM, "cluster", "wait-ready"], SOON).await.unwrap();
    assert!(!unnamed.status.success() && unnamed.output.contains("RINGFENCE_URLS"), "{unnamed:?}");
}

#[tokio::test]
async fn it_needs_no_right_over_tls_but_the_right_authority() {
    let secured = Secured::lay_out(cluster(), "").await;
    secured.start(&[]);
    let urls: Vec<_> =
        secured.cluster.nodes().iter().map(|node| format!("https://{}", node.http())).collect();
    let with = async |authority: &Path, within: &str| {
        let authority = format!("--authority={}", authority.display());
        wait_ready(&urls, &[&authority, &format!("--within={within}")]).await
    };
    let ready = with(&secured.path("authority.pem"), "1min").await;
    assert!(ready.status.success(), "{ready:?}");
    let refused = with(&secured.path("node-authority.pem"), "10ms").await;
    assert!(!refused.status.success() && refused.output.contains("RINGFENCE_AUTHORITY"), "{refused:?}");
}
