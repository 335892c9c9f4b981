//! What each right allows.

use ringfence_wire::LeaseId;
use serde_json::{Value, json};

use super::TTL;
use super::guarded::{guarded, new};
use crate::support::routes::{About, request, routes};
use crate::support::{ALL, rules_of};

/// Every route, with every right, on keys of its own, of others, and of both.
#[tokio::test]
#[ignore = "slow"]
async fn a_right_allows_what_the_document_says_and_nothing_else() {
    const RIGHTS: [&str; 7] = ["validate", "read", "acquire", "revoke", "metrics", "observe", "operate"];
    let (all, of_right) = (new(), RIGHTS.map(|right| (right, new())));
    let mut rules = rules_of("all", &all, ALL);
    for (right, credential) in &of_right {
        let allow = match *right {
            "metrics" | "observe" | "operate" => format!("cluster = [\"{right}\"]"),
            _ => format!("allow = [{{ keys = \"own/\", may = [\"{right}\"] }}]"),
        };
        rules += &rules_of(right, credential, &allow);
    }
    let guarded = guarded(&rules, &[]).await;
    let everything = guarded.client(guarded.cluster.nodes(), &all);
    let document: Value =
        serde_json::from_str(&guarded.send("GET", "/openapi.json", None, None).await.1).unwrap();
    let places: [(&[&str], &str, bool); 3] =
        [(&["own/a"], "own/", true), (&["other/a"], "other/", false), (&["own/a", "other/a"], "o", false)];
    let mut number = 0;
    for (method, path, needed) in routes(&document) {
        let needed = needed.as_str();
        let callers = of_right.iter().map(|(right, credential)| (*right, Some(credential.reveal())));
        for ((right, credential), (keys, prefix, is_own)) in
            callers.chain([("none", None)]).flat_map(|caller| places.map(|place| (caller, place)))
        {
            number += 1;
            let keys = |of: &str| keys.iter().map(|key| format!("{key}{number}{of}")).collect::<Vec<_>>();
            let lease = everything.lock_all(keys("-held")).ttl(TTL).acquire().await.unwrap();
            let (keys, all_held) = (keys(""), lease.keys());
            let held = (all_held[0].as_str(), lease.token());
            let about = About { keys: &keys, prefix, lease: lease.lease_id(), held, changes_cluster: false };
            let (target, body) = request(&method, &path, &about);
            let (status, text) = guarded.send(&method, &target, credential, body.as_ref()).await;
            let _ = lease.release().await;
            // Of a batch, the status of its operation.
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            let status = answer["results"][0]["status"].as_u64().map_or(status.into(), |status| status);
            let has =
                right == needed || matches!((right, needed), ("read", "validate") | ("operate", "observe"));
            let is_of_cluster = matches!(needed, "metrics" | "observe" | "operate");
            // To all but its owner, a lease is unknown.
            let is_of_lease = (path.starts_with("/v1/leases/") && method != "PUT") || path == "/v1/renew";
            let expected = match needed {
                "none" => None,
                _ if has && is_of_lease => {
                    let done = method == "DELETE" && status == 204;
                    assert!(status == 404 || done, "{method} {target}: {status} {text}");
                    None
                }
                _ if has && (is_own || is_of_cluster) => None,
                _ if right == "none" => Some(401),
                _ => Some(403),
            };
            let denied = matches!(status, 401 | 403).then_some(status);
            assert_eq!(denied, expected, "{right}: {method} {target} {body:?}: {status} {text}");
            assert_ne!(status, 0, "{right}: {method} {target}: no response");
            if !matches!(needed, "none") || path == "/v1/access" {
                let (status, text) = guarded.send(&method, &target, Some("rfc_guess"), body.as_ref()).await;
                assert_eq!(status, 401, "{method} {target}: {text}");
            }
        }
    }
    assert!(number > 400, "{number}");
}

#[tokio::test]
async fn operations_of_a_batch_are_denied_one_by_one() {
    let (all, worker) = (new(), new());
    let rules = rules_of("all", &all, ALL)
        + &rules_of("worker", &worker, "allow = [{ keys = \"team1/\", may = [\"acquire\"] }]");
    let guarded = guarded(&rules, &[]).await;
    let everything = guarded.client(guarded.cluster.nodes(), &all);
    let foreign = everything.lock("team10/a").holder("other").ttl(TTL).acquire().await.unwrap();
    let shared = everything.lock("team1/held").holder("other").ttl(TTL).acquire().await.unwrap();
    let acquire =
        |key: &str| json!({ "acquire": { "lease_id": LeaseId::random(), "keys": [{ "key": key }] } });
    let operations = json!({ "operations": [
        acquire("team10/b"),
        acquire("team1/a"),
        { "renew": { "lease_id": foreign.lease_id() } },
        acquire("team1/held"),
        { "release": { "lease_id": foreign.lease_id() } },
        acquire("team1/b"),
        { "renew": { "lease_id": LeaseId::random() } },
        acquire("team1"),
    ]});
    let (status, body) = guarded.send("POST", "/v1/batch", Some(worker.reveal()), Some(&operations)).await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let statuses: Vec<_> =
        body["results"].as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [403, 201, 404, 409, 204, 201, 404, 403], "{body}");
    assert_eq!(
        body["results"][3]["body"]["holders"],
        Value::Null,
        "who may not read learns no names: {body}"
    );
    assert!(everything.renew(foreign.lease_id(), None).await.is_ok());
    drop(shared);
    // Encoded or not, a path is one key.
    for key in
        ["team10/a", "team1%2F..%2Fteam10%2Fa", "%2e%2e/team10/a", "team1/%2e%2e/team10/a", "team1%30/a"]
    {
        let (status, body) =
            guarded.send("GET", &format!("/v1/keys/{key}"), Some(worker.reveal()), None).await;
        assert!(matches!(status, 400 | 403), "{key}: {status} {body}");
    }
}
