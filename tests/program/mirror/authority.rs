use std::fs;

use ringfence_harness::{Certificates, Cluster, RedisServer, run, until};

use super::{SOON, becomes};
use crate::ends::cert_of_old;
use crate::support::PROGRAM;

/// It once was loaded at the start, and never again: whoever replaced it had to restart all nodes.
#[tokio::test]
async fn the_authority_of_redis_is_loaded_again_and_shown() {
    let (redis, dir) = (RedisServer::builder().tls().start().await.unwrap(), tempfile::tempdir().unwrap());
    let file = dir.path().join("redis.pem");
    let other = Certificates::new(dir.path(), "DNS:other.test").unwrap();
    fs::copy(other.authority(), &file).unwrap();
    let arguments = [format!("--redis={}", redis.url()), format!("--mirror-tls-ca={}", file.display())];
    let builder =
        arguments.into_iter().fold(Cluster::builder(PROGRAM).nodes(1), |all, one| all.argument(one));
    let cluster = builder.start().await.unwrap();
    let node = cluster.leader().await.unwrap();
    becomes(node, "failing").await;
    fs::write(&file, "none").unwrap();
    let refused = async || {
        let refused = node.client().metric("ringfence_files_refused{use=\"redis\"}").await.ok()?;
        (refused == Some(1.0)).then_some(())
    };
    until(SOON, "a file that cannot be used is told of", refused).await.unwrap();
    fs::copy(redis.authority().unwrap(), &file).unwrap();
    becomes(node, "published").await;
    let words = ["cluster", "status", "-u", &format!("http://{}", node.http())].map(str::to_owned);
    let shown = run(PROGRAM, words, SOON).await.unwrap().output;
    let is_shown = |line: &str| line.contains("redis.pem") && line.contains("redis, authority");
    assert!(shown.lines().any(is_shown), "{shown}");
}

#[tokio::test]
async fn the_authority_of_redis_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node-authority.pem").display().to_string();
    for (days, status, told) in [(3_640, 0, "in 9 days"), (3_700, 2, "ended on")] {
        cert_of_old(dir.path(), days, &["authorities", "--force"]).await;
        let words =
            ["serve", "--check", "--id=1", "--data=d", "--redis=rediss://localhost", "--mirror-tls-ca"];
        let words = words.into_iter().chain([file.as_str()]).map(str::to_owned);
        let ended = run(PROGRAM, words, SOON).await.unwrap();
        assert_eq!(ended.status.code(), Some(status), "{ended:?}");
        assert!(ended.output.contains(&file) && ended.output.contains(told), "{ended:?}");
    }
}
