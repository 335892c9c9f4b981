//! Principals over the Redis protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError, cmd};
use ringfence_access::Credential;
use ringfence_harness::until;
use tokio::net::TcpStream;

use super::guarded::{guarded_on, new};
use crate::support::{ALL, SOON, Secured, cluster, rules_of};

async fn started(rules: &str) -> Secured {
    guarded_on(cluster().nodes(1).resp().lay_out().await.unwrap(), rules, &[]).await
}

async fn connect(
    guarded: &Secured,
    login: Option<(&str, &str)>,
) -> Result<MultiplexedConnection, RedisError> {
    let port = guarded.cluster.node(1).resp();
    let connect = async || TcpStream::connect(port).await.ok();
    let stream = until(SOON, "the port is open", connect).await.unwrap();
    let stream = guarded.shake_hands(stream, port.ip()).await.unwrap();
    let info = RedisConnectionInfo::default();
    let info = match login {
        Some(("", password)) => info.set_password(password),
        Some((name, password)) => info.set_username(name).set_password(password),
        None => info,
    };
    let (mut connection, driver) =
        MultiplexedConnection::new_with_config(&info, stream, AsyncConnectionConfig::new()).await?;
    tokio::spawn(driver);
    connection.set_response_timeout(SOON);
    Ok(connection)
}

async fn call(client: &mut MultiplexedConnection, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let reply = cmd(words[0]).arg(&words[1..]).query_async::<Option<String>>(client).await;
    match reply {
        Ok(reply) => reply.unwrap_or_else(|| "nil".to_owned()),
        Err(error) => format!("-{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
    }
}

#[tokio::test]
async fn locks_belong_to_the_principal_that_logged_in_and_rules_count_at_once() {
    let [ann, bob, nobody]: [Credential; 3] = [new(), new(), new()];
    let limited = format!("{}\nlimits = {{ leases = 1 }}", ALL);
    let rules = rules_of("ann", &ann, &limited)
        + &rules_of("bob", &bob, "allow = [{ keys = \"b/\", may = [\"acquire\"] }]");
    let guarded = started(&rules).await;

    for (name, credential) in [("", &nobody), ("bob", &ann), ("carl", &ann)] {
        let refused = connect(&guarded, Some((name, credential.reveal()))).await;
        let error = refused.map(|_| "logged in").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{name:?}: {error}");
    }
    let mut stranger = connect(&guarded, None).await.unwrap();
    assert!(call(&mut stranger, "SET a v NX PX 60000").await.starts_with("-NOAUTH"));
    assert_eq!(call(&mut stranger, "PING").await, "PONG");

    let mut ann_s = connect(&guarded, Some(("default", ann.reveal()))).await.unwrap();
    let mut bob_s = connect(&guarded, Some(("bob", bob.reveal()))).await.unwrap();
    assert_eq!(call(&mut ann_s, "SET b/1 v NX PX 60000").await, "OK");
    let quota = call(&mut ann_s, "SET b/2 v NX PX 60000").await;
    assert!(quota.starts_with("-OOM") && quota.contains("all the 1 leases"), "{quota}");
    // Bob knows the value, but the lease is Ann's.
    assert_eq!(call(&mut bob_s, "GET b/1").await, "ringfence:held-by-another");
    assert_eq!(call(&mut bob_s, "RINGFENCE.TOKEN b/1 v").await, "nil");
    assert!(call(&mut bob_s, "DEL b/1").await.contains("held over HTTP or by another principal"));
    assert!(
        call(&mut bob_s, "SET a v NX PX 60000")
            .await
            .starts_with("-NOPERM this requires the right `acquire` on the key a, which bob")
    );
    assert!(
        call(&mut bob_s, "HGET ringfence:{b/1} token")
            .await
            .starts_with("-NOPERM this requires the right `read`")
    );
    let token: u64 = call(&mut ann_s, "HGET ringfence:{b/1} token").await.parse().unwrap();
    assert!(token > 0);

    guarded.replace_rules(&rules_of("bob", &bob, ALL)).await;
    assert!(call(&mut ann_s, "DEL b/1").await.starts_with("-NOAUTH the credential is not valid"));
    assert_eq!(call(&mut bob_s, "SET a v NX PX 60000").await, "OK");
    let log = guarded.cluster.node(1).log();
    assert!(log.contains("a request was denied") && log.contains("command=\"set\""), "{log}");
    assert!(!log.contains(ann.reveal()) && !log.contains(bob.reveal()), "{log}");
}

#[tokio::test]
async fn strangers_who_send_too_much_keep_no_principal_from_logging_in() {
    let ann: Credential = new();
    let rules = rules_of("ann", &ann, ALL) + "[anonymous]\nlimits = { requests-per-s = 1 }\n";
    let guarded = started(&rules).await;
    let refused = Arc::new(AtomicU32::new(0));
    for _ in 0..20 {
        let (mut stranger, refused) = (connect(&guarded, None).await.unwrap(), Arc::clone(&refused));
        tokio::spawn(async move {
            loop {
                let is_too_fast = call(&mut stranger, "PING").await.contains("requests per second");
                refused.fetch_add(is_too_fast.into(), Relaxed);
            }
        });
    }
    let many = async || (refused.load(Relaxed) > 20).then_some(());
    until(SOON, "strangers are refused", many).await.unwrap();
    for _ in 0..10 {
        let mut principal = connect(&guarded, Some(("ann", ann.reveal()))).await.unwrap();
        assert_eq!(call(&mut principal, "SET a v XX PX 60000").await, "nil");
    }
}

/// Over RESP, a request that was denied once counted nowhere, and nobody was held back.
#[tokio::test]
async fn requests_that_are_denied_count_alike_over_http_and_resp() {
    let ann: Credential = new();
    let rules = "allow = [{ keys = \"*\", may = [\"validate\"] }]\nlimits = { requests-per-s = 5 }";
    let guarded = started(&rules_of("ann", &ann, rules)).await;
    let mut client = connect(&guarded, Some(("ann", ann.reveal()))).await.unwrap();
    for is_http in [true, false] {
        let (mut denied, mut limited) = (0, 0);
        // On a busy machine, many are further apart than the limit asks for.
        while (denied < 20 || limited < 10) && denied < 5_000 {
            let answer = match is_http {
                true => {
                    guarded.send("GET", "/v1/keys/accounts/1", Some(ann.reveal()), None).await.0.to_string()
                }
                false => call(&mut client, "GET accounts/1").await,
            };
            match &answer {
                answer if answer == "403" || answer.starts_with("-NOPERM") => denied += 1,
                answer if answer == "429" || answer.contains("ann may send 5 requests") => limited += 1,
                other => panic!("{other}"),
            }
        }
        assert!(limited >= 10, "{limited} of {denied} at HTTP: {is_http}");
    }
}
