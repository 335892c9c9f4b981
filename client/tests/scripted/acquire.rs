//! How an acquire without a definite outcome ends.

use std::cell::Cell;
use std::time::{Duration, Instant};

use ringfence_client::{Client, Error, Loss};
use tokio::time::timeout;

use crate::scripted::node::{Received, SOON, ScriptedNode};

fn lease_id(request: &Received) -> &str {
    request.path.strip_prefix("/v1/leases/").and_then(|path| path.split('/').next()).unwrap()
}

fn problem(name: &str, status: u16, more: &str) -> String {
    format!(
        r#"{{"type":"urn:ringfence:problem:{name}","title":"t","status":{status},"detail":"d","reason":{more}}}"#
    )
}

/// The error was once that nothing was done, and the place stayed behind.
#[tokio::test]
async fn an_acquire_that_times_out_without_a_leader_gives_its_place_back() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let script = async {
        let first = node.receive().await;
        let lease_id = lease_id(&first).to_owned();
        let place = format!(r#"{{"lease_id":"{lease_id}","state":"waiting","ahead":0}}"#);
        first.respond("202 Accepted", &place).await;
        loop {
            let request = node.receive().await;
            match request.method.as_str() {
                "PUT" => request.respond("503 Unavailable", &problem("unavailable", 503, "null")).await,
                method => return assert_eq!((method, self::lease_id(&request)), ("DELETE", &*lease_id)),
            }
        }
    };
    let ((), acquired) = tokio::join!(script, client.lock("a").wait(Duration::from_millis(500)).acquire());
    let unknown = acquired.unwrap_err();
    assert!(matches!(unknown, Error::Unknown { lease_id: Some(_), .. }), "{unknown:?}");
}

/// It once acquired one lease after the other, without a pause and for ever.
#[tokio::test]
async fn an_acquire_ends_even_if_each_lease_ends_before_it_is_confirmed() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let granted = Cell::new(0);
    let script = async {
        loop {
            let request = node.receive().await;
            match request.method.as_str() {
                "PUT" => {
                    granted.set(granted.get() + 1);
                    let grant = format!(
                        r#"{{"lease_id":"{}","state":"granted","token":7,"holder":null,"ttl_ms":100,"expires_in_ms":1,"keys":[]}}"#,
                        lease_id(&request)
                    );
                    request.respond("201 Created", &grant).await;
                }
                "POST" => request.respond("410 Gone", &problem("lease-gone", 410, r#""expired""#)).await,
                _ => request.respond("204 No Content", "").await,
            }
        }
    };
    let wait = Duration::from_millis(300);
    let ends = async {
        let timed_out = timeout(SOON, client.lock("a").wait(wait).acquire()).await.unwrap();
        assert_eq!(timed_out.unwrap_err(), Error::TimedOut { waited: wait });
        timeout(SOON, client.lock("a").try_acquire()).await.unwrap().unwrap_err()
    };
    let lost = tokio::select! {
        lost = ends => lost,
        () = script => unreachable!("the script has no end"),
    };
    assert_eq!(lost, Error::Lost(Loss::Unconfirmed));
    assert!(granted.get() < 40, "{} leases within some seconds", granted.get());
}

/// It once was an error at once, or asked again after some milliseconds.
#[tokio::test]
async fn an_acquire_waits_for_as_long_as_a_429_asks_for() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    for (name, again) in [("overloaded", 1), ("rate-limited", 1), ("overloaded", 0)] {
        let script = async {
            let put = node.receive().await;
            put.respond_with("429 X", "retry-after: 1\r\n", &problem(name, 429, "null")).await;
            let asked = Instant::now();
            if again > 0 {
                let put = node.receive().await;
                assert!(asked.elapsed() >= Duration::from_secs(1), "{name}");
                let id = lease_id(&put);
                let grant = format!(
                    r#"{{"lease_id":"{id}","state":"granted","token":7,"holder":null,"ttl_ms":60000,"expires_in_ms":60000,"keys":[]}}"#
                );
                put.respond("201 Created", &grant).await;
            }
        };
        let wait = Duration::from_secs(60 * again);
        let ((), acquired) = tokio::join!(script, client.lock("a").wait(wait).no_renew().acquire());
        match acquired {
            Ok(lease) if again > 0 => drop(lease.into_id()),
            Err(Error::Rejected(_)) if again == 0 => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}
