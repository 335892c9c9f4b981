//! How an acquire ends that finds nothing definite.

use std::cell::Cell;
use std::time::Duration;

use ringfence_client::{Client, Error, Loss};
use tokio::time::timeout;

use crate::played::node::{Asked, Played, SOON};

fn lease_id(asked: &Asked) -> &str {
    asked.path.strip_prefix("/v1/leases/").and_then(|path| path.split('/').next()).unwrap()
}

fn problem(name: &str, status: u16, more: &str) -> String {
    format!(
        r#"{{"type":"urn:ringfence:problem:{name}","title":"t","status":{status},"detail":"d","reason":{more}}}"#
    )
}

/// It was told that nothing was done, and left its place behind.
#[tokio::test]
async fn who_stood_in_the_queue_and_finds_no_leader_any_more_gives_the_place_back() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let play = async {
        let first = node.asked().await;
        let lease_id = lease_id(&first).to_owned();
        let place = format!(r#"{{"lease_id":"{lease_id}","state":"waiting","ahead":0}}"#);
        first.answer("202 Accepted", &place).await;
        loop {
            let asked = node.asked().await;
            match asked.method.as_str() {
                "PUT" => asked.answer("503 Unavailable", &problem("unavailable", 503, "null")).await,
                method => return assert_eq!((method, self::lease_id(&asked)), ("DELETE", &*lease_id)),
            }
        }
    };
    let ((), acquired) = tokio::join!(play, client.lock("a").wait(Duration::from_millis(500)).acquire());
    let unknown = acquired.unwrap_err();
    assert!(matches!(unknown, Error::Unknown { lease_id: Some(_), .. }), "{unknown:?}");
}

/// It asked for one lease after the other, without a pause and for ever.
#[tokio::test]
async fn an_acquire_of_leases_that_end_before_they_can_be_confirmed_comes_to_an_end() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let granted = Cell::new(0);
    let play = async {
        loop {
            let asked = node.asked().await;
            match asked.method.as_str() {
                "PUT" => {
                    granted.set(granted.get() + 1);
                    let grant = format!(
                        r#"{{"lease_id":"{}","state":"granted","token":7,"holder":null,"ttl_ms":100,"expires_in_ms":1,"keys":[]}}"#,
                        lease_id(&asked)
                    );
                    asked.answer("201 Created", &grant).await;
                }
                "POST" => asked.answer("410 Gone", &problem("lease-gone", 410, r#""expired""#)).await,
                _ => asked.answer("204 No Content", "").await,
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
        () = play => unreachable!("it plays for ever"),
    };
    assert_eq!(lost, Error::Lost(Loss::Unconfirmed));
    assert!(granted.get() < 40, "{} leases within some seconds", granted.get());
}
