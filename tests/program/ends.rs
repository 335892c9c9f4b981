//! Certificates end by themselves: who uses them says so, before and after.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_access::Credential;
use ringfence_harness::{Clocks, Node, available, run, until};
use ringfence_wire::LeaseId;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use crate::support::{ALL, PROGRAM, SOON, Secured, cert, cluster, principal};

/// How often a connection between nodes verifies the certificate of the other side again.
const RECHECK: Duration = Duration::from_secs(5);

/// Runs `ringfence cert` as it would have run so many days and a half ago.
pub(crate) async fn cert_of_old(dir: &Path, days: u32, words: &[&str]) {
    let (back, dir) = (format!("-{}h", days * 24 + 12), format!("--dir={}", dir.display()));
    let words = ["-f", &back, PROGRAM, "cert"].into_iter().chain(words.iter().copied()).chain([dir.as_str()]);
    let ended = run("faketime", words.map(str::to_owned), SOON).await.unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

/// What `serve --check` prints with the certificates in `dir`, and its exit status.
async fn check(dir: &Path, more: &[&str]) -> (i32, String) {
    let at = |name: &str| dir.join(name).display().to_string();
    let arguments = [
        format!("--tls-certificate={}", at("node-1.pem")),
        format!("--tls-key={}", at("node-1.key")),
        format!("--peer-certificate={}", at("node-1-peer.pem")),
        format!("--peer-key={}", at("node-1-peer.key")),
        format!("--peer-authority={}", at("node-authority.pem")),
    ];
    let own = ["serve", "--check", "--id=1", "--data=d"].map(str::to_owned);
    let more = more.iter().map(|word| (*word).to_owned());
    let ended = run(PROGRAM, own.into_iter().chain(arguments).chain(more), SOON).await.unwrap();
    (ended.status.code().unwrap(), ended.output)
}

#[tokio::test]
async fn a_check_warns_of_what_ends_within_30_days_and_fails_if_something_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let node = ["node", "--id=1", "--hosts=127.0.0.1", "--force"];
    cert(dir, &["authorities"]).await;
    cert(dir, &node).await;
    let (status, said) = check(dir, &[]).await;
    assert_eq!((status, said.contains("ends on")), (0, false), "{said}");

    cert_of_old(dir, 350, &node).await;
    let (status, said) = check(dir, &[]).await;
    assert_eq!((status, said.matches("WARN").count()), (0, 2), "{said}");
    for part in ["node-1.pem", "node-1-peer.pem", "ringfence node 1", "ends on", "in 14 days"] {
        assert!(said.contains(part), "{part}: {said}");
    }

    cert_of_old(dir, 400, &node).await;
    let (status, said) = check(dir, &[]).await;
    assert_eq!((status, said.matches("ERROR").count()), (2, 2), "{said}");
    for part in ["node-1.pem: the certificate of CN=ringfence node 1", "ended on", "35 days ago"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    fs::write(dir.join("node-1-peer.pem"), "none").unwrap();
    assert_eq!(check(dir, &[]).await.0, 2, "files that cannot be used are refused, too");

    // Authorities end as well. One that is left over is no reason not to start.
    cert_of_old(dir, 3_700, &["authorities", "--force"]).await;
    cert(dir, &node).await;
    let (status, said) = check(dir, &[]).await;
    assert!(
        status == 2 && said.contains("node-authority.pem: the certificate of CN=ringfence nodes"),
        "{said}"
    );
    let ended = fs::read_to_string(dir.join("node-authority.pem")).unwrap();
    cert(dir, &["authorities", "--force"]).await;
    cert(dir, &node).await;
    let live = fs::read_to_string(dir.join("node-authority.pem")).unwrap();
    fs::write(dir.join("node-authority.pem"), ended + &live).unwrap();
    let (status, said) = check(dir, &[]).await;
    assert!(status == 0 && said.contains("Take it out of the file"), "{said}");
}

/// The exit status of `cluster status`, and what it prints.
async fn status(secured: &Secured, operator: &Credential) -> (i32, String) {
    let urls: Vec<_> =
        secured.cluster.nodes().iter().map(|node| format!("https://{}", node.http())).collect();
    let command = [
        format!("RINGFENCE_URLS={}", urls.join(",")),
        format!("RINGFENCE_AUTHORITY={}", secured.path("authority.pem").display()),
        format!("RINGFENCE_CREDENTIAL={}", operator.reveal()),
        PROGRAM.to_owned(),
        "cluster".to_owned(),
        "status".to_owned(),
    ];
    let ended = run("env", command, SOON).await.unwrap();
    (ended.status.code().unwrap(), ended.output)
}

/// Only its log said so.
#[tokio::test]
async fn cluster_status_tells_of_files_that_a_node_cannot_use() {
    let (operator, rules) = principal("operator", ALL);
    let secured = Secured::lay_out(cluster().nodes(1), &rules).await;
    secured.start(&[]);
    secured.ready().await;
    let (code, said) = status(&secured, &operator).await;
    assert_eq!(code, 0, "{said}");
    fs::write(secured.path("node-1-peer.pem"), "none").unwrap();
    let told = async || {
        let (code, said) = status(&secured, &operator).await;
        let parts = ["node 1 cannot use files for peers", "node-1-peer.pem: has no certificate"];
        (code == 3 && parts.iter().all(|part| said.contains(part))).then_some(())
    };
    until(SOON, "it tells of the file", told).await.unwrap();
}

/// Nobody but the nodes told of it.
#[tokio::test]
async fn a_client_tells_of_the_end_of_its_own_certificate() {
    let (operator, rules) = principal("operator", ALL);
    let secured = Secured::lay_out(cluster().nodes(1), &rules).await;
    secured.start(&[format!("--tls-client-authority={}", secured.path("authority.pem").display())]);
    secured.ready().await;
    let at = |name: &str| secured.path(name).display().to_string();
    for (days, status, told) in [
        (0, 0, None),
        (350, 0, Some("this client goes on only with other files: its certificate ends on")),
        (400, 125, Some("the node refuses this client's certificate")),
    ] {
        cert_of_old(&secured.path(""), days, &["client", "--name=me", "--force"]).await;
        let command = [
            format!("RINGFENCE_URLS=https://{}", secured.cluster.node(1).http()),
            format!("RINGFENCE_AUTHORITY={}", at("authority.pem")),
            format!("RINGFENCE_CERTIFICATE={}", at("client-me.pem")),
            format!("RINGFENCE_CERTIFICATE_KEY={}", at("client-me.key")),
            format!("RINGFENCE_CREDENTIAL={}", operator.reveal()),
        ];
        let words = [PROGRAM, "lock", "a", "--", "true"].map(str::to_owned);
        let ended = run("env", command.into_iter().chain(words), SOON).await.unwrap();
        assert_eq!(ended.status.code(), Some(status), "{days}: {ended:?}");
        let count = ended.output.matches("me.pem").count();
        match told {
            None => assert_eq!(count, 0, "{ended:?}"),
            Some(told) => assert!(count > 0 && ended.output.contains(told), "{ended:?}"),
        }
        let of_the_end = ended.output.matches("this client goes on only").count();
        assert_eq!(of_the_end, usize::from(days > 0), "{ended:?}");
        assert_eq!(ended.output.contains("ended on"), days == 400, "{ended:?}");
    }
}

/// Those of appends and heartbeats once kept the certificates that they had begun with, and broke when these ended.
#[tokio::test]
async fn connections_between_nodes_take_new_certificates_before_the_old_ones_end() {
    let Some(clocked) = Clocked::start().await else { return };
    let client = clocked.secured.client(clocked.nodes(), &clocked.operator);
    let works = async || client.lock("a").acquire().await.unwrap().release().await.unwrap();
    works().await;
    clocked.issue(0).await;
    // It takes its own at once, and connects again while the others still show their old ones.
    let leader = client.cluster().await.unwrap().leader.unwrap();
    let pid = clocked.secured.cluster.node(leader).pid().unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::HUP).unwrap();
    let in_use = |log: &str| log.matches("files that changed are in use").count() >= 2;
    clocked.all_log("the new files are in use", in_use).await;
    for node in clocked.nodes() {
        let client = clocked.secured.client([node], &clocked.operator);
        let shown = async || {
            let status = client.cluster().await.ok()?;
            let ends = status.members.values().filter_map(|member| member.certificate_ends_unix_s);
            (ends.filter(|ends| *ends > ringfence_tls::now() + 300 * 86_400).count() == 2).then_some(())
        };
        until(SOON, "the others have shown their new certificates", shown).await.unwrap();
    }
    // They are made anew within some three seconds, those that nothing happens on, too: nothing tells when.
    sleep(4 * RECHECK).await;
    clocked.nodes().iter().for_each(|node| clocked.clocks.throw(node.id(), 20 * 86_400).unwrap());
    // Within this time each connection that is in use verifies the other side twice.
    let thrown = Instant::now();
    while thrown.elapsed() < 2 * RECHECK {
        works().await;
    }
    for node in clocked.nodes() {
        let log = node.log();
        assert!(!log.contains("ended on"), "{log}");
    }
}

/// Three nodes with clocks that can be thrown.
struct Clocked {
    secured: Secured,
    clocks: Clocks,
    operator: Credential,
}

impl Clocked {
    /// With certificates that end in two weeks. `None`, after printing why, if the clock library is missing.
    async fn start() -> Option<Self> {
        let clocks = available(Clocks::new(3, false))?;
        let (operator, rules) = principal("operator", ALL);
        let secured = Secured::lay_out(cluster(), &rules).await;
        let clocked = Self { secured, clocks, operator };
        clocked.issue(350).await;
        clocked.secured.start_with(&[], |id, command| clocked.clocks.wind(id, command));
        clocked.nodes().iter().for_each(|node| clocked.clocks.started(node.pid()));
        clocked.secured.ready().await;
        Some(clocked)
    }

    fn nodes(&self) -> &[Node] {
        self.secured.cluster.nodes()
    }

    /// Makes all certificates anew, as if so many days and a half ago.
    async fn issue(&self, days_ago: u32) {
        for node in self.nodes() {
            let (id, hosts) = (format!("--id={}", node.id()), format!("--hosts={}", node.http().ip()));
            cert_of_old(&self.secured.path(""), days_ago, &["node", &id, &hosts, "--force"]).await;
        }
    }

    /// Waits until this is true of the logs of all nodes.
    async fn all_log(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let found = async || self.nodes().iter().all(|node| holds(&node.log())).then_some(());
        until(SOON, what, found).await.unwrap();
    }

    /// What `cluster status` prints.
    async fn status(&self) -> String {
        let (status, said) = status(&self.secured, &self.operator).await;
        assert_eq!(status, 0, "{said}");
        said
    }

    /// What a client is told that would wait.
    async fn refusal(&self) -> Option<String> {
        let secret = Some(self.operator.reveal());
        let mut connection = self.secured.connection(self.secured.cluster.node(1), secret).await.ok()?;
        let path = format!("/v1/leases/{}", LeaseId::random());
        let acquire = r#"{"keys": ["a"], "ttl_ms": 10000, "wait_ms": 60000}"#;
        let answer = timeout(SOON, connection.call("PUT", &path, acquire)).await.ok()?.ok()?;
        (answer.status == 503).then(|| String::from_utf8_lossy(answer.body).into_owned())
    }
}

/// All certificates of a cluster once ended in the same minute, and nothing said so: the log named neither whose they were nor
/// since when, and clients were told of a disk that hangs.
#[tokio::test]
async fn nodes_whose_certificates_end_say_whose_and_since_when_and_go_on_with_new_ones() {
    let Some(clocked) = Clocked::start().await else { return };
    let warned = |log: &str| log.matches("a certificate of this node ends on").count() == 2;
    clocked.all_log("the start warns of the end", warned).await;
    let client = clocked.secured.client(clocked.nodes(), &clocked.operator);
    let knows_peers = async || {
        let status = client.cluster().await.ok()?;
        let kinds = status.certificates.iter().map(|one| (one.r#use.as_str(), one.authority));
        assert_eq!(kinds.collect::<Vec<_>>(), [("clients", false), ("peers", false), ("peers", true)]);
        let others = status.members.values().filter(|member| member.certificate_ends_unix_s.is_some());
        (others.count() == 2).then_some(())
    };
    until(SOON, "a node tells of the certificates of the others", knows_peers).await.unwrap();
    let shown = async || {
        let status = clocked.status().await;
        (status.lines().filter(|line| line.contains("ends on") && line.contains("in 14 days")).count() == 4)
            .then_some(())
    };
    until(SOON, "`cluster status` shows them", shown).await.unwrap();

    // The clocks of the nodes jump ahead, not that of this client.
    clocked.nodes().iter().for_each(|node| clocked.clocks.throw(node.id(), 20 * 86_400).unwrap());
    let ended = |log: &str| {
        let has = |parts: &[&str]| log.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        has(&["ERROR", "-peer.pem", "a certificate of this node ended on"])
            && has(&["peer cannot be reached", "the certificate of CN=ringfence node", "ended on"])
    };
    clocked.all_log("it has ended", ended).await;
    let told = async || {
        let refusal = clocked.refusal().await?;
        assert!(!refusal.contains("disk"), "{refusal}");
        refusal.contains("has none").then_some(())
    };
    until(SOON, "clients that would wait are told that there may be no leader", told).await.unwrap();
    clocked.all_log("no other reason is given", |log| !log.contains("not trusted any more")).await;

    clocked.issue(0).await;
    clocked.secured.ready().await;
    let granted = async || client.lock("a").acquire().await.ok()?.release().await.ok();
    until(SOON, "leases are granted again", granted).await.unwrap();
}
