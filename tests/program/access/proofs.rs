//! How a principal shows who it is.

use std::fs;

use ringfence_access::Credential;
use ringfence_client::{Client, Error, Tls};
use ringfence_harness::{Certificates, HttpConnection, run};
use ringfence_wire::ProblemKind;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::guarded::{answer, guarded, new};
use crate::support::{PROGRAM, SOON, file_of, rules_of};

#[tokio::test]
async fn a_principal_is_shown_by_a_certificate_or_a_credential_but_never_over_a_plain_connection() {
    let of_client = TempDir::new().unwrap();
    let own = Certificates::new(of_client.path(), "DNS:worker.example").unwrap();
    let other = new();
    let rules = format!(
        "[principals.worker]\ncertificates = [\"dns:worker.example\"]\ncluster = [\"observe\"]\n{}",
        rules_of("other", &other, "cluster = [\"metrics\"]")
    );
    let authority = format!("--tls-client-authority={}", own.authority().display());
    let guarded = guarded(&rules, &[&authority, "--plain=accept"]).await;
    let url = format!("https://{}", guarded.cluster.node(1).http());
    let connect = |certificate: bool, credential: Option<&Credential>| {
        let tls = Tls {
            authority: Some(guarded.path("authority.pem")),
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
    let http = guarded.cluster.node(1).http();
    let plain = HttpConnection::over(TcpStream::connect(http).await.unwrap(), http, Some(other.reveal()));
    let (status, said) = answer(plain, "GET", "/metrics", None).await;
    assert!(status == 401 && said.contains("plain connection"), "{status}: {said}");
    let refused = Client::connect_with(
        [format!("http://{}", guarded.cluster.node(1).http())],
        &Tls {
            credential: Some(ringfence_client::Credential::new(other.reveal()).unwrap()),
            ..Tls::default()
        },
    );
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn the_command_line_makes_and_uses_a_credential_and_its_commands_do_not_inherit_it() {
    let (_dir, file) = file_of("worker.credential");
    let digest =
        run(PROGRAM, ["access", "credential", "--file", file.to_str().unwrap()], SOON).await.unwrap().output;
    let secret = fs::read_to_string(&file).unwrap().trim().to_owned();
    let rules = format!(
        "[principals.worker]\ncredentials = [\"{}\"]\nallow = [{{ keys = \"a/\", may = [\"acquire\"] }}]\n",
        digest.trim()
    );
    let guarded = guarded(&rules, &[]).await;
    let rules = guarded.path("access.toml");
    let checked = run(PROGRAM, ["access", "check", rules.to_str().unwrap()], SOON).await.unwrap().output;
    assert!(checked.ends_with("is valid\n"), "{checked}");
    let called = |arguments: &[&str]| {
        let mut command = std::process::Command::new(PROGRAM);
        command.args(arguments).env("RINGFENCE_CREDENTIAL", &secret);
        command.env("RINGFENCE_URLS", format!("https://{}", guarded.cluster.node(1).http()));
        let output = command.env("RINGFENCE_AUTHORITY", guarded.path("authority.pem")).output().unwrap();
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
