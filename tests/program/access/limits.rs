//! The limits of a principal.

use ringfence_access::Credential;
use ringfence_harness::until;
use ringfence_wire::LeaseId;
use serde_json::{Value, json};

use super::guarded::{guarded, new};
use crate::support::{ALL, SOON, rules_of};

#[tokio::test]
async fn limits_hold_for_one_principal_and_count_the_operations_of_a_batch() {
    let (greedy, other) = (new(), new());
    let with = |limits: &str| {
        rules_of("greedy", &greedy, &format!("{}\n{limits}", ALL)) + &rules_of("other", &other, ALL)
    };
    let guarded = guarded(&with("limits = { requests-per-s = 1, watches = 1 }"), &[]).await;
    let access = async |of: &Credential| guarded.send("GET", "/v1/access", Some(of.reveal()), None).await;
    let releases = vec![json!({ "release": { "lease_id": LeaseId::random() } }); 1_000];
    let batch = json!({ "operations": releases });
    let accepted = async || {
        let (status, _) = guarded.send("POST", "/v1/batch", Some(greedy.reveal()), Some(&batch)).await;
        (status == 200).then_some(())
    };
    until(SOON, "a batch within the limit", accepted).await.unwrap();
    // The batch used up the requests of 1,000 s.
    let (status, body) = access(&greedy).await;
    assert!(status == 429 && body.contains("rate-limited") && body.contains("greedy"), "{status}: {body}");
    assert_eq!(access(&other).await.0, 200);
    guarded.replace_rules(&with("limits = { watches = 1 }")).await;
    let (status, body) = access(&greedy).await;
    assert!(status == 200 && body.contains("\"limits\":{\"watches\":1}"), "{status}: {body}");

    let node = guarded.cluster.node(1);
    let mut first = guarded.connection(node, Some(greedy.reveal())).await.unwrap();
    first.expect(200, "GET", "/v1/watch", "").await.unwrap();
    let second = async |of: &Credential| guarded.send("GET", "/v1/watch", Some(of.reveal()), None).await.0;
    assert_eq!((second(&greedy).await, second(&other).await), (429, 200));
    drop(first);
    let has_place = async || (second(&greedy).await == 200).then_some(());
    until(SOON, "the place of the first watch is free", has_place).await.unwrap();
}

/// A principal once kept all nodes busy with bodies that are refused, each as expensive as hundreds of requests.
#[tokio::test]
async fn a_large_body_counts_as_many_requests_although_it_is_refused() {
    let greedy = new();
    let limits = "limits = { requests-per-s = 10 }";
    for (size, expected) in [(1_000_000, 400), (1_100_000, 413)] {
        let rules = rules_of("greedy", &greedy, &format!("{}\n{limits}", ALL));
        let guarded = guarded(&rules, &[]).await;
        let large = json!({ "keys": ["a"], "holder": "h".repeat(size) });
        let path = format!("/v1/leases/{}", LeaseId::random());
        let put = async || guarded.send("PUT", &path, Some(greedy.reveal()), Some(&large)).await;
        assert_eq!(put().await.0, expected);
        // It takes 20 s to make up for it.
        let (status, body) = put().await;
        assert!(status == 429 && body.contains("rate-limited"), "{status}: {body}");
    }
}

/// One connection once kept a node busy with lists of a few leases that have much metadata.
#[tokio::test]
async fn large_reads_are_limited() {
    let greedy = new();
    let rules = rules_of("greedy", &greedy, &format!("{}\nlimits = {{ requests-per-s = 10 }}", ALL));
    let guarded = guarded(&rules, &[]).await;
    let send = async |method: &str, path: &str, body: Option<&Value>| {
        guarded.send(method, path, Some(greedy.reveal()), body).await
    };
    let keys: Vec<_> = (0..64).map(|number| format!("a/{number}")).collect();
    let large = json!({ "keys": keys, "metadata": { "m": "m".repeat(4_000) } });
    assert_eq!(send("PUT", &format!("/v1/leases/{}", LeaseId::random()), Some(&large)).await.0, 201);
    let refused = async || {
        let (status, list) = send("GET", "/v1/keys", None).await;
        assert!(status == 429 || list.len() > 256_000, "{status}: {} bytes", list.len());
        // It takes a second to make up for it.
        let (status, body) = send("GET", "/v1/keys/a/0", None).await;
        (status == 429 && body.contains("greedy may read 10 times 4 KiB")).then_some(())
    };
    until(SOON, "a read is refused", refused).await.unwrap();
}
