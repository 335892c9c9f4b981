use ringfence_wire::{KeyList, KeyView, LeaseId, Token};
use serde_json::json;

use crate::service::Service;

#[tokio::test]
async fn a_key_shows_its_holders_and_its_queue_but_no_lease_id() {
    let service = Service::start().await;
    let body = json!({ "keys": ["a"], "holder": "me", "metadata": { "pod": "a-1" } });
    let id = LeaseId::random();
    let token = service.put(id, body).await.expect::<ringfence_wire::Grant>(201).token;
    let waiter = service.queue("a").await;
    let response = service.get("/v1/keys/a").await;
    let view: KeyView = response.expect(200);
    assert_eq!((view.fence, view.holders.len(), view.waiters.len()), (token, 1, 1));
    assert_eq!(view.holders[0].token, token);
    assert_eq!(view.holders[0].metadata.entries().get("pod").map(String::as_str), Some("a-1"));
    assert!(view.holders[0].expires_in_ms.is_some_and(|ms| ms <= 15_000));
    let text = String::from_utf8(response.body).unwrap();
    assert!(!text.contains(&id.to_string()) && !text.contains(&waiter.lease_id.to_string()), "{text}");

    let local: KeyView = service.get("/v1/keys/a?consistency=local").await.expect(200);
    assert_eq!(local.holders[0].expires_in_ms, None, "a local read cannot tell");
}

#[tokio::test]
async fn a_key_that_nobody_holds_has_the_next_token_as_its_fence() {
    let service = Service::start().await;
    let view: KeyView = service.get("/v1/keys/nobody").await.expect(200);
    assert_eq!((view.holders.len(), view.waiters.len()), (0, 0));
    assert_eq!(view.fence, Token(view.revision.0 + 1));
    assert_eq!(service.hold("nobody").await.token, view.fence);
}

#[tokio::test]
async fn a_key_in_a_path_is_decoded_once_and_its_slashes_may_stay() {
    let service = Service::start().await;
    for (key, paths) in [
        (
            "orders/42/ä b",
            &["orders/42/%C3%A4%20b", "orders%2F42%2f%c3%a4%20b", "%6Frders/42/%C3%A4%20b"][..],
        ),
        ("100%2F", &["100%252F"]),
        ("a?b#c", &["a%3Fb%23c"]),
        ("a+b", &["a+b", "a%2Bb"]),
        ("...", &["...", "%2e.."]),
        ("renew", &["renew"]),
    ] {
        let token = service.hold(key).await.token;
        for path in paths {
            let view: KeyView = service.get(&format!("/v1/keys/{path}")).await.expect(200);
            assert_eq!((view.key.as_str(), view.fence), (key, token), "{path}");
        }
    }
    for path in
        ["", "/", "a/", "/a", "a//b", "a%2F%2Fb", ".", "a/..", "a/%2e%2E/b", "a%00", "%FF", "%C3", "a%0A"]
    {
        let problem = service.get(&format!("/v1/keys/{path}")).await.problem("invalid-request");
        assert_eq!(problem.field.as_deref(), Some("key"), "{path}");
    }
    let long = "x".repeat(513);
    assert_eq!(
        service.get(&format!("/v1/keys/{long}")).await.problem("invalid-request").field.as_deref(),
        Some("key")
    );
}

#[tokio::test]
async fn a_list_is_paged_and_every_page_has_the_revision_of_the_first() {
    let service = Service::start().await;
    for key in ["jobs", "jobs/a b", "jobs/c", "jobs/ä", "other"] {
        service.hold(key).await;
    }
    let mut target = "/v1/keys?prefix=jobs%2F&limit=2".to_owned();
    let first: KeyList = service.get(&target).await.expect(200);
    assert_eq!(first.revision.0, service.handle.view(|table| table.revision().0));
    let mut found: Vec<_> = first.keys.iter().map(|view| view.key.to_string()).collect();
    assert_eq!(found, ["jobs/a b", "jobs/c"]);

    service.hold("jobs/zzz").await;
    let mut next = first.next;
    while let Some(after) = next {
        target = format!("/v1/keys?prefix=jobs/&limit=2&after={after}");
        let page: KeyList = service.get(&target).await.expect(200);
        assert_eq!(page.revision, first.revision, "a watch from there leaves no gap");
        found.extend(page.keys.iter().map(|view| view.key.to_string()));
        next = page.next;
    }
    assert_eq!(found, ["jobs/a b", "jobs/c", "jobs/zzz", "jobs/ä"]);

    let page: KeyList = service.get("/v1/keys?after=9223372036854775807.61").await.expect(200);
    assert_eq!(page.revision.0, first.revision.0 + 1, "a node believes no cursor that is ahead of it");
}

#[tokio::test]
async fn keys_are_searched_for_by_name_holder_and_waiters() {
    let service = Service::start().await;
    for key in ["cold/1", "hot/flash-sale"] {
        service.hold(key).await;
    }
    service.put(LeaseId::random(), json!({ "keys": ["hot/1"], "holder": "billing-7" })).await;
    service.queue("cold/1").await;
    for (query, expected) in [
        ("find=flash", &["hot/flash-sale"][..]),
        ("find=billing", &["hot/1"]),
        ("contended=true", &["cold/1"]),
        ("prefix=hot/&contended=true", &[]),
        ("find=%2F1&contended=false", &["cold/1", "hot/1"]),
    ] {
        let page: KeyList = service.get(&format!("/v1/keys?{query}")).await.expect(200);
        let found: Vec<_> = page.keys.iter().map(|view| view.key.as_str()).collect();
        assert_eq!((found.as_slice(), page.next), (expected, None), "{query}");
    }
    let page: KeyList = service.get("/v1/keys?find=1&limit=1").await.expect(200);
    let after = page.next.unwrap();
    let page: KeyList = service.get(&format!("/v1/keys?find=1&limit=1&after={after}")).await.expect(200);
    assert_eq!((page.keys[0].key.as_str(), page.next.is_some()), ("hot/1", true));
}

#[tokio::test]
async fn a_page_has_a_hundred_keys_unless_asked_otherwise() {
    let service = Service::start().await;
    let acquire =
        |number| json!({ "acquire": { "lease_id": LeaseId::random(), "keys": [format!("k/{number:03}")] } });
    let operations: Vec<_> = (0..101).map(acquire).collect();
    service.post("/v1/batch", json!({ "operations": operations })).await;
    let page: KeyList = service.get("/v1/keys").await.expect(200);
    assert_eq!((page.keys.len(), page.next.is_some()), (100, true));
    let page: KeyList = service.get("/v1/keys?limit=1000&prefix=").await.expect(200);
    assert_eq!((page.keys.len(), page.next), (101, None));
    let page: KeyList = service.get("/v1/keys?limit=101&consistency=local").await.expect(200);
    assert_eq!((page.keys.len(), page.next), (101, None), "a full last page has none after it");
}
