//! Requests that are refused before they reach the table.

use std::sync::atomic::Ordering::SeqCst;

use ringfence_wire::{Grant, LeaseId, ProblemKind};
use serde_json::json;

use crate::client::{Connection, Response};
use crate::service::Service;

#[tokio::test]
async fn a_body_that_is_not_valid_names_the_field() {
    let service = Service::start().await;
    let id = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
    let lease = format!("PUT /v1/leases/{id}");
    let renew = format!("POST /v1/leases/{id}/renew");
    let operation = json!({ "release": { "lease_id": id } });
    let many = |one: &serde_json::Value, count| vec![one.clone(); count];
    for (place, body, field) in [
        (lease.as_str(), "", Some("keys")),
        (&lease, "{", None),
        (&lease, "[]", None),
        (&lease, r#"{"keys":["a"]} {}"#, None),
        (&lease, "\u{1}", None),
        (&lease, r#"{"keys":[]}"#, Some("keys")),
        (&lease, r#"{"keys":["a","a"]}"#, Some("keys[1]")),
        (&lease, r#"{"keys":["a",{"key":"b","mode":"shared","limit":0}]}"#, Some("keys[1].limit")),
        (&lease, r#"{"keys":["a/../b"]}"#, Some("keys[0]")),
        (&lease, r#"{"keys":["a"],"ttl_ms":99}"#, Some("ttl_ms")),
        (&lease, r#"{"keys":["a"],"wait_ms":60001}"#, Some("wait_ms")),
        (&lease, r#"{"keys":["a"],"colour":1}"#, Some("colour")),
        (&lease, r#"{"keys":[{"key":"a","colour":1}]}"#, Some("keys[0].colour")),
        ("POST /v1/leases", r#"{"keys":["a"],"lease_id":"x"}"#, Some("lease_id")),
        (&renew, r#"{"ttl_ms":0}"#, Some("ttl_ms")),
        (&renew, r#"{"ttl":1}"#, Some("ttl")),
        ("POST /v1/renew", "", Some("lease_ids")),
        ("POST /v1/renew", r#"{"lease_ids":["a"]}"#, Some("lease_ids[0]")),
        ("POST /v1/renew", &json!({ "lease_ids": many(&json!(id), 1_001) }).to_string(), Some("lease_ids")),
        (
            "POST /v1/batch",
            r#"{"operations":[{"acquire":{"lease_id":"a"}}]}"#,
            Some("operations[0].acquire.lease_id"),
        ),
        ("POST /v1/batch", &json!({ "operations": many(&operation, 1_001) }).to_string(), Some("operations")),
        (
            "POST /v1/batch",
            &json!({ "operations": [{ "acquire": { "lease_id": id, "keys": ["a"], "wait_ms": 1 } }] })
                .to_string(),
            Some("operations[0].acquire.wait_ms"),
        ),
        ("POST /v1/revoke", r#"{"key":"a"}"#, Some("token")),
        ("POST /v1/revoke", r#"{"key":"a","token":1,"why":""}"#, Some("why")),
        ("POST /v1/validate", r#"{"key":"a"}"#, Some("token")),
        ("POST /v1/validate", r#"{"key":"a","token":1,"fence":1}"#, Some("fence")),
        ("POST /v1/validate", r#"{"checks":[{"key":"a","token":-1}]}"#, Some("checks[0].token")),
    ] {
        let (method, target) = place.split_once(' ').unwrap();
        let response = service.send(method, target, &[], body.as_bytes()).await;
        let problem = response.problem("invalid-request");
        assert_eq!(problem.field.as_deref(), field, "{place} {body:.100}: {}", problem.detail);
        let of_acquire = place == lease || place == "POST /v1/leases";
        assert_eq!(problem.lease_id.is_some(), of_acquire, "the problem of an acquire carries its lease");
    }
    assert_eq!(service.handle.view(|table| table.live()), 0);
}

#[tokio::test]
async fn a_lease_id_in_a_path_is_a_uuid_other_than_nil() {
    let service = Service::start().await;
    let nil = "00000000-0000-0000-0000-000000000000";
    for id in ["x", nil, "%20", "%FF", "%2Frenew", "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e1"] {
        for (method, rest) in [("PUT", ""), ("GET", ""), ("DELETE", ""), ("POST", "/renew")] {
            let response = service.send(method, &format!("/v1/leases/{id}{rest}"), &[], b"").await;
            assert_eq!(
                response.problem("invalid-request").field.as_deref(),
                Some("lease_id"),
                "{method} {id}"
            );
        }
    }
}

#[tokio::test]
async fn a_lease_id_may_be_written_in_several_ways() {
    let service = Service::start().await;
    let body = br#"{"keys":["a"]}"#;
    let first: Grant =
        service.send("PUT", "/v1/leases/0B6F3A525CC54B0E9C1E2A6F1D3C7E10", &[], body).await.expect(201);
    let same = "/v1/leases/0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
    let again: Grant = service.send("PUT", same, &[], body).await.expect(200);
    assert_eq!(again.token, first.token);
    let encoded = "/v1/leases/%30b6f3a52%2D5cc5-4b0e-9c1e-2a6f1d3c7e10";
    assert_eq!(service.get(encoded).await.expect::<Grant>(200).token, first.token);
}

#[tokio::test]
async fn an_unknown_or_wrong_query_parameter_is_refused_by_name() {
    let service = Service::start().await;
    let lease = format!("/v1/leases/{}", LeaseId::random());
    let long = "x".repeat(513);
    for (method, target, field) in [
        ("PUT", format!("{lease}?wait_ms=5"), "wait_ms"),
        ("DELETE", format!("{lease}?force"), "force"),
        ("GET", format!("{lease}?consistency=strong"), "consistency"),
        ("GET", format!("{lease}?consistency=local&consistency=local"), "consistency"),
        ("POST", "/v1/renew?a=1".to_owned(), "a"),
        ("POST", "/v1/validate?wait=1".to_owned(), "wait"),
        ("GET", "/v1/keys/a?limit=1".to_owned(), "limit"),
        ("GET", "/v1/keys?limit=0".to_owned(), "limit"),
        ("GET", "/v1/keys?limit=1001".to_owned(), "limit"),
        ("GET", "/v1/keys?limit=".to_owned(), "limit"),
        ("GET", "/v1/keys?after=jobs".to_owned(), "after"),
        ("GET", "/v1/keys?after=".to_owned(), "after"),
        ("GET", format!("/v1/keys?prefix={long}"), "prefix"),
        ("GET", "/v1/keys?prefix=%FF".to_owned(), "prefix"),
        ("GET", format!("/v1/keys?find={long}"), "find"),
        ("GET", "/v1/keys?contended=yes".to_owned(), "contended"),
        ("GET", "/v1/keys?Prefix=a".to_owned(), "Prefix"),
        ("GET", "/v1/cluster?pretty".to_owned(), "pretty"),
        ("GET", "/livez?verbose".to_owned(), "verbose"),
        ("GET", "/readyz?verbose".to_owned(), "verbose"),
        ("GET", "/metrics?name%5B%5D=a".to_owned(), "name[]"),
        ("GET", "/openapi.json?x".to_owned(), "x"),
    ] {
        let problem = service.send(method, &target, &[], b"").await.problem("invalid-request");
        assert_eq!(problem.field.as_deref(), Some(field), "{method} {target}");
    }
    assert_eq!(service.get("/v1/keys?").await.status, 200, "an empty query is none");
}

/// Regression: each parameter was decoded and compared with all before it, so 17,000 of them took half a second.
#[tokio::test]
async fn query_parsing_stops_at_the_first_wrong_parameter() {
    let service = Service::start().await;
    for (target, field) in [
        ("/v1/keys?limit=1&colour=1&%FF", "colour"),
        ("/v1/keys?limit=1&limit=1&%FF", "limit"),
        ("/v1/watch?after=1&limit=1&%FF", "limit"),
        ("/livez?a&%FF", "a"),
    ] {
        let problem = service.get(target).await.problem("invalid-request");
        assert_eq!(problem.field.as_deref(), Some(field), "{target}");
    }
}

#[tokio::test]
async fn a_head_has_at_most_16_kib() {
    let service = Service::start().await;
    let target = |bytes: usize| format!("/v1/keys?after={}", "x".repeat(bytes));
    let problem = service.get(&target(15 << 10)).await.problem("invalid-request");
    assert_eq!(problem.field.as_deref(), Some("after"), "it was read");
    let problem = service.get(&target(16 << 10)).await.problem("invalid-request");
    assert!(problem.detail.contains("16 KiB"), "{}", problem.detail);
    let long = "x".repeat(16 << 10);
    let problem = service.send("GET", "/livez", &[("Cookie", &long)], b"").await.problem("invalid-request");
    assert!(problem.detail.contains("16 KiB"), "{}", problem.detail);
    service
        .send("GET", "/livez", &[("Cookie", &long[..15 << 10])], b"")
        .await
        .expect::<serde_json::Value>(200);
}

#[tokio::test]
async fn any_content_type_is_read_as_json() {
    let service = Service::start().await;
    for (number, content_type) in
        ["application/x-www-form-urlencoded", "text/plain", "", "application/json; charset=utf-8"]
            .iter()
            .enumerate()
    {
        let target = format!("/v1/leases/{}", LeaseId::random());
        let body = format!(r#" {{"keys":["{number}"]}} "#);
        let response = service.send("PUT", &target, &[("Content-Type", content_type)], body.as_bytes()).await;
        response.expect::<Grant>(201);
    }
}

#[tokio::test]
async fn a_body_of_one_mebibyte_is_read_and_a_larger_one_is_refused() {
    let service = Service::start().await;
    let target = format!("/v1/leases/{}", LeaseId::random());
    let padded = |size: usize| {
        let mut body = br#"{"keys":["a"]}"#.to_vec();
        body.resize(size, b' ');
        body
    };
    service.send("PUT", &target, &[], &padded(1 << 20)).await.expect::<Grant>(201);
    let problem = service.send("PUT", &target, &[], &padded((1 << 20) + 1)).await.problem("too-large");
    assert!(problem.lease_id.is_some());
    service.send("PUT", &target, &[], &padded(12 << 20)).await.problem("too-large");
    let response = service.send("POST", "/v1/batch", &[], &padded(2 << 20)).await;
    assert_eq!(response.problem("too-large").kind, ProblemKind::TooLarge);
}

#[tokio::test]
async fn a_foreign_origin_may_read_but_change_nothing() {
    let service = Service::start_as(Some("https://ringfence.TEST")).await;
    let target = format!("/v1/leases/{}", LeaseId::random());
    let body = br#"{"keys":["a"]}"#;
    let own = "http://ringfence.test:7400";
    for origin in ["http://evil.test", "http://ringfence.test", "http://ringfence.test:7401", "null", ""] {
        for (method, target) in
            [("PUT", target.as_str()), ("POST", "/v1/leases"), ("DELETE", &target), ("POST", "/v1/validate")]
        {
            let response = service.send(method, target, &[("Origin", origin)], body).await;
            response.problem("forbidden");
        }
        let two = [("Origin", own), ("Origin", origin)];
        service.send("PUT", &target, &two, body).await.problem("forbidden");
        assert_eq!(service.send("GET", "/v1/keys", &[("Origin", origin)], b"").await.status, 200);
    }
    assert_eq!(service.handle.view(|table| table.live()), 0);
    service
        .send("PUT", &target, &[("Origin", "HTTP://Ringfence.Test:7400")], body)
        .await
        .expect::<Grant>(201);
    service.send("PUT", &target, &[("Origin", own)], body).await.expect::<Grant>(200);
}

#[tokio::test]
async fn pages_from_a_rebound_name_change_nothing() {
    let service = Service::start().await;
    let target = format!("/v1/leases/{}", LeaseId::random());
    let answer = async |host: &str| {
        let body = r#"{"keys":["a"]}"#;
        let head = format!("PUT {target} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n");
        let mut connection = Connection::open(service.address).await;
        connection.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
        connection.receive(false).await
    };
    for host in ["evil.test:7400", "localhost.evil.test", "127.0.0.1.evil.test", "0x7f000001"] {
        answer(host).await.problem("misdirected");
    }
    assert_eq!(service.handle.view(|table| table.live()), 0);
    for host in ["127.0.0.1:7400", "localhost:7400", "LocalHost", "[::1]:7400", "10.1.2.3"] {
        assert!([200, 201].contains(&answer(host).await.status), "{host}");
    }
}

/// The response to a GET with these header lines.
async fn got(service: &Service, lines: &str) -> Response {
    let mut connection = Connection::open(service.address).await;
    connection.send(format!("GET /v1/keys HTTP/1.1\r\n{lines}\r\n").as_bytes()).await;
    connection.receive(false).await
}

/// With `--hosts`, and for browsers, a node looked for the names of its members in the table, which a thread that hangs may have.
#[tokio::test]
async fn whether_a_node_lives_is_told_under_any_name_without_a_look_for_those_of_members() {
    let service = Service::start_as(Some("https://ringfence.test")).await;
    let got = async |path: &str, host: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Language: en\r\n\r\n");
        let mut connection = Connection::open(service.address).await;
        connection.send(head.as_bytes()).await;
        connection.receive(false).await
    };
    let leader = async |path: &str, host: &str| {
        let response = got(path, host).await;
        (response.status, response.header("ringfence-leader").map(str::to_owned))
    };
    let known = Some("https://ringfence.test".to_owned());
    assert_eq!(leader("/livez", "127.0.0.1:7400").await, (200, known.clone()));
    assert_eq!(leader("/v1/keys", "ringfence.test").await, (200, known));
    for host in ["ringfence.test", "evil.test:7400"] {
        assert_eq!(leader("/livez", host).await, (200, None), "{host}");
        // It is refused before its name is looked at.
        assert_eq!(leader(&format!("/livez?{}", "a".repeat(17 << 10)), host).await, (400, None), "{host}");
    }
    service.hangs_for_ms.store(11_000, SeqCst);
    for (host, tells) in
        [("127.0.0.1:7400", "a thread has been blocked"), ("evil.test:7400", "this node hangs")]
    {
        let problem = got("/livez", host).await.problem("unavailable");
        assert!(problem.detail.starts_with(tells), "{host}: {}", problem.detail);
    }
}

#[tokio::test]
async fn browsers_must_use_a_name_of_the_cluster_and_programs_may_use_any() {
    let service = Service::start_as(Some("https://ringfence.test")).await;
    let of_browsers = [
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n",
        "Accept-Language: en-US,en;q=0.5\r\n",
        "Referer: http://evil.test:7400/\r\n",
        "Origin: http://evil.test:7400\r\n",
        "Sec-Fetch-Site: same-origin\r\n",
    ];
    for line in of_browsers {
        for host in ["evil.test:7400", "127.0.0.1.evil.test", "localhost.evil.test:7400", "", "a b"] {
            got(&service, &format!("Host: {host}\r\n{line}")).await.problem("misdirected");
        }
        got(&service, line).await.problem("invalid-request");
        for host in ["127.0.0.1:7400", "[::1]", "LOCALHOST:7400", "Ringfence.TEST", "ringfence.test:443"] {
            assert_eq!(got(&service, &format!("Host: {host}\r\n{line}")).await.status, 200, "{host}");
        }
    }
    for line in [
        "",
        "User-Agent: curl/8.5.0\r\n",
        "User-Agent: node\r\nAccept-Language: *\r\nSec-Fetch-Mode: cors\r\n",
    ] {
        for host in ["locks.example.com", "ringfence.prod.svc:7400"] {
            assert_eq!(got(&service, &format!("Host: {host}\r\n{line}")).await.status, 200, "{host} {line}");
        }
    }
    let problem = got(&service, "Host: localhost\r\nHost: localhost\r\n").await.problem("invalid-request");
    assert_eq!(problem.field.as_deref(), Some("Host"));
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let service = Service::start().await;
    for target in [
        "/dashboard",
        "/v1",
        "/v1/",
        "/v1/leases/",
        "/v2/keys",
        "/v1/keysx",
        "//v1/keys",
        "/v1/Keys",
        "/livez/",
    ] {
        for method in ["GET", "POST", "PUT"] {
            service.send(method, target, &[], b"").await.problem("not-found");
        }
    }
}

#[tokio::test]
async fn a_405_names_the_allowed_methods() {
    let service = Service::start().await;
    for (method, target, allow) in [
        ("PATCH", "/v1/leases/x", &["PUT", "GET", "HEAD", "DELETE"][..]),
        ("OPTIONS", "/v1/leases", &["POST"]),
        ("GET", "/v1/renew", &["POST"]),
        ("HEAD", "/v1/batch", &["POST"]),
        ("DELETE", "/v1/keys/a/b", &["GET", "HEAD"]),
        ("POST", "/readyz", &["GET", "HEAD"]),
    ] {
        let response = service.send(method, target, &[], b"").await;
        assert_eq!(response.status, 405, "{method} {target}");
        if method != "HEAD" {
            response.problem("method-not-allowed");
        }
        let mut allowed: Vec<_> = response.header("allow").unwrap().split(',').collect();
        let mut expected = allow.to_vec();
        allowed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(allowed, expected, "{method} {target}");
    }
}
