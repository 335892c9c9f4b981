//! Candidates.

use std::time::Duration;

use futures_util::FutureExt;
use ringfence_client::wire::EndReason;
use ringfence_client::{Client, Error, Lease, Loss, State, Token};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::scripted::node::{Received, SOON, ScriptedNode};

/// The errors of a program.
#[derive(Debug, PartialEq, thiserror::Error)]
enum Failure {
    #[error("of the work")]
    Work,
    #[error(transparent)]
    Client(#[from] Error),
}

const GONE: &str =
    r#"{"type":"urn:ringfence:problem:lease-gone","title":"","status":410,"detail":"","reason":"revoked"}"#;

fn id(request: &Received) -> String {
    request.path.split('/').nth(3).unwrap().to_owned()
}

async fn elect(node: &ScriptedNode, token: u64) -> String {
    let put = node.receive().await;
    assert_eq!(put.method, "PUT", "{}", put.path);
    let id = id(&put);
    let grant = format!(
        r#"{{"lease_id":"{id}","state":"granted","token":{token},"holder":null,"ttl_ms":600000,"expires_in_ms":600000,"keys":[{{"key":"a","mode":"exclusive","limit":null,"fence":{token}}}]}}"#
    );
    put.respond("201 Created", &grant).await;
    id
}

async fn released(node: &ScriptedNode, lease_id: &str, status: &str, body: &str) {
    let request = node.receive().await;
    assert_eq!((request.method.as_str(), &*id(&request)), ("DELETE", lease_id));
    request.respond(status, body).await;
}

async fn candidate() -> (ScriptedNode, Client) {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    (node, client)
}

#[tokio::test]
async fn work_that_ends_while_it_leads_ends_the_campaign_whether_it_succeeds_or_fails() {
    let (node, client) = candidate().await;
    for result in [Ok(7), Err(Failure::Work)] {
        let expected = match result {
            Ok(number) => Ok(number),
            Err(_) => Err(Failure::Work),
        };
        let mut result = Some(result);
        let leads = client.lock("a").lead(|_| std::future::ready(result.take().unwrap()));
        let (led, ()) = tokio::join!(leads, async {
            let id = elect(&node, 1).await;
            released(&node, &id, "204 No Content", "").await;
        });
        assert_eq!(led, expected);
    }
}

/// The result of a former leader is not what the leader has done.
#[tokio::test]
async fn a_candidate_stands_again_after_a_loss_whatever_its_work_returned() {
    let revoked = || Failure::Client(Error::Lost(Loss::Ended(EndReason::Revoked)));
    for (first, reported) in [(Ok(1), revoked()), (Err(Failure::Work), Failure::Work)] {
        let (node, client) = candidate().await;
        let (mut results, mut tokens, mut errors) = (vec![Ok(2), first], Vec::new(), Vec::new());
        let work = |lease: Lease| {
            tokens.push(lease.token());
            std::future::ready(results.pop().unwrap())
        };
        let leads = client.lock("a").lead_reporting(work, |error| errors.push(error));
        let (led, ()) = tokio::join!(leads, async {
            let id = elect(&node, 1).await;
            released(&node, &id, "410 Gone", GONE).await;
            let id = elect(&node, 2).await;
            released(&node, &id, "204 No Content", "").await;
        });
        assert_eq!(led, Ok(2));
        assert_eq!((tokens, errors), (vec![Token(1), Token(2)], vec![reported]));
    }
}

/// What was begun under a lease that is lost must not go on.
#[tokio::test]
async fn the_work_of_a_leader_is_dropped_when_its_lease_is_lost() {
    let (node, client) = candidate().await;
    let (mut terms, mut errors) = (0, Vec::new());
    let work = |_| {
        terms += 1;
        let is_first = terms == 1;
        async move {
            if is_first {
                return std::future::pending().await;
            }
            Ok::<_, Failure>(())
        }
    };
    let lock = client.lock("a").max_hold(Duration::from_secs(3));
    let leads = lock.lead_reporting(work, |error| errors.push(error));
    let (led, ()) = tokio::join!(leads, async {
        let id = elect(&node, 1).await;
        released(&node, &id, "204 No Content", "").await;
        let id = elect(&node, 2).await;
        released(&node, &id, "204 No Content", "").await;
    });
    assert_eq!((led, terms), (Ok(()), 2));
    assert_eq!(errors, [Failure::Client(Error::Lost(Loss::MaxHold))]);
}

#[tokio::test]
async fn a_token_that_a_guard_found_stale_is_a_loss() {
    let (node, client) = candidate().await;
    let (told, mut losses) = mpsc::unbounded_channel();
    let mut errors = Vec::new();
    let work = |lease: Lease| {
        let (lost, told) = (lease.lost(), told.clone());
        async move {
            if lease.token() == Token(1) {
                tokio::spawn(async move { told.send(lost.await) });
                return Err(lease.stale());
            }
            Ok(())
        }
    };
    let leads = client.lock("a").lead_reporting(work, |error| errors.push(error));
    let (led, ()) = tokio::join!(leads, async {
        let id = elect(&node, 1).await;
        released(&node, &id, "204 No Content", "").await;
        let id = elect(&node, 2).await;
        released(&node, &id, "204 No Content", "").await;
    });
    assert_eq!((led, errors), (Ok(()), vec![Error::Lost(Loss::Stale)]));
    assert_eq!(losses.recv().await, Some(Loss::Stale), "all that work under the lease learn of it");
}

#[tokio::test]
async fn a_candidate_that_is_dropped_releases_what_it_leads_with() {
    let (node, client) = candidate().await;
    let leads = client.lock("a").lead(|_| std::future::pending::<Result<(), Error>>());
    let leads = tokio::spawn(leads);
    let id = elect(&node, 1).await;
    leads.abort();
    released(&node, &id, "204 No Content", "").await;
    assert!(leads.await.unwrap_err().is_cancelled());
    assert_eq!(client.close(SOON).await, 0);
}

/// Tasks that the work has spawned may have a copy of its handle.
#[tokio::test]
async fn the_lease_of_a_term_ends_with_it_wherever_the_work_has_left_its_handle() {
    let (node, client) = candidate().await;
    let mut kept = None;
    let leads = client.lock("a").lead(|lease| {
        kept = Some(lease);
        std::future::ready(Ok::<_, Error>(()))
    });
    let (led, ()) = tokio::join!(leads, async {
        let id = elect(&node, 1).await;
        released(&node, &id, "204 No Content", "").await;
    });
    assert_eq!((led, kept.unwrap().state()), (Ok(()), State::Lost(Loss::Ended(EndReason::Released))));
    assert_eq!(client.close(SOON).await, 0);
}

/// The release once counted as a loss: the work was dropped and begun again, for ever.
#[tokio::test]
async fn work_that_releases_its_lease_goes_on_to_its_end_and_is_over() {
    for gives_up in [false, true] {
        let (node, client) = candidate().await;
        let mut terms = 0;
        let work = |lease: Lease| {
            terms += 1;
            async move {
                if gives_up {
                    assert!(lease.release().now_or_never().is_none(), "it goes on in the background");
                } else {
                    lease.release().await?;
                }
                tokio::task::yield_now().await;
                Ok::<_, Error>(7)
            }
        };
        let (led, ()) = tokio::join!(client.lock("a").lead(work), async {
            let id = elect(&node, 1).await;
            released(&node, &id, "204 No Content", "").await;
        });
        assert_eq!((led, terms), (Ok(7), 1));
        assert_eq!(client.close(SOON).await, 0, "nothing is released twice");
    }
}

/// Such work once went on for ever.
#[tokio::test]
async fn work_that_has_released_its_lease_ends_with_the_client() {
    let (node, client) = candidate().await;
    let (was_released, mut is_released) = mpsc::unbounded_channel();
    let work = async |lease: Lease| {
        was_released.send(lease.release().await).unwrap();
        std::future::pending::<Result<(), Error>>().await
    };
    let (led, left, ()) = tokio::join!(
        timeout(SOON, client.lock("a").lead(work)),
        async {
            assert_eq!(is_released.recv().await, Some(Ok(())));
            client.close(SOON).await
        },
        async {
            let id = elect(&node, 1).await;
            released(&node, &id, "204 No Content", "").await;
        }
    );
    assert_eq!((led, left), (Ok(Err(Error::Closed)), 0));
}

#[tokio::test]
async fn the_copy_of_the_work_leaves_no_lease_to_its_id() {
    let (node, client) = candidate().await;
    let (left, mut is_left) = mpsc::unbounded_channel();
    let work = |lease: Lease| {
        left.send(lease.into_id()).unwrap();
        std::future::pending::<Result<(), Error>>()
    };
    let (led, closed, ()) = tokio::join!(
        client.lock("a").lead(work),
        async { (is_left.recv().await, client.close(SOON).await) },
        async {
            let id = elect(&node, 1).await;
            released(&node, &id, "204 No Content", "").await;
        }
    );
    assert_eq!((led, closed.1), (Err(Error::Closed), 0));
}

#[tokio::test]
async fn a_candidate_that_is_one_too_many_stands_again() {
    let (node, client) = candidate().await;
    for kind in ["overloaded", "rate-limited"] {
        let limited =
            format!(r#"{{"type":"urn:ringfence:problem:{kind}","title":"","status":429,"detail":""}}"#);
        // A node asks for a pause of a second, for which there is no time.
        let leads = client.lock("a").wait(Duration::from_millis(500)).lead(async |_| Ok::<_, Error>(()));
        let (led, ()) = tokio::join!(leads, async {
            node.receive().await.respond("429 Too Many Requests", &limited).await;
            let id = elect(&node, 1).await;
            released(&node, &id, "204 No Content", "").await;
        });
        assert_eq!(led, Ok(()));
    }
}

#[tokio::test]
async fn a_candidate_ends_with_an_error_that_no_repeat_mends() {
    let (_node, client) = candidate().await;
    let work = async |_| Ok::<_, Error>(());
    let refused = client.lock("").lead(work).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    client.close(SOON).await;
    assert_eq!(client.lock("a").lead(work).await, Err(Error::Closed));
}
