//! Access rules, with real processes: who may do what, and what happens when the rules change.

use std::fs;
use std::time::Duration;

use ringfence_access::Credential;
use ringfence_client::{Client, Consistency, Error, Lease, Tls};
use ringfence_harness::{Answered, Certificates, Cluster, Node, run, until};
use ringfence_wire::{LeaseId, ProblemKind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::support::PROGRAM;

const SOON: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(20);
/// Longer than a waiting request may take to be answered.
const LONG_MS: u32 = 60_000;

/// A node with TLS and access rules.
struct Guarded {
    cluster: Cluster,
    dir: TempDir,
    files: Certificates,
    tls: ringfence_tls::Client,
}

impl Guarded {
    async fn start(rules: &str, arguments: &[&str]) -> Self {
        Self::start_on(Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap(), rules, arguments).await
    }

    /// Starts the node of `cluster`, which may have data from before it had rules.
    async fn start_on(cluster: Cluster, rules: &str, arguments: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let address = cluster.node(1).http();
        let files = Certificates::new(dir.path(), &format!("IP:{}", address.ip())).unwrap();
        let access = dir.path().join("access.toml");
        fs::write(&access, rules).unwrap();
        cluster
            .node(1)
            .start_with(|command| {
                command.args([
                    format!("--tls-certificate={}", files.certificate().display()),
                    format!("--tls-key={}", files.key().display()),
                    format!("--access={}", access.display()),
                ]);
                command.args(arguments);
            })
            .unwrap();
        let tls = ringfence_tls::Client::with_authority(Some(files.authority().to_owned())).unwrap();
        let guarded = Self { cluster, dir, files, tls };
        let ready = async || (guarded.send("GET", "/readyz", None, None).await.0 == 200).then_some(());
        until(SOON, "the node is ready", ready).await.unwrap();
        guarded
    }

    fn node(&self) -> &Node {
        self.cluster.node(1)
    }

    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let address = self.node().http();
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(self.tls.current()).connect(ServerName::from(address.ip()), stream).await
    }

    /// Sends a request on a connection of its own, and reads the response: its status and its body.
    async fn send(
        &self,
        method: &str,
        target: &str,
        credential: Option<&str>,
        body: Option<&Value>,
    ) -> (u16, String) {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(request(method, target, credential, body).as_bytes()).await?;
            let mut response = Vec::new();
            // What is left of the response counts, and a watch never ends.
            let _ = tokio::time::timeout(SOON, async {
                while !is_whole(&response) && stream.read_buf(&mut response).await? > 0 {}
                std::io::Result::Ok(())
            })
            .await;
            std::io::Result::Ok(String::from_utf8_lossy(&response).into_owned())
        };
        let response = exchange.await.unwrap_or_default();
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        (status, body)
    }

    fn client(&self, credential: &Credential) -> Client {
        let credential = Some(ringfence_client::Credential::new(credential.reveal()).unwrap());
        let tls = Tls { authority: Some(self.files.authority().to_owned()), credential, ..Tls::default() };
        Client::connect_with([format!("https://{}", self.node().http())], &tls).unwrap()
    }

    /// Replaces the rules, and waits until they are in use.
    async fn replace_rules(&self, rules: &str) {
        let log = || self.node().log().matches("files that changed are in use").count();
        let before = log();
        fs::write(self.dir.path().join("access.toml"), rules).unwrap();
        let pid = self.node().pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        kill_process(pid.unwrap(), Signal::HUP).unwrap();
        until(SOON, "new rules", async || (log() > before).then_some(())).await.unwrap();
    }
}

fn request(method: &str, target: &str, credential: Option<&str>, body: Option<&Value>) -> String {
    let authorization = credential.map(|credential| format!("authorization: Bearer {credential}\r\n"));
    let body = body.map(Value::to_string).unwrap_or_default();
    format!(
        "{method} {target} HTTP/1.1\r\nhost: localhost\r\n{}content-length: {}\r\n\r\n{body}",
        authorization.unwrap_or_default(),
        body.len(),
    )
}

/// Whether a response has arrived as far as its length says. A stream of events has none.
fn is_whole(response: &[u8]) -> bool {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let has_none = head.contains(" 204 ") || head.contains("text/event-stream");
    has_none || length.is_some_and(|length: usize| body.len() >= length)
}

fn principal(name: &str, credential: &Credential, allow: &str) -> String {
    format!("[principals.{name}]\ncredentials = [\"{}\"]\n{allow}\n", credential.digest())
}

fn all_rights() -> &'static str {
    "allow = [{ keys = \"*\", may = [\"acquire\", \"read\", \"revoke\"] }]\ncluster = [\"metrics\", \"operate\"]"
}

fn new() -> Credential {
    Credential::generate().unwrap()
}

/// The target and the body of a request of `method` on `path`, about `keys`, the keys under `prefix`, or a lease.
fn sample(method: &str, path: &str, keys: &[String], prefix: &str, held: &Lease) -> (String, Option<Value>) {
    let claims: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
    let lease = held.lease_id();
    // Whatever is allowed must change nothing that others rest on.
    let invalid = Some(json!({ "invalid": true }));
    match (method, path) {
        ("PUT", "/v1/leases/{lease_id}") => {
            (format!("/v1/leases/{}", LeaseId::random()), Some(json!({ "keys": claims })))
        }
        ("POST", "/v1/leases") => (path.into(), Some(json!({ "keys": claims }))),
        ("GET" | "DELETE", "/v1/leases/{lease_id}") => (format!("/v1/leases/{lease}"), None),
        ("POST", "/v1/leases/{lease_id}/renew") => (format!("/v1/leases/{lease}/renew"), Some(json!({}))),
        ("POST", "/v1/renew") => (path.into(), Some(json!({ "lease_ids": [lease] }))),
        ("POST", "/v1/batch") => {
            let acquire = json!({ "acquire": { "lease_id": LeaseId::random(), "keys": claims } });
            (path.into(), Some(json!({ "operations": [acquire] })))
        }
        ("POST", "/v1/validate") => {
            let checks: Vec<_> = keys.iter().map(|key| json!({ "key": key, "token": 7 })).collect();
            (path.into(), Some(json!({ "checks": checks })))
        }
        ("POST", "/v1/revoke") => {
            (path.into(), Some(json!({ "key": held.keys()[0], "token": held.token() })))
        }
        ("GET", "/v1/keys") => (format!("/v1/keys?prefix={prefix}"), None),
        ("GET", "/v1/watch") => (format!("/v1/watch?prefix={prefix}"), None),
        // It is about one key, of which nothing overlaps.
        ("GET", "/v1/keys/{key}") => (format!("/v1/keys/{}", keys[keys.len() - 1]), None),
        ("DELETE", "/v1/cluster/members/{id}") => ("/v1/cluster/members/none".into(), None),
        ("POST", "/v1/cluster/members" | "/v1/cluster/transfer" | "/v1/cluster/upgrade") => {
            (path.into(), invalid)
        }
        (
            "GET",
            "/v1/access" | "/v1/cluster" | "/v1/cluster/backup" | "/livez" | "/readyz" | "/metrics"
            | "/openapi.json",
        ) => (path.into(), None),
        _ => panic!("{method} {path} has no sample"),
    }
}

/// Every route, with every right, on keys of its own, of others, and of both.
#[tokio::test]
async fn a_right_allows_what_the_document_says_and_nothing_else() {
    const RIGHTS: [&str; 7] = ["validate", "read", "acquire", "revoke", "metrics", "observe", "operate"];
    let (all, of_right) = (new(), RIGHTS.map(|right| (right, new())));
    let mut rules = principal("all", &all, all_rights());
    for (right, credential) in &of_right {
        let allow = match *right {
            "metrics" | "observe" | "operate" => format!("cluster = [\"{right}\"]"),
            _ => format!("allow = [{{ keys = \"own/\", may = [\"{right}\"] }}]"),
        };
        rules += &principal(right, credential, &allow);
    }
    let guarded = Guarded::start(&rules, &[]).await;
    let everything = guarded.client(&all);
    let document: Value =
        serde_json::from_str(&guarded.send("GET", "/openapi.json", None, None).await.1).unwrap();
    let places: [(&[&str], &str, bool); 3] =
        [(&["own/a"], "own/", true), (&["other/a"], "other/", false), (&["own/a", "other/a"], "o", false)];
    let mut number = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters")
        {
            let (method, needed) = (method.to_ascii_uppercase(), operation["x-right"].as_str().unwrap());
            let callers = of_right.iter().map(|(right, credential)| (*right, Some(credential.reveal())));
            for ((right, credential), (keys, prefix, is_own)) in
                callers.chain([("none", None)]).flat_map(|caller| places.map(|place| (caller, place)))
            {
                number += 1;
                let keys = |of: &str| keys.iter().map(|key| format!("{key}{number}{of}")).collect::<Vec<_>>();
                let lease = everything.lock_all(keys("-held")).ttl(TTL).acquire().await.unwrap();
                let (target, body) = sample(&method, path, &keys(""), prefix, &lease);
                let (status, text) = guarded.send(&method, &target, credential, body.as_ref()).await;
                let _ = lease.release().await;
                // Of a batch, the status of its operation.
                let answer: Value = serde_json::from_str(&text).unwrap_or_default();
                let status = answer["results"][0]["status"].as_u64().map_or(status.into(), |status| status);
                let has = right == needed
                    || matches!((right, needed), ("read", "validate") | ("operate", "observe"));
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
                    let (status, text) =
                        guarded.send(&method, &target, Some("rfc_guess"), body.as_ref()).await;
                    assert_eq!(status, 401, "{method} {target}: {text}");
                }
            }
        }
    }
    assert!(number > 400, "{number}");
}

#[tokio::test]
async fn leases_belong_to_the_principal_that_acquired_them_and_count_towards_its_limits() {
    let [ann, bob] = [new(), new()];
    let limited = format!("{}\nlimits = {{ leases = 2, waiting = 1 }}", all_rights());
    let rules = principal("ann", &ann, &limited) + &principal("bob", &bob, all_rights());
    let anonymous = "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\n";
    let guarded = Guarded::start(&(rules + anonymous), &[]).await;
    let id = LeaseId::random();
    let lease = format!("/v1/leases/{id}");
    let send = async |who: &Credential, method: &str, target: &str, body: Option<Value>| {
        let (status, text) = guarded.send(method, target, Some(who.reveal()), body.as_ref()).await;
        (status, serde_json::from_str::<Value>(&text).unwrap_or_default())
    };
    let acquire = |key: &str, wait_ms: u32| {
        Some(json!({ "keys": [{ "key": key }], "wait_ms": wait_ms, "ttl_ms": LONG_MS }))
    };
    let renew = format!("{lease}/renew");
    // The anonymous are another principal: they cannot use the id of her lease, before or after she does.
    assert_eq!(guarded.send("DELETE", &lease, None, None).await.0, 204);
    assert_eq!(send(&ann, "PUT", &lease, acquire("a", 0)).await.0, 201);
    assert_eq!(guarded.send("POST", &renew, None, Some(&json!({}))).await.0, 410);
    for (method, target, body) in
        [("GET", &lease, None), ("POST", &renew, Some(json!({}))), ("DELETE", &lease, None)]
    {
        let (status, body) = send(&bob, method, target, body).await;
        assert_eq!(status, if method == "DELETE" { 204 } else { 404 }, "{method}: {body}");
    }
    let operations =
        json!({ "operations": [{ "renew": { "lease_id": id } }, { "release": { "lease_id": id } }] });
    let (_, body) = send(&bob, "POST", "/v1/batch", Some(operations)).await;
    assert_eq!((&body["results"][0]["status"], &body["results"][1]["status"]), (&json!(410), &json!(204)));
    assert_eq!(send(&ann, "POST", &renew, Some(json!({}))).await.0, 200);
    let other = format!("/v1/leases/{}", LeaseId::random());
    assert_eq!(send(&ann, "PUT", &other, acquire("b", 0)).await.0, 201);
    assert_eq!(send(&bob, "PUT", &other, acquire("c", 0)).await.0, 201, "the same id is another lease");
    let (status, body) = send(&ann, "POST", "/v1/leases", acquire("d", 0)).await;
    assert!(status == 429 && body["detail"].as_str().unwrap().contains("2 leases"), "{status}: {body}");
    assert_eq!(send(&ann, "DELETE", &other, None).await.0, 204);
    assert_eq!(send(&bob, "GET", &other, None).await.0, 200);

    // It waits for the lease that it has itself.
    let mut waits = guarded.connect().await.unwrap();
    let body = acquire("a", LONG_MS);
    let waiting = format!("/v1/leases/{}", LeaseId::random());
    waits.write_all(request("PUT", &waiting, Some(ann.reveal()), body.as_ref()).as_bytes()).await.unwrap();
    let view = async || send(&bob, "GET", "/v1/keys/a", None).await.1;
    let is_queued = async || (view().await["waiters"][0]["by"] == "ann").then_some(());
    until(SOON, "it waits", is_queued).await.unwrap();
    assert_eq!(view().await["holders"][0]["by"], "ann");
    let (status, body) = send(&ann, "POST", "/v1/leases", acquire("c", 0)).await;
    assert!(status == 409 || status == 429, "{status}: {body}");
    // Its own release grants the one that waits, and the request that waits for it learns that.
    assert_eq!(send(&ann, "DELETE", &lease, None).await.0, 204);
    let mut response = Vec::new();
    while !is_whole(&response) {
        assert!(waits.read_buf(&mut response).await.unwrap() > 0);
    }
    assert!(response.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&response));
}

#[tokio::test]
async fn who_gets_another_name_waits_no_more_for_a_lease_of_the_old_one() {
    let (all, worker) = (new(), new());
    let rules = |name| principal("all", &all, all_rights()) + &principal(name, &worker, all_rights());
    let guarded = Guarded::start(&rules("worker"), &[]).await;
    let everything = guarded.client(&all);
    let _held = everything.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut waits = guarded.connect().await.unwrap();
    let body = json!({ "keys": [{ "key": "a" }], "wait_ms": LONG_MS });
    let target = format!("/v1/leases/{}", LeaseId::random());
    waits.write_all(request("PUT", &target, Some(worker.reveal()), Some(&body)).as_bytes()).await.unwrap();
    let waiters =
        async || everything.key("a", Consistency::Linearizable).await.map(|view| view.waiters.len());
    until(SOON, "it waits", async || (waiters().await.ok()? == 1).then_some(())).await.unwrap();
    guarded.replace_rules(&rules("renamed")).await;
    let mut response = Vec::new();
    while !is_whole(&response) {
        assert!(waits.read_buf(&mut response).await.unwrap() > 0);
    }
    assert!(response.starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&response));
    until(SOON, "its place is free", async || (waiters().await.ok()? == 0).then_some(())).await.unwrap();
}

/// A client that gets a name, because the rules name it from now on, would lose all its leases otherwise.
#[tokio::test]
async fn leases_from_before_there_were_rules_can_be_renewed_with_the_right_and_the_id() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let ids = [LeaseId::random(), LeaseId::random()];
    for (id, key) in ids.iter().zip(["own/a", "other/a"]) {
        let body = json!({ "keys": [{ "key": key }], "ttl_ms": 10 * LONG_MS });
        cluster.node(1).client().acquire(*id, &serde_json::from_value(body).unwrap()).await.done();
    }
    cluster.node(1).terminate().await.unwrap();
    let worker = new();
    let allow = "allow = [{ keys = \"own/\", may = [\"acquire\"] }]";
    let guarded = Guarded::start_on(cluster, &principal("worker", &worker, allow), &[]).await;
    let renew = async |id: LeaseId| {
        let target = format!("/v1/leases/{id}/renew");
        guarded.send("POST", &target, Some(worker.reveal()), Some(&json!({}))).await.0
    };
    assert_eq!((renew(ids[0]).await, renew(ids[1]).await, renew(LeaseId::random()).await), (200, 403, 404));
}

#[tokio::test]
async fn who_loses_a_right_keeps_nothing_that_rests_on_it() {
    let (all, worker) = (new(), new());
    let rules = |allow: &str| principal("all", &all, all_rights()) + &principal("worker", &worker, allow);
    let may = rules("allow = [{ keys = \"a/\", may = [\"acquire\", \"read\"] }]");
    let guarded = Guarded::start(&may, &[]).await;
    let (everything, client) = (guarded.client(&all), guarded.client(&worker));
    let held = client.lock("a/held").ttl(TTL).acquire().await.unwrap();
    let in_the_way = everything.lock("a/waiting").ttl(TTL).acquire().await.unwrap();
    let mut watch = guarded.connect().await.unwrap();
    watch
        .write_all(request("GET", "/v1/watch?prefix=a/", Some(worker.reveal()), None).as_bytes())
        .await
        .unwrap();
    let waiting = LeaseId::random();
    let body = json!({ "keys": [{ "key": "a/waiting" }], "wait_ms": LONG_MS });
    let mut acquire = guarded.connect().await.unwrap();
    let target = format!("/v1/leases/{waiting}");
    acquire.write_all(request("PUT", &target, Some(worker.reveal()), Some(&body)).as_bytes()).await.unwrap();
    let queued = async || {
        (everything.key("a/waiting", Consistency::Linearizable).await.ok()?.waiters.len() == 1).then_some(())
    };
    until(SOON, "it waits", queued).await.unwrap();

    // What is not valid changes nothing.
    fs::write(guarded.dir.path().join("access.toml"), may.replace("acquire", "aquire")).unwrap();
    let refused = async || guarded.node().log().contains("files that changed cannot be used").then_some(());
    until(SOON, "refused", refused).await.unwrap();
    assert!(client.renew(held.lease_id(), None).await.is_ok());
    let metrics = guarded.send("GET", "/metrics", Some(all.reveal()), None).await.1;
    assert!(metrics.contains("ringfence_files_refused{use=\"access\"} 1"), "{metrics}");

    guarded.replace_rules(&rules("allow = [{ keys = \"b/\", may = [\"acquire\", \"read\"] }]")).await;
    let denied = |result: Result<_, Error>| match result.err().unwrap() {
        Error::Rejected(problem) => assert_eq!(problem.kind, ProblemKind::Forbidden),
        other => panic!("{other:?}"),
    };
    denied(client.renew(held.lease_id(), None).await.map(drop));
    denied(client.lease(held.lease_id(), Consistency::Local).await.map(drop));
    denied(client.release(held.lease_id()).await);
    denied(client.lock("a/other").try_acquire().await.map(drop));
    assert!(client.lock("b/other").try_acquire().await.is_ok());
    // The watch ends, and the acquire that waited is answered and leaves the queue.
    let mut events = Vec::new();
    while !events.ends_with(b"\r\n0\r\n\r\n") {
        let read = tokio::time::timeout(SOON, watch.read_buf(&mut events)).await.unwrap().unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&events));
    }
    let mut response = Vec::new();
    while !is_whole(&response) {
        assert!(acquire.read_buf(&mut response).await.unwrap() > 0);
    }
    assert!(response.starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&response));
    let left = async || {
        everything.key("a/waiting", Consistency::Linearizable).await.ok()?.waiters.is_empty().then_some(())
    };
    until(SOON, "it left the queue", left).await.unwrap();
    in_the_way.release().await.unwrap();

    // A credential that is removed ends everything.
    guarded.replace_rules(&principal("all", &all, all_rights())).await;
    match client.access().await {
        Err(Error::Rejected(problem)) => assert_eq!(problem.kind, ProblemKind::Unauthenticated),
        other => panic!("{other:?}"),
    }
    guarded.node().tells("a request was denied").await.unwrap();
    let log = guarded.node().log();
    for secret in [worker.reveal(), all.reveal(), &held.lease_id().to_string(), &waiting.to_string()] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
    assert!(log.contains("principal=\"worker\""), "{log}");
}

#[tokio::test]
async fn operations_of_a_batch_are_denied_one_by_one() {
    let (all, worker) = (new(), new());
    let rules = principal("all", &all, all_rights())
        + &principal("worker", &worker, "allow = [{ keys = \"team1/\", may = [\"acquire\"] }]");
    let guarded = Guarded::start(&rules, &[]).await;
    let everything = guarded.client(&all);
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

#[tokio::test]
async fn limits_hold_for_one_principal_and_count_the_operations_of_a_batch() {
    let (greedy, other) = (new(), new());
    let with = |limits: &str| {
        principal("greedy", &greedy, &format!("{}\n{limits}", all_rights()))
            + &principal("other", &other, all_rights())
    };
    let guarded = Guarded::start(&with("limits = { requests-per-s = 1, watches = 1 }"), &[]).await;
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

    let mut first = guarded.connect().await.unwrap();
    let watch = request("GET", "/v1/watch", Some(greedy.reveal()), None);
    first.write_all(watch.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        assert!(first.read_buf(&mut head).await.unwrap() > 0);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
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
        let rules = principal("greedy", &greedy, &format!("{}\n{limits}", all_rights()));
        let guarded = Guarded::start(&rules, &[]).await;
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
    let rules =
        principal("greedy", &greedy, &format!("{}\nlimits = {{ requests-per-s = 10 }}", all_rights()));
    let guarded = Guarded::start(&rules, &[]).await;
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

#[tokio::test]
async fn a_principal_is_shown_by_a_certificate_or_a_credential_but_never_over_a_plain_connection() {
    let of_client = TempDir::new().unwrap();
    let own = Certificates::new(of_client.path(), "DNS:worker.example").unwrap();
    let other = new();
    let rules = format!(
        "[principals.worker]\ncertificates = [\"dns:worker.example\"]\ncluster = [\"observe\"]\n{}",
        principal("other", &other, "cluster = [\"metrics\"]")
    );
    let authority = format!("--tls-client-authority={}", own.authority().display());
    let guarded = Guarded::start(&rules, &[&authority, "--plain=accept"]).await;
    let url = format!("https://{}", guarded.node().http());
    let connect = |certificate: bool, credential: Option<&Credential>| {
        let tls = Tls {
            authority: Some(guarded.files.authority().to_owned()),
            certificate: certificate.then(|| own.certificate().to_owned()),
            key: certificate.then(|| own.key().to_owned()),
            credential: credential.map(|secret| ringfence_client::Credential::new(secret.reveal()).unwrap()),
        };
        Client::connect_with([&url], &tls).unwrap()
    };
    let name = async |client: Client| client.access().await.map(|access| access.principal);
    assert_eq!(name(connect(true, None)).await.unwrap().as_ref().map(|name| name.as_str()), Some("worker"));
    assert_eq!(
        name(connect(false, Some(&other))).await.unwrap().as_ref().map(|name| name.as_str()),
        Some("other")
    );
    assert_eq!(name(connect(false, None)).await.unwrap(), None);
    assert!(
        matches!(name(connect(true, Some(&other))).await, Err(Error::Rejected(problem)) if problem.kind == ProblemKind::Unauthenticated)
    );
    let mut plain = TcpStream::connect(guarded.node().http()).await.unwrap();
    plain.write_all(request("GET", "/metrics", Some(other.reveal()), None).as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !is_whole(&response) {
        assert!(plain.read_buf(&mut response).await.unwrap() > 0);
    }
    let response = String::from_utf8_lossy(&response);
    assert!(response.starts_with("HTTP/1.1 401") && response.contains("plain connection"), "{response}");
    let refused = Client::connect_with(
        [format!("http://{}", guarded.node().http())],
        &Tls {
            credential: Some(ringfence_client::Credential::new(other.reveal()).unwrap()),
            ..Tls::default()
        },
    );
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn the_command_line_makes_and_uses_a_credential_and_its_commands_do_not_inherit_it() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("worker.credential");
    let digest =
        run(PROGRAM, ["access", "credential", "--file", file.to_str().unwrap()], SOON).await.unwrap().output;
    let secret = fs::read_to_string(&file).unwrap().trim().to_owned();
    let rules = format!(
        "[principals.worker]\ncredentials = [\"{}\"]\nallow = [{{ keys = \"a/\", may = [\"acquire\"] }}]\n",
        digest.trim()
    );
    let guarded = Guarded::start(&rules, &[]).await;
    let rules = guarded.dir.path().join("access.toml");
    let checked = run(PROGRAM, ["access", "check", rules.to_str().unwrap()], SOON).await.unwrap().output;
    assert!(checked.ends_with("is valid\n"), "{checked}");
    let called = |arguments: &[&str]| {
        let mut command = std::process::Command::new(PROGRAM);
        command.args(arguments).env("RINGFENCE_CREDENTIAL", &secret);
        command.env("RINGFENCE_URLS", format!("https://{}", guarded.node().http()));
        let output = command.env("RINGFENCE_AUTHORITY", guarded.files.authority()).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert_eq!(called(&["access", "show"]).1, "principal  worker\nkeys       a/: acquire\n");
    let (succeeded, environment) = called(&["lock", "a/1", "--", "env"]);
    assert!(
        succeeded && environment.contains("RINGFENCE_TOKEN=") && !environment.contains(&secret),
        "{environment}"
    );
    let (succeeded, text) = called(&["lock", "b/1", "--", "true"]);
    assert!(!succeeded && text.contains("the right `acquire` on the key b/1"), "{text}");
}
