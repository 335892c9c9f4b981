use std::time::Duration;

use ringfence_wire::{CutOff, CutOffReason, EndReason, Grant, LeaseId, Revision, Token, WatchEvent};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Connection, Response, request};
use crate::document;
use crate::service::{PATIENCE, Service};

/// A watch, read as a browser does.
pub(crate) struct Watch {
    connection: Connection,
    text: String,
    /// The latest `id`.
    pub(crate) id: String,
}

/// The event that a block of lines makes; `None` where it has no data.
type Dispatched = Option<(String, Value)>;

impl Watch {
    pub(crate) async fn open(service: &Service, target: &str, headers: &[(&str, &str)]) -> Self {
        let (connection, response) = ask(service, target, headers).await;
        assert_eq!(response.status, 200, "{response:?}");
        document::check("GET", target, &response);
        Self { connection, text: String::new(), id: String::new() }
    }

    /// The next block; `None` at the end of the stream.
    async fn block(&mut self) -> Option<Dispatched> {
        let end = loop {
            if let Some(end) = self.text.find("\n\n") {
                break end;
            }
            let piece = timeout(PATIENCE, self.connection.receive_piece()).await.expect("something comes")?;
            self.text += std::str::from_utf8(&piece).expect("a piece ends where an event does");
        };
        let block: String = self.text.drain(..end + 2).collect();
        let (mut event, mut data) = (None, None);
        for line in block.lines().filter(|line| !line.is_empty()) {
            match line.split_once(": ").expect(line) {
                ("id", id) => self.id = id.to_owned(),
                ("event", name) => event = Some(name.to_owned()),
                ("data", json) => data = Some(serde_json::from_str(json).expect(json)),
                ("retry", ms) => assert!(ms.parse::<u32>().is_ok(), "{ms}"),
                _ => panic!("{line}"),
            }
        }
        Some(data.map(|data| (event.unwrap(), data)))
    }

    /// The next event, its name and its data; `None` at the end of the stream. What tells only where to go on from is no
    /// sign that one will come.
    pub(crate) async fn event(&mut self) -> Option<(String, Value)> {
        let event = async {
            loop {
                if let Some(event) = self.block().await? {
                    return Some(event);
                }
            }
        };
        timeout(PATIENCE, event).await.expect("an event comes, or the end")
    }

    /// The next event of a lease, as the document describes it.
    pub(crate) async fn change(&mut self) -> (String, WatchEvent) {
        let (name, data) = self.event().await.expect("the stream goes on");
        document::check_schema("WatchEvent", &data);
        assert_eq!(self.id, data["revision"].to_string());
        (name, serde_json::from_value(data).unwrap())
    }

    /// The next events of leases, up to and with number `last`.
    async fn changes_up_to(&mut self, last: Revision) -> Vec<(String, WatchEvent)> {
        let mut changes = Vec::new();
        while changes.last().is_none_or(|(_, event): &(_, WatchEvent)| event.revision < last) {
            changes.push(self.change().await);
        }
        changes
    }
}

async fn ask(service: &Service, target: &str, headers: &[(&str, &str)]) -> (Connection, Response) {
    let mut connection = Connection::open(service.address).await;
    connection.send(&request("GET", target, headers, b"")).await;
    let response = connection.receive_head().await;
    (connection, response)
}

fn revision(service: &Service) -> Revision {
    service.handle.view(|table| table.revision())
}

fn numbers(changes: &[(String, WatchEvent)]) -> Vec<u64> {
    changes.iter().map(|(_, event)| event.revision.0).collect()
}

#[tokio::test]
async fn every_change_of_a_lease_is_an_event() {
    let service = Service::start().await;
    let begun = revision(&service);
    let mut watch = Watch::open(&service, "/v1/watch", &[]).await;
    assert_eq!(watch.block().await, Some(None), "it begins with no event");
    assert_eq!(watch.id, begun.to_string(), "but with where it begins");

    let holder = json!({ "keys": [{ "key": "a", "mode": "shared", "limit": 3 }, "b"], "holder": "me" });
    let held = service.put(LeaseId::random(), holder).await.expect::<Grant>(201);
    let patient = LeaseId::random();
    let granted = service.put_later(patient, json!({ "keys": ["a"], "wait_ms": 60_000 })).await;
    service.until_waiters(1).await;
    service.put(LeaseId::random(), json!({ "keys": ["a"], "wait_ms": 50 })).await.problem("wait-timeout");
    let leaver = service.queue("a").await.lease_id;
    service.delete(leaver).await;
    service.delete(held.lease_id).await;
    let token = granted.await.unwrap().expect::<Grant>(201).token;
    service.post("/v1/revoke", json!({ "key": "a", "token": token })).await;
    service.put(LeaseId::random(), json!({ "keys": ["c"], "ttl_ms": 100 })).await;

    let expected = [
        ("granted", None, true),
        ("queued", None, false),
        ("queued", None, false),
        ("left", None, false),
        ("queued", None, false),
        ("left", Some(EndReason::Released), false),
        ("released", Some(EndReason::Released), true),
        ("granted", None, true),
        ("revoked", Some(EndReason::Revoked), true),
        ("granted", None, true),
        ("expired", Some(EndReason::Expired), true),
    ];
    let mut received = Vec::new();
    for (number, (name, reason, has_token)) in (begun.0 + 1..).zip(expected) {
        let (event, data) = watch.change().await;
        assert_eq!(
            (event.as_str(), data.reason, data.token.is_some()),
            (name, reason, has_token),
            "{data:?}"
        );
        assert_eq!(data.revision.0, number);
        received.push(data);
    }
    assert_eq!((received[0].token, received[0].holder.clone()), (Some(held.token), held.holder));
    let keys: Vec<_> =
        received[0].keys.iter().map(|it| (it.key.as_str(), it.limit.map(u32::from), it.fence)).collect();
    assert_eq!(keys, [("a", Some(3), held.token), ("b", None, held.token)]);
    assert_eq!(received[1].keys[0].fence, held.token, "who waits changes no fence");
    assert_eq!(
        received[6].keys[0].fence,
        Token(received[6].revision.0 + 1),
        "nobody holds it at that instant"
    );
    assert_eq!((received[7].token, received[7].keys[0].fence), (Some(token), token));
}

#[tokio::test]
async fn a_watch_resumes_after_its_last_revision() {
    let service = Service::start().await;
    let first = service.hold("a").await.token.0;
    for key in ["b", "c", "d"] {
        service.hold(key).await;
    }
    let last = Revision(first + 3);
    let after = |revision: u64| format!("/v1/watch?after={revision}");
    let mut watch = Watch::open(&service, &after(first), &[]).await;
    let rest = watch.changes_up_to(last).await;
    assert_eq!(numbers(&rest), [first + 1, first + 2, first + 3]);
    // A browser that reconnects sends the original URL and its last id.
    let last_id = (first + 2).to_string();
    let mut again = Watch::open(&service, &after(first), &[("Last-Event-ID", &last_id)]).await;
    assert_eq!(again.block().await, Some(None));
    assert_eq!(again.id, last_id);
    assert_eq!(again.changes_up_to(last).await, rest[2..]);
    let mut from_url = Watch::open(&service, &after(first + 1), &[("Last-Event-ID", "")]).await;
    assert_eq!(from_url.changes_up_to(last).await, rest[1..]);
    // All of them go on with what comes, and so does one that starts where nothing has come yet.
    let mut latest = Watch::open(&service, &after(last.0), &[]).await;
    service.hold("e").await;
    for watch in [&mut watch, &mut again, &mut from_url, &mut latest] {
        assert_eq!(watch.change().await.1.revision, last.next());
    }
}

#[tokio::test]
async fn a_revision_that_is_dropped_or_not_reached_is_410() {
    let service = Service::start().await;
    let began = revision(&service);
    service.hold("a").await;
    let last = revision(&service);
    Watch::open(&service, &format!("/v1/watch?after={began}"), &[]).await;
    for gone in [began.0 - 1, 0, last.0 + 1, u64::MAX] {
        let problem = service.get(&format!("/v1/watch?after={gone}")).await.problem("history-gone");
        assert!(problem.detail.contains(&gone.to_string()), "{problem:?}");
        assert_eq!(problem.oldest, Some(began));
        let id = gone.to_string();
        let target = format!("/v1/watch?after={began}");
        service.send("GET", &target, &[("Last-Event-ID", &id)], b"").await.problem("history-gone");
    }
}

#[tokio::test]
async fn an_invalid_watch_names_the_parameter() {
    let service = Service::start().await;
    let long = "x".repeat(513);
    for (query, field) in [
        ("after=", "after"),
        ("after=x", "after"),
        ("after=-1", "after"),
        ("after=%2B1", "after"),
        ("after=18446744073709551616", "after"),
        ("prefix=/a", "prefix"),
        ("prefix=a//", "prefix"),
        ("prefix=a/../b", "prefix"),
        ("prefix=%0A", "prefix"),
        (&format!("prefix={long}"), "prefix"),
        ("consistency=local", "consistency"),
        ("colour=red", "colour"),
    ] {
        let problem = service.get(&format!("/v1/watch?{query}")).await.problem("invalid-request");
        assert_eq!(problem.field.as_deref(), Some(field), "{query}");
    }
    for id in ["x", "7 8", "-1", "\u{e4}"] {
        let problem = service.send("GET", "/v1/watch", &[("Last-Event-ID", id)], b"").await;
        assert_eq!(problem.problem("invalid-request").field.as_deref(), Some("Last-Event-ID"), "{id}");
    }
}

#[tokio::test]
async fn a_watch_gets_the_keys_under_its_prefix_only() {
    let service = Service::start().await;
    let all = Watch::open(&service, "/v1/watch", &[]).await;
    let mut watches = Vec::new();
    for prefix in ["jobs/", "jobs/1", "jobs/10", "j", "jobs/%C3%A4", "jobs/%C3%A4x", "other", "jobs/"] {
        watches.push(Watch::open(&service, &format!("/v1/watch?prefix={prefix}"), &[]).await);
    }
    watches.push(all);
    let keys = ["jobs/1", "jobs/10", "jobs/\u{e4}b", "jobsx", "o", "jobs/2"];
    let many = service.put(LeaseId::random(), json!({ "keys": keys })).await.expect::<Grant>(201);
    for key in keys {
        service.put(LeaseId::random(), json!({ "keys": [key] })).await.problem("held");
    }
    service.delete(many.lease_id).await;
    service.hold("jobs/10").await;
    let end = service.put(LeaseId::random(), json!({ "keys": ["other", "jobs/\u{e4}x", "jobs/10/1"] }));
    let end = end.await.expect::<Grant>(201).token;

    let expected: [(&[&str], &[&str], &[&str]); 9] = [
        (&["jobs/1", "jobs/10", "jobs/\u{e4}b", "jobs/2"], &["jobs/10"], &["jobs/\u{e4}x", "jobs/10/1"]),
        (&["jobs/1", "jobs/10"], &["jobs/10"], &["jobs/10/1"]),
        (&["jobs/10"], &["jobs/10"], &["jobs/10/1"]),
        (
            &["jobs/1", "jobs/10", "jobs/\u{e4}b", "jobsx", "jobs/2"],
            &["jobs/10"],
            &["jobs/\u{e4}x", "jobs/10/1"],
        ),
        (&["jobs/\u{e4}b"], &[], &["jobs/\u{e4}x"]),
        (&[], &[], &["jobs/\u{e4}x"]),
        (&[], &[], &["other"]),
        (&["jobs/1", "jobs/10", "jobs/\u{e4}b", "jobs/2"], &["jobs/10"], &["jobs/\u{e4}x", "jobs/10/1"]),
        (&keys, &["jobs/10"], &["other", "jobs/\u{e4}x", "jobs/10/1"]),
    ];
    for (mut watch, (of_many, of_one, of_last)) in watches.into_iter().zip(expected) {
        let received = watch.changes_up_to(Revision(end.0)).await;
        let received: Vec<Vec<_>> =
            received.iter().map(|(_, event)| event.keys.iter().map(|it| it.key.as_str()).collect()).collect();
        let expected = [of_many, of_many, of_one, of_last].into_iter().filter(|keys| !keys.is_empty());
        assert_eq!(received, expected.collect::<Vec<_>>());
    }
}

/// The client of a quiet watch must be able to resume.
#[tokio::test]
#[ignore = "slow"]
async fn a_quiet_watch_gets_bookmarks() {
    let service = Service::start().await;
    let mut watch = Watch::open(&service, "/v1/watch?prefix=quiet/", &[]).await;
    assert_eq!(watch.block().await, Some(None));
    let begun: u64 = watch.id.parse().unwrap();
    for _ in 0..17 {
        let acquire =
            |_| json!({ "acquire": { "lease_id": LeaseId::random(), "keys": [LeaseId::random()] } });
        let operations: Vec<_> = (0..1_000).map(acquire).collect();
        service.post("/v1/batch", json!({ "operations": operations })).await;
    }
    let deadline = Instant::now() + PATIENCE;
    while watch.id.parse::<u64>().unwrap() < begun + 10_000 {
        assert_eq!(watch.block().await, Some(None), "it is no event");
        assert!(Instant::now() < deadline, "it stays at {}", watch.id);
    }
    service.hold("quiet/a").await;
    assert_eq!(watch.change().await.1.keys[0].key.as_str(), "quiet/a");
}

#[tokio::test]
#[ignore = "slow"]
async fn only_a_watch_that_does_not_read_is_cut_off() {
    let service = Service::start().await;
    let mut slow = Watch::open(&service, "/v1/watch", &[]).await;
    let mut quick = Watch::open(&service, "/v1/watch?prefix=end", &[]).await;
    assert_eq!((slow.block().await, quick.block().await), (Some(None), Some(None)));
    let mut all = Watch::open(&service, "/v1/watch", &[]).await;
    let reader = tokio::spawn(async move {
        let mut revisions = Vec::new();
        loop {
            let (_, data) = all.event().await.expect("a watch that reads goes on");
            revisions.push(data["revision"].as_u64().unwrap());
            if data["keys"].as_array().unwrap().len() == 1 {
                return revisions;
            }
        }
    });
    // Each event has 36,000 bytes. More of them are made than the system takes for one that does not read, and than what
    // is kept.
    let keys: Vec<_> = (0..64).map(|number| format!("{number:0512}")).collect();
    let deadline = Instant::now() + 4 * PATIENCE;
    while is_counted(&service, "ringfence_watches_cut_off_total{reason=\"too-slow\"} 0").await {
        assert!(Instant::now() < deadline, "it is never cut off");
        for _ in 0..20 {
            let held = service.put(LeaseId::random(), json!({ "keys": keys })).await.expect::<Grant>(201);
            service.delete(held.lease_id).await;
        }
    }
    service.hold("end").await;
    assert_eq!(quick.change().await.0, "granted");
    let read = reader.await.unwrap();
    assert!(read.windows(2).all(|pair| pair[1] == pair[0] + 1), "{read:?}");
    let mut last = 0;
    let cut_off: CutOff = loop {
        let (name, data) = slow.event().await.expect("the last event says so");
        if name == CutOff::NAME {
            document::check_schema("CutOff", &data);
            break serde_json::from_value(data).unwrap();
        }
        let revision = data["revision"].as_u64().unwrap();
        assert!(last == 0 || revision == last + 1, "{revision} after {last}");
        last = revision;
    };
    assert_eq!((cut_off.revision, cut_off.reason), (Revision(last), CutOffReason::TooSlow));
    assert_eq!(slow.event().await, None, "nothing follows");
    let gone = service.send("GET", "/v1/watch", &[("Last-Event-ID", &slow.id)], b"").await;
    gone.problem("history-gone");
}

#[tokio::test]
async fn draining_ends_watches_and_refuses_new_ones() {
    let service = Service::start().await;
    let mut watch = Watch::open(&service, "/v1/watch", &[]).await;
    service.hold("a").await;
    watch.change().await;
    service.draining.send_replace(true);
    assert_eq!(watch.event().await, None);
    service.get("/v1/watch").await.problem("unavailable");
}

#[tokio::test]
async fn a_watch_ends_with_its_connection_and_another_begins_after_the_last() {
    let service = Service::start().await;
    let watches = [
        Watch::open(&service, "/v1/watch", &[]).await,
        Watch::open(&service, "/v1/watch?prefix=a", &[]).await,
    ];
    until_counted(&service, "ringfence_watchers 2").await;
    drop(watches);
    until_counted(&service, "ringfence_watchers 0").await;
    let mut watch = Watch::open(&service, "/v1/watch", &[]).await;
    service.hold("b").await;
    watch.change().await;
}

async fn until_counted(service: &Service, line: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !is_counted(service, line).await {
        assert!(Instant::now() < deadline, "waited in vain for: {line}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a line of the measurements starts so. All tests of this process measure together.
async fn is_counted(service: &Service, start: &str) -> bool {
    let metrics = String::from_utf8(service.get("/metrics").await.body).unwrap();
    metrics.lines().any(|line| line.starts_with(start))
}

#[tokio::test]
async fn head_of_a_watch_has_its_headers_and_starts_no_watch() {
    let service = Service::start().await;
    let head = service.call("HEAD", "/v1/watch", Value::Null).await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let mut connection = Connection::open(service.address).await;
    connection.send(&request("HEAD", "/v1/watch", &[], b"")).await;
    connection.send(&request("GET", "/livez", &[], b"")).await;
    assert_eq!(connection.receive(true).await.status, 200);
    assert_eq!(connection.receive(false).await.status, 200, "the connection goes on");
}
