//! Log lines about requests, from real nodes: slow and failed requests, and operator actions.

use ringfence_harness::{Answered, Cluster, Consistency, Node, key, until};
use ringfence_wire::LeaseId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{PROGRAM, SOON};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test]
async fn a_slow_request_is_logged_with_its_request_id_and_trace() {
    let cluster = cluster(1, "1us").await;
    let node = cluster.node(1);
    let (lease, other) = (LeaseId::random(), LeaseId::random());
    let wish = json!({ "keys": ["a"] });
    let put = format!("/v1/leases/{lease}");
    assert_eq!(
        send(node, "PUT", &put, &[("x-request-id", "mine-1"), ("traceparent", TRACEPARENT)], &wish).await,
        201
    );
    let line = one(node, "ringfence::requests", "mine-1").await;
    assert_eq!((&line["level"], &line["message"]), (&json!("WARN"), &json!("a request took long")));
    assert_eq!((&line["method"], &line["route"]), (&json!("PUT"), &json!("/v1/leases/{lease_id}")));
    assert_eq!((&line["status"], &line["waited_ms"]), (&json!(201), &json!(0)));
    assert!(line["took_ms"].is_u64(), "{line}");
    assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(line["span_id"], "b7ad6b7169203331");
    assert!(line["from"].as_str().unwrap().starts_with("127."), "{line}");

    // It times out, so its duration is known.
    let wish = json!({ "keys": ["a"], "wait_ms": 300 });
    let waits = [("x-request-id", "mine-2"), ("traceparent", "00-1-2-3")];
    assert_eq!(send(node, "PUT", &format!("/v1/leases/{other}"), &waits, &wish).await, 409);
    let line = one(node, "ringfence::requests", "mine-2").await;
    assert_eq!(line["waited_ms"], 300);
    assert!(line["took_ms"].as_u64() >= Some(300), "{line}");
    assert_eq!((line.get("trace_id"), line.get("span_id")), (None, None));

    // An id is generated if none was sent, or an invalid one.
    assert_eq!(send(node, "GET", "/v1/keys/a", &[("x-request-id", "two words")], &Value::Null).await, 200);
    let read = async || {
        let mut lines = lines(node, "ringfence::requests");
        lines.pop().filter(|line| line["route"] == "/v1/keys/{key}")
    };
    let line = until(SOON, "it is logged", read).await.unwrap();
    let made = line["request_id"].as_str().unwrap();
    assert!(made.len() == 16 && made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    let log = node.log();
    assert!(!log.contains(&lease.to_string()) && !log.contains(&other.to_string()), "{log}");
}

#[tokio::test]
async fn the_wait_that_a_request_asked_for_does_not_make_it_slow() {
    let cluster = cluster(1, "5s").await;
    let node = cluster.node(1);
    let put =
        async |wish: Value| send(node, "PUT", &format!("/v1/leases/{}", LeaseId::random()), &[], &wish).await;
    assert_eq!(put(json!({ "keys": ["a"] })).await, 201);
    assert_eq!(put(json!({ "keys": ["a"], "wait_ms": 6_000 })).await, 409);
    node.terminate().await.unwrap();
    assert_eq!(lines(node, "ringfence::requests"), Vec::<Value>::new());
}

#[tokio::test]
async fn a_failed_request_is_logged_but_not_a_failed_probe() {
    let cluster = cluster(3, "1h").await;
    let node = alone(&cluster).await;
    let put = format!("/v1/leases/{}", LeaseId::random());
    let status = send(node, "PUT", &put, &[("x-request-id", "in-vain")], &json!({ "keys": ["a"] })).await;
    assert!([503, 504].contains(&status), "{status}");
    let line = one(node, "ringfence::requests", "in-vain").await;
    assert_eq!((&line["message"], &line["status"]), (&json!("a request failed"), &json!(status)));
    assert_eq!(send(node, "GET", "/readyz", &[("x-request-id", "probe")], &Value::Null).await, 503);
    node.terminate().await.unwrap();
    assert_eq!(lines(node, "ringfence::requests").len(), 1);
}

#[tokio::test]
async fn an_abandoned_request_is_logged_and_counted() {
    let cluster = cluster(3, "1us").await;
    let node = alone(&cluster).await;
    let (host, lease) = (node.http(), LeaseId::random());
    let mut stream = TcpStream::connect(host).await.unwrap();
    let head =
        format!("POST /v1/leases/{lease}/renew HTTP/1.1\r\nhost: {host}\r\nx-request-id: given-up\r\n");
    let expects = "expect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(format!("{head}{expects}").as_bytes()).await.unwrap();
    // A request that is abandoned before the node reads it leaves no trace.
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 100");
    stream.write_all(b"{}").await.unwrap();
    drop(stream);
    let told = async || {
        let lines = lines(node, "ringfence::requests");
        lines.into_iter().find(|line| line["request_id"] == "given-up")
    };
    let line = until(SOON, "it is logged", told).await.unwrap();
    assert_eq!(
        (&line["message"], &line["method"], line.get("status")),
        (&json!("a request was abandoned"), &json!("POST"), None)
    );
    let counted = r#"ringfence_http_requests_total{method="POST",route="/v1/leases/{lease_id}/renew",status="closed"} 1"#;
    let is_counted = async || {
        let metrics = node.client().metrics().await.done();
        metrics.lines().any(|line| line == counted).then_some(())
    };
    until(SOON, "it is counted", is_counted).await.unwrap();
}

#[tokio::test]
async fn every_operator_action_is_logged_with_its_origin_and_outcome() {
    let cluster = cluster(3, "1h").await;
    let node = cluster.node(2);
    let lease = LeaseId::random();
    let wish = json!({ "keys": ["a/ü"], "ttl_ms": 600_000 });
    assert_eq!(send(node, "PUT", &format!("/v1/leases/{lease}"), &[], &wish).await, 201);
    let view = node.client().patient().key(&key("a/ü"), Consistency::Linearizable).await.done();
    let token = view.holders[0].token.0;
    let successor = cluster.others(cluster.leader().await.unwrap().id()).next().unwrap().id();

    let acts = json!([
        ["POST", "/v1/revoke", { "key": "a/ü", "token": token }, 204,
         { "act": "revoke", "key": "a/ü", "token": token, "outcome": "done" }],
        ["POST", "/v1/revoke", { "key": "a/ü", "token": token }, 409,
         { "act": "revoke", "key": "a/ü", "token": token, "outcome": "not-live" }],
        ["POST", "/v1/cluster/transfer", { "to": successor }, 204,
         { "act": "transfer", "member": successor, "outcome": "done" }],
        ["POST", "/v1/cluster/transfer", { "to": 77 }, 409,
         { "act": "transfer", "member": 77, "outcome": "members-refused" }],
        ["POST", "/v1/cluster/upgrade", {}, 200, { "act": "upgrade", "outcome": "done" }],
        ["POST", "/v1/cluster/upgrade", { "to": 200, "check": true }, 409,
         { "act": "check-upgrade", "rules": 200, "outcome": "members-refused" }],
        ["POST", "/v1/cluster/members", { "id": 1, "peer": "127.0.0.1:1" }, 409,
         { "act": "add-member", "member": 1, "peer": "127.0.0.1:1", "outcome": "members-refused" }],
        ["DELETE", "/v1/cluster/members/3", null, 204,
         { "act": "remove-member", "member": 3, "outcome": "done" }],
    ]);
    for (number, act) in acts.as_array().unwrap().iter().enumerate() {
        let [method, path, body, expected, told] = &act.as_array().unwrap()[..] else { panic!("{act}") };
        let [method, path] = [method, path].map(|text| text.as_str().unwrap());
        let id = format!("act-{number}");
        let headers = [("x-request-id", id.as_str()), ("traceparent", TRACEPARENT)];
        // A leader first transfers the leadership: the repeat removes it.
        let done = async || (send(node, method, path, &headers, body).await == *expected).then_some(());
        until(SOON, format!("{method} {path} is answered with {expected}"), done).await.unwrap();
        let is_it = |line: &Value| line["request_id"] == id.as_str() && line["outcome"] == told["outcome"];
        let logged = async || lines(node, "ringfence::audit").into_iter().rfind(is_it);
        let line = until(SOON, format!("{method} {path} is logged"), logged).await.unwrap();
        for (field, value) in told.as_object().unwrap() {
            assert_eq!(&line[field], value, "{field} of {line}");
        }
        assert_eq!((&line["level"], &line["trace_id"]), (&json!("INFO"), &json!(&TRACEPARENT[3..35])));
        assert_eq!(line["detail"].is_string(), line["outcome"] != "done", "{line}");
        assert!(line["from"].as_str().unwrap().starts_with("127."), "{line}");
    }
    // An invalid request is not an action.
    let before = lines(node, "ringfence::audit").len();
    assert_eq!(send(node, "POST", "/v1/revoke", &[], &json!({ "key": "a" })).await, 400);
    node.terminate().await.unwrap();
    assert_eq!(lines(node, "ringfence::audit").len(), before);
    assert!(!node.log().contains(&lease.to_string()));
}

#[tokio::test]
async fn an_action_is_logged_even_if_its_connection_closes_before_the_answer() {
    let cluster = cluster(3, "1h").await;
    let node = alone(&cluster).await;
    let body = json!({ "key": "a", "token": 1 });
    let told = async || {
        let stream = request(node, "POST", "/v1/revoke", &[("x-request-id", "gone")], &body).await;
        // It cannot be done now. Once a later request is answered, the node has read it.
        assert_eq!(send(node, "GET", "/livez", &[], &Value::Null).await, 200);
        drop(stream);
        lines(node, "ringfence::audit").pop()
    };
    let line = until(SOON, "the action is logged", told).await.unwrap();
    assert_eq!(line["request_id"], "gone");
    assert_eq!((&line["act"], &line["outcome"]), (&json!("revoke"), &json!("indeterminate")));
}

#[tokio::test]
async fn each_grant_and_each_end_is_logged_once_at_debug() {
    let builder = Cluster::builder(PROGRAM).argument("--log-format=json");
    let cluster = builder.argument("--log=info,openraft=error,ringfence::audit=debug").start().await.unwrap();
    let node = cluster.leader().await.unwrap();
    let lease = LeaseId::random();
    let put = format!("/v1/leases/{lease}");
    let wish = json!({ "keys": ["a\"b", "c"], "holder": "me" });
    assert_eq!(send(node, "PUT", &put, &[], &wish).await, 201);
    assert_eq!(send(node, "PUT", &put, &[], &wish).await, 200);
    let token =
        node.client().patient().key(&key("c"), Consistency::Linearizable).await.done().holders[0].token;
    assert_eq!(send(node, "DELETE", &put, &[], &Value::Null).await, 204);
    node.tells(r#""act":"release""#).await.unwrap();
    let told: Vec<Value> = cluster.nodes().iter().flat_map(|node| lines(node, "ringfence::audit")).collect();
    let acts: Vec<_> = told.iter().map(|line| json!([line["act"], line["token"], line["holder"]])).collect();
    assert_eq!(acts, [json!(["grant", token, "me"]), json!(["release", token, "me"])]);
    assert_eq!(told[0]["keys"], r#"["a\"b", "c"]"#);
    assert!(cluster.nodes().iter().all(|node| !node.log().contains(&lease.to_string())));
}

async fn cluster(nodes: u16, slow_request: &str) -> Cluster {
    let builder = Cluster::builder(PROGRAM).nodes(nodes);
    let builder = builder.argument("--log-format=json").argument(format!("--slow-request={slow_request}"));
    builder.start().await.unwrap()
}

/// The leader, with all other nodes stopped.
async fn alone(cluster: &Cluster) -> &Node {
    let leader = cluster.leader().await.unwrap();
    cluster.others(leader.id()).for_each(|node| node.stop().unwrap());
    leader
}

/// Sends a request and returns the status of the answer.
async fn send(node: &Node, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> u16 {
    let mut answer = String::new();
    request(node, method, path, headers, body).await.read_to_string(&mut answer).await.unwrap();
    answer.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap()
}

/// Sends a request on a new connection, which closes after the answer.
async fn request(node: &Node, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> TcpStream {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (host, length) = (node.http(), body.len());
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n"
    );
    let mut stream = TcpStream::connect(host).await.unwrap();
    stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes()).await.unwrap();
    stream
}

/// The log lines of a target. A line is written soon after its cause, and before the node has ended.
fn lines(node: &Node, target: &str) -> Vec<Value> {
    let log = node.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == target).collect()
}

/// Waits for the only line of a target with this request id.
async fn one(node: &Node, target: &str, request_id: &str) -> Value {
    let logged = async || {
        let mut lines = lines(node, target);
        lines.retain(|line| line["request_id"] == request_id);
        assert!(lines.len() <= 1, "{request_id}: {lines:?}");
        lines.pop()
    };
    until(SOON, format!("{request_id} is logged"), logged).await.unwrap()
}
