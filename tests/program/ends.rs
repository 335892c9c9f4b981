//! Certificates end by themselves: who uses them says so, before and after.

use std::fs;
use std::path::Path;

use ringfence_harness::{Clocks, Node, available, run, until};
use ringfence_wire::LeaseId;
use tokio::time::timeout;

use crate::support::{ALL, PROGRAM, SOON, Secured, cert, cluster, principal};

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

/// All certificates of a cluster once ended in the same minute, and nothing said so: the log named neither whose they were nor
/// since when, and clients were told of a disk that hangs.
#[tokio::test]
async fn nodes_whose_certificates_end_say_whose_and_since_when_and_go_on_with_new_ones() {
    let (operator, rules) = principal("operator", ALL);
    let secured = Secured::lay_out(cluster(), &rules).await;
    let dir = secured.path("");
    let issue = async |days_ago: u32| {
        for node in secured.cluster.nodes() {
            let words = [&format!("--id={}", node.id()), &format!("--hosts={}", node.http().ip())];
            cert_of_old(&dir, days_ago, &["node", words[0], words[1], "--force"]).await;
        }
    };
    issue(350).await;
    let Some(clocks) = available(Clocks::new(3, false)) else { return };
    secured.start_with(&[], |id, command| clocks.wind(id, command));
    secured.cluster.nodes().iter().for_each(|node| clocks.started(node.pid()));
    secured.ready().await;
    let all = async |what: &str, holds: &dyn Fn(&Node) -> bool| {
        let found = async || secured.cluster.nodes().iter().all(holds).then_some(());
        until(SOON, what, found).await.unwrap();
    };
    all("the start warns of the end", &|node| {
        node.log().matches("a certificate of this node ends on").count() == 2
    })
    .await;
    let client = secured.client(secured.cluster.nodes(), &operator);
    let knows_peers = async || {
        let status = client.cluster().await.ok()?;
        let kinds = status.certificates.iter().map(|one| (one.r#use.as_str(), one.authority));
        assert_eq!(kinds.collect::<Vec<_>>(), [("clients", false), ("peers", false), ("peers", true)]);
        let others = status.members.values().filter(|member| member.certificate_ends_unix_s.is_some());
        (others.count() == 2).then_some(())
    };
    until(SOON, "a node tells of the certificates of the others", knows_peers).await.unwrap();
    let urls: Vec<_> =
        secured.cluster.nodes().iter().map(|node| format!("https://{}", node.http())).collect();
    let command = async |words: &[&str]| {
        let given = [
            format!("RINGFENCE_URLS={}", urls.join(",")),
            format!("RINGFENCE_AUTHORITY={}", secured.path("authority.pem").display()),
            format!("RINGFENCE_CREDENTIAL={}", operator.reveal()),
            PROGRAM.to_owned(),
        ];
        run("env", given.into_iter().chain(words.iter().map(|word| (*word).to_owned())), SOON).await.unwrap()
    };
    let status = command(&["cluster", "status"]).await;
    let lines = status.output.lines().filter(|line| line.contains("ends on"));
    assert_eq!(lines.filter(|line| line.contains("in 14 days")).count(), 4, "{status:?}");

    // The clocks of the nodes jump ahead, not that of this client.
    let ended_at = 20 * 86_400;
    secured.cluster.nodes().iter().for_each(|node| clocks.throw(node.id(), ended_at).unwrap());
    all("the log says that it has ended", &|node| {
        let log = node.log();
        let own = log.lines().any(|line| {
            line.contains("ERROR")
                && line.contains("-peer.pem")
                && line.contains("a certificate of this node ended on")
        });
        let others = log.lines().any(|line| {
            line.contains("peer cannot be reached")
                && line.contains("the certificate of CN=ringfence node")
                && line.contains("ended on")
        });
        own && others
    })
    .await;
    let acquire = r#"{"keys": ["a"], "ttl_ms": 10000, "wait_ms": 60000}"#;
    let told = async || {
        let mut connection =
            secured.connection(secured.cluster.node(1), Some(operator.reveal())).await.ok()?;
        let path = format!("/v1/leases/{}", LeaseId::random());
        let answer = timeout(SOON, connection.call("PUT", &path, acquire)).await.ok()?.ok()?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!body.contains("disk"), "{body}");
        (answer.status == 503 && body.contains("no leader")).then_some(())
    };
    until(SOON, "clients that would wait are told that there is no leader", told).await.unwrap();
    for node in secured.cluster.nodes() {
        assert!(!node.log().contains("not trusted any more"), "{}", node.log());
    }

    issue(0).await;
    secured.ready().await;
    let granted = async || client.lock("a").acquire().await.ok()?.release().await.ok();
    until(SOON, "leases are granted again", granted).await.unwrap();
}
