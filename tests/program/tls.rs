//! TLS with clients, with real processes: who is let in, and what happens when files change.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use ringfence_client::{Client, Consistency, Error, Tls, Token};
use ringfence_harness::{Certificates, Cluster, Workers, run, until};
use tempfile::TempDir;

use crate::support::{PROGRAM, SOON};

const TTL: Duration = Duration::from_secs(10);
const REFUSED: &str = "ringfence_files_refused{use=\"clients\"}";

/// A cluster that does not run yet, and the nodes' certificate.
async fn laid_out() -> (Cluster, TempDir, Certificates) {
    let cluster = Cluster::builder(PROGRAM).lay_out().await.unwrap();
    let dir = TempDir::new().unwrap();
    let files = certificates(dir.path(), &cluster);
    (cluster, dir, files)
}

fn certificates(dir: &Path, cluster: &Cluster) -> Certificates {
    Certificates::new(dir, &format!("IP:{}", cluster.node(1).http().ip())).unwrap()
}

fn of_server(files: &Certificates) -> Vec<String> {
    vec![
        format!("--tls-certificate={}", files.certificate().display()),
        format!("--tls-key={}", files.key().display()),
    ]
}

fn start(cluster: &Cluster, arguments: &[String]) {
    for node in cluster.nodes() {
        node.start_with(|command| {
            command.args(arguments);
        })
        .unwrap();
    }
}

fn urls(cluster: &Cluster, scheme: &str) -> Vec<String> {
    cluster.nodes().iter().map(|node| format!("{scheme}://{}", node.http())).collect()
}

fn trusting(authority: &Path) -> Tls {
    Tls { authority: Some(authority.to_owned()), ..Tls::default() }
}

fn with_certificate(authority: &Path, own: &Certificates) -> Tls {
    let (certificate, key) = (Some(own.certificate().to_owned()), Some(own.key().to_owned()));
    Tls { certificate, key, ..trusting(authority) }
}

async fn works(client: &Client, what: &str) {
    let granted = async || {
        let lease = client.lock(what).ttl(TTL).acquire().await.ok()?;
        lease.release().await.ok()
    };
    until(SOON, what, granted).await.unwrap();
}

/// A client that acquires and releases until it is stopped. No call may fail.
fn load(client: Client, key: &'static str) -> Workers {
    Workers::start(1, |_, work| {
        let client = client.clone();
        async move {
            while work.goes_on() {
                client.lock(key).ttl(TTL).acquire().await.unwrap().release().await.unwrap();
                work.did(1);
            }
        }
    })
}

#[tokio::test]
#[ignore = "slow"]
async fn clients_reach_a_cluster_that_speaks_only_tls() {
    let (cluster, dir, files) = laid_out().await;
    start(&cluster, &of_server(&files));
    let https = urls(&cluster, "https");
    let client = Client::connect_with(&https, &trusting(files.authority())).unwrap();
    works(&client, "first").await;
    let status = client.cluster().await.unwrap();
    assert!(status.members.values().all(|member| member.url.as_ref().unwrap().starts_with("https://")));

    // A command of the program, and its child, which does the work.
    let authority = format!("--authority={}", files.authority().display());
    let lock = ["lock", "-u", &https[0], &authority, "job", "--", "sh", "-c", "echo token $RINGFENCE_TOKEN"];
    let ended = run(PROGRAM, lock, SOON).await.unwrap();
    assert!(ended.status.success() && ended.output.contains("token "), "{ended:?}");

    // Without the authority, or with another, or under a name that the certificate does not have, nothing is sent.
    let other = TempDir::new().unwrap();
    let stranger = certificates(other.path(), &cluster);
    let port = cluster.node(1).http().port();
    for (urls, tls) in [
        (https.clone(), trusting(stranger.authority())),
        (vec![format!("https://localhost:{port}")], trusting(files.authority())),
    ] {
        let client = Client::connect_with(&urls, &tls).unwrap();
        let refused = client.revoke("a", Token(1)).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    }

    // A plain request is told so, and no more.
    let (mut stream, mut answer) = (TcpStream::connect(cluster.node(1).http()).unwrap(), String::new());
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"GET /v1/keys HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https"), "{answer}");

    // A stop waits for no handshake that may never come.
    let _silent = TcpStream::connect(cluster.node(1).http()).unwrap();
    assert!(cluster.node(1).terminate().await.unwrap().success());
    assert!(!cluster.node(1).log().contains("some requests had no response"), "{}", cluster.node(1).log());
    drop(dir);
}

#[tokio::test]
#[ignore = "slow"]
async fn certificates_of_clients_are_required_and_their_authority_is_replaced() {
    let (cluster, _dir, files) = laid_out().await;
    let (first, second, trusted) =
        (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let old = Certificates::new(first.path(), "URI:client:old").unwrap();
    let new = Certificates::new(second.path(), "URI:client:new").unwrap();
    let authority = trusted.path().join("clients.pem");
    let both = [fs::read(old.authority()).unwrap(), fs::read(new.authority()).unwrap()].concat();
    fs::write(&authority, &both).unwrap();
    let arguments = [of_server(&files), vec![format!("--tls-client-authority={}", authority.display())]];
    start(&cluster, &arguments.concat());
    let https = urls(&cluster, "https");
    let connect = |tls: &Tls| Client::connect_with(&https, tls).unwrap();
    let (old, new) = (
        connect(&with_certificate(files.authority(), &old)),
        connect(&with_certificate(files.authority(), &new)),
    );
    works(&old, "old").await;
    let without = connect(&trusting(files.authority()));
    // Certainly not done, though TLS 1.3 tells the client only after it has sent the request.
    let refused = without.revoke("a", Token(1)).await.unwrap_err();
    assert!(matches!(&refused, Error::Unavailable { why } if why.contains("ertificate")), "{refused:?}");

    let load = load(new, "new");
    load.more(6).await;
    // Half a file changes nothing.
    fs::write(&authority, &both[..both.len() - 100]).unwrap();
    let logged = |text: &'static str| {
        let cluster = &cluster;
        move || async move { cluster.nodes().iter().all(|node| node.log().contains(text)).then_some(()) }
    };
    until(SOON, "half a file is refused", logged("files that changed cannot be used")).await.unwrap();
    works(&old, "half").await;
    // The client's connection is open.
    let _lease = old.lock("kept").ttl(SOON).acquire().await.unwrap();
    fs::copy(second.path().join("ca.pem"), &authority).unwrap();
    until(SOON, "the new authority is in use", logged("files that changed are in use")).await.unwrap();
    let ended = async || {
        cluster
            .nodes()
            .iter()
            .any(|node| node.log().contains("whose certificate is no longer trusted"))
            .then_some(())
    };
    until(SOON, "connections of the old one end", ended).await.unwrap();
    // It may have one to each node.
    let fails = async || old.key("kept", Consistency::Local).await.err();
    let refused = until(SOON, "the requests of the old client fail", fails).await.unwrap();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    load.more(6).await;
    load.end().await;
}

/// A connection may stay open for months.
#[tokio::test]
#[ignore = "slow"]
async fn a_connection_ends_with_the_certificate_of_its_client() {
    let (cluster, _dir, files) = laid_out().await;
    let own = TempDir::new().unwrap();
    let [authority, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| own.path().join(name));
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
    fs::write(&authority, issuer.pem()).unwrap();
    let arguments = [of_server(&files), vec![format!("--tls-client-authority={}", authority.display())]];
    start(&cluster, &arguments.concat());
    let logged = async |text: &str| {
        let found = async || cluster.nodes().iter().any(|node| node.log().contains(text)).then_some(());
        until(SOON, text, found).await.unwrap();
    };
    logged("this node leads").await;
    let mut parameters = CertificateParams::default();
    parameters.not_after = (SystemTime::now() + Duration::from_secs(5)).into();
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let client_key = KeyPair::generate().unwrap();
    fs::write(&certificate, parameters.signed_by(&client_key, &issuer).unwrap().pem()).unwrap();
    fs::write(&key, client_key.serialize_pem()).unwrap();
    let tls = Tls { certificate: Some(certificate), key: Some(key), ..trusting(files.authority()) };
    let client = Client::connect_with(urls(&cluster, "https"), &tls).unwrap();
    works(&client, "before").await;
    logged("whose certificate is no longer trusted").await;
    // It may have one to each node.
    let fails = async || client.key("a", Consistency::Local).await.err();
    let refused = until(SOON, "its requests fail", fails).await.unwrap();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
}

#[tokio::test]
#[ignore = "slow"]
async fn a_cluster_changes_to_tls_and_replaces_certificates_under_load() {
    let (cluster, dir, files) = laid_out().await;
    start(&cluster, &[]);
    cluster.ready().await.unwrap();
    let plain = load(Client::connect(urls(&cluster, "http")).unwrap(), "plain");
    plain.more(6).await;
    let restart = async |arguments: &[String], is_plain: bool| {
        for node in cluster.nodes() {
            node.terminate().await.unwrap();
            node.start_with(|command| {
                command.args(arguments);
            })
            .unwrap();
            if is_plain {
                node.ready().await.unwrap();
            } else {
                let tls = trusting(files.authority());
                let alone = Client::connect_with([format!("https://{}", node.http())], &tls).unwrap();
                works(&alone, "restarted").await;
            }
        }
    };
    restart(&[of_server(&files), vec!["--plain=accept".to_owned()]].concat(), true).await;
    plain.more(6).await;
    let client = Client::connect_with(urls(&cluster, "https"), &trusting(files.authority())).unwrap();
    let encrypted = load(client, "encrypted");
    encrypted.more(6).await;

    // While plain connections are allowed, metrics can be read without TLS.
    let whole = fs::read(files.certificate()).unwrap();
    let all = async |expected: f64| {
        let found = async || {
            for node in cluster.nodes() {
                node.client().metric(REFUSED).await.ok()?.filter(|value| *value == expected)?;
            }
            Some(())
        };
        until(SOON, REFUSED, found).await.unwrap();
    };
    all(0.0).await;
    fs::write(files.certificate(), &whole[..whole.len() / 2]).unwrap();
    all(1.0).await;
    encrypted.more(6).await;
    fs::write(files.certificate(), &whole).unwrap();
    all(0.0).await;

    // Another authority, certificate and key. The client looks at its file, too.
    let other = TempDir::new().unwrap();
    let new = certificates(other.path(), &cluster);
    let both = [fs::read(files.authority()).unwrap(), fs::read(new.authority()).unwrap()].concat();
    fs::write(files.authority(), both).unwrap();
    fs::copy(new.certificate(), files.certificate()).unwrap();
    fs::copy(new.key(), files.key()).unwrap();
    let loaded = async || {
        cluster.nodes().iter().all(|node| node.log().contains("files that changed are in use")).then_some(())
    };
    until(SOON, "the new certificate is in use", loaded).await.unwrap();
    fs::copy(new.authority(), files.authority()).unwrap();
    works(&Client::connect_with(urls(&cluster, "https"), &trusting(files.authority())).unwrap(), "new").await;
    encrypted.more(6).await;

    plain.end().await;
    restart(&of_server(&files), false).await;
    encrypted.more(6).await;
    encrypted.end().await;
    let old = cluster.node(1).client();
    assert!(!matches!(old.metric(REFUSED).await, Ok(Some(_))), "no plain connection is answered");
    drop(dir);
}

#[tokio::test]
async fn options_that_contradict_each_other_are_refused() {
    let dir = TempDir::new().unwrap();
    let files = Certificates::new(dir.path(), "DNS:localhost").unwrap();
    let serve = async |more: &[String]| {
        let own = ["serve", "--check", "--id=1", "--data=/nowhere"].map(str::to_owned);
        let ended = run(PROGRAM, own.into_iter().chain(more.iter().cloned()), SOON).await.unwrap();
        (!ended.status.success()).then_some(ended.output)
    };
    let all = of_server(&files);
    assert_eq!(serve(&all).await, None);
    assert!(serve(&all[..1]).await.unwrap().contains("--tls-certificate and --tls-key require each other"));
    for (argument, named) in [
        ("--advertise-http=http://a:1", "must begin with https://"),
        ("--plain=accept --tls-client-authority=a", "--tls-client-authority refuses"),
    ] {
        let arguments = argument.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let refused = serve(&[all.clone(), arguments].concat()).await.unwrap();
        assert!(refused.contains(named), "{refused}");
    }
    let alone = "--tls-client-authority=a".to_owned();
    assert!(serve(&[alone]).await.unwrap().contains("requires --tls-certificate"));
}
