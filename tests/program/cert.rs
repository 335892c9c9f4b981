//! `ringfence cert`: its files are what nodes and clients need, and nothing replaces them unasked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_harness::{Ended, run};

use crate::support::{PROGRAM, SOON};

async fn cert(dir: &Path, words: &str) -> Ended {
    let dir = format!("--dir={}", dir.display());
    run(PROGRAM, ["cert"].into_iter().chain(words.split(' ')).chain([dir.as_str()]), SOON).await.unwrap()
}

async fn made(dir: &Path, words: &str) -> Vec<String> {
    let ended = cert(dir, words).await;
    assert!(ended.status.success(), "{words}: {ended:?}");
    ended.output.lines().map(str::to_owned).collect()
}

async fn refused(dir: &Path, words: &str) -> String {
    let ended = cert(dir, words).await;
    assert!(!ended.status.success(), "{words}: {ended:?}");
    ended.output
}

/// What openssl says of a certificate.
async fn verified(dir: &Path, authority: &str, certificate: &str, more: &[&str]) -> bool {
    let at = |name: &str| dir.join(name).display().to_string();
    let words = ["verify", "-x509_strict", "-CAfile"].map(str::to_owned).into_iter().chain([at(authority)]);
    let words = words.chain(more.iter().map(|word| (*word).to_owned())).chain([at(certificate)]);
    run("openssl", words, SOON).await.unwrap().status.success()
}

#[tokio::test]
async fn certificates_are_for_one_purpose_each() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(refused(dir, "node --id 1 --hosts a").await.contains("`ringfence cert authorities` makes it"));
    assert_eq!(made(dir, "authorities").await.len(), 4);
    assert_eq!(made(dir, "node --id 1 --hosts db1.example,10.0.0.1,::1").await.len(), 4);
    assert_eq!(made(dir, "client --name billing --days 7").await.len(), 2);
    for (authority, certificate, more, expected) in [
        (
            "authority.pem",
            "node-1.pem",
            &["-purpose", "sslserver", "-verify_hostname", "db1.example"][..],
            true,
        ),
        ("authority.pem", "node-1.pem", &["-purpose", "sslserver", "-verify_ip", "::1"], true),
        ("authority.pem", "node-1.pem", &["-verify_hostname", "db2.example"], false),
        ("authority.pem", "node-1.pem", &["-purpose", "sslclient"], false),
        ("authority.pem", "client-billing.pem", &["-purpose", "sslclient"], true),
        ("authority.pem", "client-billing.pem", &["-purpose", "sslserver"], false),
        ("node-authority.pem", "node-1-peer.pem", &["-purpose", "sslserver"], true),
        ("node-authority.pem", "node-1-peer.pem", &["-purpose", "sslclient"], true),
        ("authority.pem", "node-1-peer.pem", &[], false),
        ("node-authority.pem", "client-billing.pem", &[], false),
    ] {
        let is_verified = verified(dir, authority, certificate, more).await;
        assert_eq!(is_verified, expected, "{certificate} {more:?}");
    }
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let is_key = entry.path().extension().is_some_and(|extension| extension == "key");
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if is_key { 0o600 } else { 0o644 }, "{entry:?}");
    }
}

#[tokio::test]
async fn nothing_is_replaced_unasked_and_mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    made(dir, "authorities").await;
    let first = fs::read(dir.join("authority.key")).unwrap();
    // Half of the files would be as bad.
    fs::remove_file(dir.join("authority.pem")).unwrap();
    assert!(refused(dir, "authorities").await.contains("authority.key exists: --force replaces it"));
    assert_eq!(fs::read(dir.join("authority.key")).unwrap(), first);
    made(dir, "authorities --force").await;
    assert_ne!(fs::read(dir.join("authority.key")).unwrap(), first);
    for (words, named) in [
        ("node --id 0 --hosts a", "--id"),
        ("node --id 1 --hosts a:7400", "--hosts: `a:7400`"),
        ("node --id 1 --hosts https://a", "--hosts"),
        ("client --name a/b", "--name"),
        ("client --name a --days 0", "--days"),
    ] {
        assert!(refused(dir, words).await.contains(named), "{words}");
    }
    let secret = "MC4CAQAwBQYDK2VwBCIEIC";
    let broken = format!("-----BEGIN PRIVATE KEY-----\n{secret}?\n-----END PRIVATE KEY-----\n");
    fs::write(dir.join("authority.key"), broken).unwrap();
    let error = refused(dir, "client --name a").await;
    assert!(error.contains("authority.key") && !error.contains(secret), "{error}");
}
