use std::process::{Command, Output};

use ringfence_harness::{Answered, Node, RedisServer, Reply, take, try_once, until};
use ringfence_wire::LeaseId;

use super::{SOON, becomes, cluster, connect, equal, hash, held_in_redis, id, number};
use crate::support::PROGRAM;

fn purge(redis: &RedisServer, cluster: &str) -> Output {
    let arguments = ["mirror", "purge", "--redis", &redis.url(), "--cluster", cluster];
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

/// Regression: the second one took over, and readers rejected the live holders of the first.
#[tokio::test]
async fn a_second_cluster_with_the_same_redis_reports_occupied_and_names_the_first() {
    let redis = RedisServer::builder().start().await.unwrap();
    let first = cluster(&redis).nodes(1).start().await.unwrap();
    let first_node = first.leader().await.unwrap();
    take(&first_node.client(), "orders/42").await;
    equal(&first, &redis).await;
    let held = held_in_redis(&mut connect(&redis).await).await.unwrap();
    let id = id(&first_node.client()).await;

    let second = cluster(&redis).nodes(1).first_revision(Some(1 << 40)).start().await.unwrap();
    let second_node = second.leader().await.unwrap();
    becomes(second_node, "occupied").await;
    take(&second_node.client(), "orders/42").await;
    let mirror = second_node.client().cluster().await.done().mirror.unwrap();
    assert_eq!(mirror["masters"][0]["left_to"]["cluster_id"], id.as_str());
    let metrics = || async {
        let metrics = second_node.client().metrics().await.done();
        metrics.contains(r#"ringfence_mirror_state{state="occupied"} 1"#).then_some(())
    };
    until(SOON, "the metrics say so", metrics).await.unwrap();
    second_node.tells(&format!("--mirror-take-over {id}")).await.unwrap();
    assert_eq!(held_in_redis(&mut connect(&redis).await).await.unwrap(), held);
    becomes(first_node, "published").await;

    second_node.kill().unwrap();
    second_node
        .start_with(|command| {
            command.args(["--mirror-take-over", &id]);
        })
        .unwrap();
    second.ready().await.unwrap();
    becomes(second_node, "published").await;
    equal(&second, &redis).await;
    becomes(first_node, "occupied").await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_new_cluster_does_not_start_below_an_earlier_marker() {
    let redis = RedisServer::builder().start().await.unwrap();
    let earlier = cluster(&redis).first_revision(Some(5_000)).start().await.unwrap();
    let client = earlier.leader().await.unwrap().client();
    for number in 0..50 {
        take(&client, &format!("earlier/{number}")).await;
    }
    let id = id(&client).await;
    let mut reader = connect(&redis).await;
    let has_reached = || {
        let mut reader = reader.clone();
        async move {
            let command = redis::cmd("HGET").arg("ringfence:marker:{0}").arg("revision").clone();
            let revision: Option<u64> = command.query_async(&mut reader).await.ok()?;
            revision.filter(|revision| *revision >= 5_050)
        }
    };
    until(SOON, "its marker has reached 5,050", has_reached).await.unwrap();
    earlier.kill_all().unwrap();
    drop(earlier);

    // It starts above the first revision of the other, but with tokens that the other has issued.
    let next = cluster(&redis).first_revision(Some(5_010)).lay_out().await.unwrap();
    next.start_all().unwrap();
    let refused = || async { next.nodes().iter().map(Node::log).find(|log| log.contains("does not start")) };
    let log = until(SOON, "it says that it does not start", refused).await.unwrap();
    assert!(log.contains(&id) && log.contains("--first-revision") && log.contains("mirror purge"), "{log}");
    let attempt = next.node(1).client().acquire(LeaseId::random(), &try_once("earlier/1")).await;
    assert!(!matches!(attempt, Ok(Reply::Done { .. })), "{attempt:?}");
    assert!(
        number(&hash(&mut reader, "earlier/1").await, "fence") > 5_000,
        "the other's fences are untouched"
    );

    // The advice in the log works.
    let purged = purge(&redis, &id);
    assert!(purged.status.success(), "{purged:?}");
    next.ready().await.unwrap();
    take(&next.leader().await.unwrap().client(), "next/1").await;
    equal(&next, &redis).await;
    assert!(number(&hash(&mut reader, "next/1").await, "token") > 5_010);
}

#[tokio::test]
async fn a_purge_removes_the_keys_of_the_named_cluster_only() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let client = cluster.leader().await.unwrap().client();
    take(&client, "left/behind").await;
    equal(&cluster, &redis).await;
    let id = id(&client).await;
    cluster.kill_all().unwrap();
    redis.command(["set", "ringfences", "not ours"]).await.unwrap();
    let refused = purge(&redis, &uuid::Uuid::new_v4().to_string());
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&id), "{refused:?}");
    assert!(hash(&mut connect(&redis).await, "left/behind").await.contains_key("fence"));
    let done = purge(&redis, &id);
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).contains("removed 1 "),
        "{done:?}"
    );
    assert_eq!(redis.command(["keys", "*"]).await.unwrap(), "ringfences");
}
