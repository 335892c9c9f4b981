//! Guards with a real cluster: the examples of the READMEs, and a guard in memory that restarts.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use ringfence_guard::{Admission, Claim, GuardedKey, MemoryGuard};
use ringfence_harness::{
    Answered, Client, Cluster, Consistency, Failure, PostgresServer, RedisServer, Shown, granted, take,
    try_once,
};
use ringfence_wire::{Grant, Key, LeaseId};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::PROGRAM;

/// Bounds a request for the fence without a quorum.
const SOON: Duration = Duration::from_secs(5);

/// Bounds a shell session, which waits for a lease to expire.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// A `PATH` on which `ringfence` is this program.
fn path() -> String {
    let programs = Path::new(PROGRAM).parent().unwrap().display();
    format!("{programs}:{}", std::env::var("PATH").unwrap())
}

#[tokio::test]
async fn the_first_section_of_the_readme_works_as_shown() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let server = PostgresServer::start().await.unwrap();
    let (host, port) = (server.address().ip().to_string(), server.address().port().to_string());
    let url = cluster.leader().await.unwrap().url();
    let readme = include_str!("../../guard/README.md");
    let path = path();
    let variables = [
        ("PATH", &*path),
        ("URL", &*url),
        ("PGHOST", &host),
        ("PGPORT", &port),
        ("PGUSER", "postgres"),
        ("PGDATABASE", "postgres"),
    ];
    Shown::new(readme, "## Ten minutes", "### The same in")
        .play(Path::new(env!("CARGO_MANIFEST_DIR")), &variables, TEN_MINUTES)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_nightly_job_in_any_language_is_fenced_as_the_readme_shows() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let server = PostgresServer::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("make-reports.sh");
    std::fs::write(&job, "#!/bin/sh\npsql -qX -c 'INSERT INTO reports VALUES (now())'\n").unwrap();
    std::fs::set_permissions(&job, Permissions::from_mode(0o755)).unwrap();
    let (host, port) = (server.address().ip().to_string(), server.address().port().to_string());
    let (path, urls) = (path(), cluster.leader().await.unwrap().url());
    let variables = [
        ("PATH", &*path),
        ("RINGFENCE_URLS", &*urls),
        ("PGHOST", &host),
        ("PGPORT", &port),
        ("PGUSER", "postgres"),
        ("PGDATABASE", "postgres"),
    ];
    let table = "```sh\npsql -qX -c 'CREATE TABLE reports (at timestamptz)'\n```";
    let count = "```sh\npsql -qXAt -c 'SELECT count(*) FROM reports'\n#> 3\n```";
    let readme = include_str!("../../README.md");
    let (_, part) = readme.split_once("**In a script**").unwrap();
    let (part, _) = part.split_once("**In Rust**").unwrap();
    Shown::new(&format!("{table}{part}{count}<end>"), "", "<end>")
        .play(folder.path(), &variables, TEN_MINUTES)
        .await
        .unwrap();
}

/// The old code, both locks, and then the lease alone.
#[tokio::test]
async fn a_redis_lock_is_replaced_without_a_gap_as_the_page_shows() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let redis = RedisServer::builder().start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (path, urls, redis) = (path(), cluster.leader().await.unwrap().url(), redis.url());
    Shown::new(include_str!("../../docs/which-lock.md"), "## Moving from", "## Sources")
        .play(folder.path(), &[("RINGFENCE_URLS", &*urls), ("REDIS", &redis), ("PATH", &path)], TEN_MINUTES)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_restarted_guard_rejects_by_the_clusters_fence() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let client = cluster.leader().await.unwrap().client().patient();
    let key: Key = "accounts/42".parse().unwrap();
    let old = LeaseId::random();
    let stale = claim(&granted(&client, old, &try_once("accounts/42")).await);
    let guard = MemoryGuard::new(100);
    assert_eq!(known(&guard, &key, &client).await.unwrap().touch(stale), Admission::Accepted(()));
    client.release(old).await.done();
    let live = claim(&take(&client, "accounts/42").await);
    assert_eq!(known(&guard, &key, &client).await.unwrap().touch(live), Admission::Accepted(()));

    // This one has seen neither token.
    let guard = MemoryGuard::new(100);
    let known = known(&guard, &key, &client).await.unwrap();
    let rejected = known.write(stale, || panic!("a dead holder writes"));
    assert_eq!(rejected, Admission::Stale { high: live.fence() });
    assert_eq!(known.write(live, || ()), Admission::Accepted(()));
}

#[tokio::test]
async fn a_restarted_guard_accepts_nothing_without_a_quorum() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let key: Key = "accounts/42".parse().unwrap();
    let live = claim(&take(&client, "accounts/42").await);
    for node in cluster.others(1) {
        node.kill().unwrap();
    }
    let guard = MemoryGuard::new(100);
    assert!(known(&guard, &key, &cluster.node(1).client().within(SOON)).await.is_err());
    assert!(guard.key(&key).is_err());

    for node in cluster.others(1) {
        node.start().unwrap();
    }
    cluster.ready().await.unwrap();
    assert_eq!(known(&guard, &key, &client).await.unwrap().touch(live), Admission::Accepted(()));
}

#[tokio::test]
async fn a_lease_is_shown_to_guards_of_all_kinds() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let url = cluster.node(1).url();
    let client = ringfence_client::Client::connect([&url]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let backend = ringfence_storage::storage(client.clone(), folder.path().to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, backend).await.unwrap() });
    let put = async |headers: [(&str, String); 3]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "PUT", "-d", "mine"]);
        for (name, value) in headers {
            curl.arg("-H").arg(format!("{name}: {value}"));
        }
        let output = curl.arg(format!("http://{address}/files/%C3%A4%20b")).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (memory, key) = (MemoryGuard::new(100), "files/ä b".parse().unwrap());
    let known = known(&memory, &key, &cluster.node(1).client().patient()).await.unwrap();

    let lock = || client.lock_all(["files/ä b", "other"]);
    let first = lock().acquire().await.unwrap();
    let claim = first.claim("files/ä b").unwrap();
    assert_eq!((claim.token(), Some(claim.fence())), (first.token(), first.fence("files/ä b")));
    assert_eq!(known.write(claim, || ()), Admission::Accepted(()));
    let headers = first.headers("files/ä b").unwrap();
    assert_eq!(put(headers.clone()).await, "204");
    let no_key = first.claim("files/a").unwrap_err().to_string();
    assert_eq!(no_key, "key: \"files/a\" is none of this lease's: files/ä b, other");

    client.revoke("other", first.token()).await.unwrap();
    first.renew().await.unwrap_err();
    assert!(matches!(first.claim("files/ä b"), Err(ringfence_client::Error::Lost(_))));
    assert!(matches!(first.headers("files/ä b"), Err(ringfence_client::Error::Lost(_))));
    let second = lock().acquire().await.unwrap();
    assert_eq!(put(second.headers("files/ä b").unwrap()).await, "204");
    assert_eq!(known.touch(second.claim("files/ä b").unwrap()), Admission::Accepted(()));
    assert_eq!(put(headers).await, "412");
    assert!(!known.touch(claim).is_accepted());
}

fn claim(grant: &Grant) -> Claim {
    Claim::new(grant.token, grant.keys[0].fence).unwrap()
}

/// The guarded key, with the fence from the cluster, as in a storage backend.
async fn known(guard: &MemoryGuard, key: &Key, client: &Client) -> Result<GuardedKey, Failure> {
    let mut found = guard.key(key);
    loop {
        found = match found {
            Ok(known) => return Ok(known),
            Err(unknown) => {
                let answer = client.key(key, Consistency::Linearizable).await?;
                unknown.learn(Ok::<_, Failure>(answer).done().fence).unwrap()
            }
        };
    }
}
