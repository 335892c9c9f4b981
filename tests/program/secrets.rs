//! Lease ids and credentials are secrets: no log, metric, error, command line or environment of a child has one.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use crate::support::peer::Identity;
use crate::support::{ALL, PROGRAM, SOON, Secured, principal};
use ringfence_access::Credential;
use ringfence_harness::{Cluster, Node, until};
use ringfence_wire::LeaseId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for piece in bytes.chunks(3) {
        let word = piece.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - piece.len()));
        for place in 0..=piece.len() {
            text.push(char::from(BASE64[(word >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}

/// Every form of the secrets that were used, in lower case.
#[derive(Default)]
struct Secrets(BTreeSet<String>);

impl Secrets {
    fn lease(&mut self) -> LeaseId {
        let lease = LeaseId::random();
        let digits = lease.to_string().replace('-', "");
        let number = u128::from_str_radix(&digits, 16).unwrap();
        self.0.extend([lease.to_string(), digits, number.to_string()]);
        self.add_base64(&number.to_be_bytes());
        lease
    }

    fn credential(&mut self, credential: &Credential) {
        let secret = credential.reveal();
        self.0.insert(secret.strip_prefix("rfc_").unwrap().to_owned());
        self.0.insert(secret.bytes().map(|byte| format!("{byte:02x}")).collect());
        self.add_base64(secret.as_bytes());
    }

    /// Without the last character, which depends on what follows; in both alphabets.
    fn add_base64(&mut self, bytes: &[u8]) {
        let mut text = base64(bytes).to_ascii_lowercase();
        text.pop();
        self.0.extend([text.replace('+', "-").replace('/', "_"), text]);
    }

    /// The secrets in `text`, and where.
    fn find(&self, what: &str, text: &str) -> Vec<String> {
        let text = text.to_ascii_lowercase();
        let around = |at: usize| text.get(at.saturating_sub(200)..(at + 150).min(text.len()));
        let at = self.0.iter().filter_map(|secret| text.find(secret));
        at.map(|at| format!("{what}: {:?}", around(at))).collect()
    }
}

/// A response: its owner may find its lease's id in the field of this name, and nowhere else.
fn without_lease_ids(body: &str) -> String {
    fn remove(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("lease_id");
                fields.values_mut().for_each(remove);
            }
            Value::Array(items) => items.iter_mut().for_each(remove),
            _ => {}
        }
    }
    let Ok(mut value) = serde_json::from_str(body) else { return body.to_owned() };
    remove(&mut value);
    value.to_string()
}

/// The response to a request with these headers.
async fn ask(secured: &Secured, node: &Node, request: &str, headers: &str, body: &str) -> String {
    let exchange = async {
        let stream = secured.reach(node.http()).await?;
        let mut stream = secured.shake_hands(stream, node.http().ip()).await?;
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
        stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).await?;
        let mut response = Vec::new();
        while stream.read_buf(&mut response).await? > 0
            && !response.windows(17).any(|piece| piece == b"text/event-stream")
        {}
        std::io::Result::Ok(String::from_utf8_lossy(&response).into_owned())
    };
    timeout(SOON, exchange).await.expect("it is answered").unwrap_or_default()
}

/// Requests of all kinds about a lease that is there, one that is not, and ids that are none.
fn requests(secrets: &mut Secrets, round: &str) -> Vec<(String, String)> {
    let [held, gone, other, posted, waiting] = [0; 5].map(|_| secrets.lease());
    let key = format!("a/{round}");
    let text = held.to_string();
    let (digits, braces, cut) = (text.replace('-', ""), format!("{{{text}}}"), &text[..35]);
    let wish = |more: Value| {
        let mut wish = json!({ "keys": [key], "holder": "me", "ttl_ms": 3_600_000 });
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        wish
    };
    let of = |lease: LeaseId| format!("/v1/leases/{lease}");
    let batch = |operations: Value| json!({ "operations": operations });
    let requests = [
        ("PUT", of(held), wish(json!({}))),
        ("PUT", of(held), wish(json!({}))),
        ("PUT", of(held), wish(json!({ "keys": ["a/other"] }))),
        ("PUT", of(other), wish(json!({}))),
        ("PUT", of(waiting), wish(json!({ "wait_ms": 50 }))),
        ("GET", of(held), json!(null)),
        ("GET", of(gone), json!(null)),
        ("POST", format!("{}/renew", of(held)), json!({ "ttl_ms": 3_000_000 })),
        ("POST", format!("{}/renew", of(gone)), json!({})),
        ("POST", format!("{}/renew", of(held)), json!({ "ttl_ms": text })),
        ("POST", format!("{}/renew", of(held)), json!({ "lease_id": held })),
        ("POST", format!("{}/renew", of(held)), json!({ &text: 1 })),
        ("POST", "/v1/renew".into(), json!({ "lease_ids": [held, gone, held] })),
        ("POST", "/v1/renew".into(), json!({ "lease_ids": [cut, digits] })),
        ("POST", "/v1/renew".into(), json!({ "lease_ids": text })),
        ("POST", "/v1/renew".into(), json!(text)),
        ("POST", "/v1/leases".into(), wish(json!({ "lease_id": posted }))),
        ("POST", "/v1/leases".into(), wish(json!({ "keys": [{ "key": key, "mode": text }] }))),
        ("POST", "/v1/batch".into(), batch(json!([{ "renew": { "lease_id": held } }, { "renew": text }]))),
        (
            "POST",
            "/v1/batch".into(),
            batch(json!([{ "renew": { "lease_id": gone } }, { "release": { "lease_id": gone } }])),
        ),
        ("POST", "/v1/batch".into(), batch(json!([{ &text: {} }]))),
        ("POST", "/v1/batch".into(), batch(json!([{ "release": { "lease_id": [text] } }]))),
        ("POST", "/v1/batch".into(), batch(json!([{ "release": { "lease_id": format!("{text}x") } }]))),
        ("POST", "/v1/validate".into(), json!({ "key": key, "token": text })),
        ("POST", "/v1/validate".into(), json!({ "key": key, "token": 7 })),
        ("POST", "/v1/revoke".into(), json!({ "key": key, "token": 7 })),
        ("POST", "/v1/revoke".into(), json!({ "lease_id": held })),
        ("GET", "/v1/keys?prefix=a/".into(), json!(null)),
        ("GET", format!("/v1/keys?lease_id={held}"), json!(null)),
        ("GET", format!("/v1/keys?consistency={held}"), json!(null)),
        ("GET", format!("/v1/keys?after={held}"), json!(null)),
        ("GET", format!("/v1/watch?after={held}"), json!(null)),
        ("GET", "/v1/watch?prefix=a/&after=1".into(), json!(null)),
        ("GET", format!("/v1/keys/{key}"), json!(null)),
        ("GET", format!("/v1/keys/{key}?{held}"), json!(null)),
        ("GET", format!("/v1/lease/{held}"), json!(null)),
        ("GET", format!("/{held}"), json!(null)),
        ("PATCH", of(held), json!(null)),
        ("PUT", format!("/v1/leases/{braces}"), wish(json!({}))),
        ("GET", format!("/v1/leases/{cut}"), json!(null)),
        ("GET", format!("/v1/leases/{}", text.to_uppercase()), json!(null)),
        ("GET", format!("/v1/leases/{held}%ff"), json!(null)),
        ("GET", format!("/v1/leases/{held}/{held}"), json!(null)),
        ("DELETE", format!("/v1/cluster/members/{held}"), json!(null)),
        ("DELETE", format!("/v1/cluster/members/1?force={held}"), json!(null)),
        ("POST", "/v1/cluster/members".into(), json!({ "id": held, "peer": "x" })),
        ("POST", "/v1/cluster/transfer".into(), json!({ "to": held })),
        ("POST", "/v1/cluster/upgrade".into(), json!({ "to": held })),
        ("GET", "/v1/cluster".into(), json!(null)),
        ("GET", "/v1/cluster/backup".into(), json!(null)),
        ("GET", "/v1/access".into(), json!(null)),
        ("DELETE", of(held), json!(null)),
        ("DELETE", of(held), json!(null)),
        ("DELETE", of(gone), json!(null)),
    ];
    let body = |body: Value| if body.is_null() { String::new() } else { body.to_string() };
    let mut all: Vec<_> = requests
        .into_iter()
        .map(|(method, target, content)| (format!("{method} {target}"), body(content)))
        .collect();
    for broken in [
        format!("{{\"lease_ids\": [\"{held}\""),
        format!("{{\"lease_ids\": [{held}]}}"),
        format!("{held}"),
        format!("{{\"{held}"),
    ] {
        all.push(("POST /v1/renew".to_owned(), broken));
    }
    all
}

#[tokio::test]
#[ignore = "slow"]
async fn no_log_metric_error_command_line_or_child_has_a_secret() {
    let (all, all_rules) = principal("all", ALL);
    let (some, some_rules) = principal("some", "allow = [{ keys = \"b/\", may = [\"acquire\"] }]");
    let unknown = Credential::generate().unwrap();
    let mut secrets = Secrets::default();
    for credential in [&all, &some, &unknown] {
        secrets.credential(credential);
    }
    let builder = Cluster::builder(PROGRAM).argument("--slow-request=1us").argument("--log=debug");
    let builder = builder.argument("--snapshot-after-bytes=100000");
    let secured = Secured::lay_out(builder, &(all_rules + &some_rules)).await;
    secured.start(&[]);
    secured.ready().await;
    let nodes = secured.cluster.nodes();

    // Requests at every node, with every credential.
    let bearer = |credential: &Credential| format!("authorization: Bearer {}\r\n", credential.reveal());
    let (mut responses, mut found) = (Vec::new(), Vec::new());
    for node in nodes {
        for (number, headers) in
            [bearer(&all), bearer(&some), bearer(&unknown), String::new()].iter().enumerate()
        {
            for (request, body) in requests(&mut secrets, &format!("{}/{number}", node.id())) {
                let response = ask(&secured, node, &request, headers, &body).await;
                responses.push((request, response));
            }
        }
        let lease = secrets.lease();
        for headers in [
            bearer(&all) + &bearer(&some),
            format!("authorization: Basic {}\r\n", all.reveal()),
            format!("authorization: {}\r\n", all.reveal()),
            format!("authorization: Bearer  {}\r\n", all.reveal()),
            format!("{}origin: https://{}\r\n", bearer(&all), unknown.reveal()),
            format!("{}{}: 1\r\n", bearer(&all), some.reveal()),
        ] {
            let request = format!("GET /v1/leases/{lease}?credential={}", some.reveal());
            let response = ask(&secured, node, &request, &headers, all.reveal()).await;
            responses.push((request, response));
        }
        // A credential that is sent in the clear.
        let mut plain = tokio::net::TcpStream::connect(node.http()).await.unwrap();
        let request = format!("GET /v1/leases/{lease} HTTP/1.1\r\nhost: a\r\n{}\r\n", bearer(&all));
        plain.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        plain.read_to_string(&mut response).await.unwrap();
        responses.push((request, response));
    }
    // Requests that no leader answers.
    let leads = async || secured.cluster.nodes().iter().find(|node| node.log().contains("this node leads"));
    let leader = until(SOON, "a node has logged that it leads", leads).await.unwrap();
    let follower = secured.cluster.others(leader.id()).next().unwrap();
    leader.stop().unwrap();
    for (request, body) in requests(&mut secrets, "stopped").into_iter().take(3) {
        responses.push((request.clone(), ask(&secured, follower, &request, &bearer(&all), &body).await));
    }
    leader.resume().unwrap();
    secured.ready().await;
    assert!(responses.iter().filter(|(_, response)| response.starts_with("HTTP/1.1 4")).count() > 100);
    assert!(responses.iter().filter(|(_, response)| response.starts_with("HTTP/1.1 2")).count() > 30);
    for (request, response) in &responses {
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
        found.extend(secrets.find(&format!("the head of the response to {request}"), head));
        found.extend(secrets.find(&format!("the response to {request}"), &without_lease_ids(body)));
    }

    // A command that is run while a lease is held, and some that are not.
    let urls = nodes.iter().map(|node| format!("https://{}", node.http())).collect::<Vec<_>>().join(",");
    let call = async |credential: &Credential, words: &[&str], input: &str| {
        let mut command = Command::new(PROGRAM);
        // The environment of a test has ids of its own.
        command.args(words).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("RINGFENCE_CREDENTIAL", credential.reveal()).env("RINGFENCE_URLS", &urls);
        command.env("RINGFENCE_AUTHORITY", secured.path("authority.pem")).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = timeout(SOON, child.wait_with_output()).await.unwrap().unwrap();
        let texts = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.success(), texts.concat())
    };
    let script = "env; cat /proc/$$/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '";
    let mut outputs = Vec::new();
    for (credential, words, succeeds) in [
        (&all, &["lock", "job", "--", "sh", "-c", script][..], true),
        (&some, &["lock", "job", "--", "true"], false),
        (&unknown, &["lock", "job", "--", "true"], false),
        (&all, &["lock", "job", "--ttl", "5s", "--", "/nowhere"], false),
    ] {
        let (succeeded, output) = call(credential, words, "").await;
        assert_eq!(succeeded, succeeds, "{words:?}: {output}");
        outputs.push(output);
    }
    assert!(outputs[0].contains("RINGFENCE_TOKEN=") && outputs[0].contains("serve"), "{}", outputs[0]);

    // Those who use leases one command at a time pass the id on standard input.
    let (_, acquired) = call(&all, &["acquire", "by-hand", "--output=json"], "").await;
    let lease = serde_json::from_str::<Value>(&acquired).unwrap()["lease_id"].as_str().unwrap().to_owned();
    for words in [["renew", "-", "--output=json"], ["release", "-", "--output=json"]] {
        let (succeeded, output) = call(&all, &words, &lease).await;
        assert!(succeeded, "{output}");
        outputs.push(without_lease_ids(&output));
    }

    // Whatever looks like an id, and is of no cluster or node, is one of a lease: those of `lock`, too.
    let mut texts: Vec<(String, String)> =
        outputs.into_iter().map(|output| ("lock".to_owned(), output)).collect();
    for node in nodes {
        let mut connection = secured.connection(node, Some(all.reveal())).await.unwrap();
        let metrics = connection.expect(200, "GET", "/metrics", "").await.unwrap();
        texts.push((format!("metrics of node {}", node.id()), String::from_utf8_lossy(metrics).into_owned()));
        let line = fs::read(format!("/proc/{}/cmdline", node.pid().unwrap())).unwrap();
        texts.push((
            format!("the command line of node {}", node.id()),
            String::from_utf8_lossy(&line).into_owned(),
        ));
    }
    let mut logs = String::new();
    for node in nodes {
        // What it logs at its end counts, too.
        node.terminate().await.unwrap();
        logs += &node.log();
    }
    assert!(logs.contains("a lease changed") && logs.contains("a request was denied"));
    texts.push(("the logs".to_owned(), logs));
    let public: Vec<u128> =
        nodes.iter().map(Identity::of).flat_map(|it| [it.cluster, it.incarnation]).collect();
    for (what, text) in &texts {
        found.extend(secrets.find(what, text));
        let words = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
        for word in words.filter(|word| word.len() == 36 && word.matches('-').count() == 4) {
            let number = u128::from_str_radix(&word.replace('-', ""), 16);
            if !number.is_ok_and(|number| public.contains(&number)) {
                found.push(format!("{what} has {word}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
