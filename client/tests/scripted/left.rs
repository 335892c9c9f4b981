//! How many leases a closed client has left.

use std::time::Duration;

use ringfence_client::{Client, Error};
use tokio::sync::oneshot;

use crate::scripted::close::{acquired, grant, id, is_delete};
use crate::scripted::node::{SOON, ScriptedNode};

const FORBIDDEN: &str = r#"{"type":"urn:ringfence:problem:forbidden","title":"","status":403,"detail":""}"#;

/// The shorter close cuts off releases, and the longer one does not do them.
#[tokio::test]
async fn each_of_two_closes_says_what_was_left() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease = acquired(&node, &client, true).await;
    let (longer, shorter) = tokio::join!(client.close(SOON), client.close(Duration::from_millis(100)));
    assert_eq!((longer, shorter), (1, 1));
    drop(lease);
}

/// A refused release does not count as a release.
#[tokio::test]
async fn a_lease_whose_release_is_refused_is_left() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease = acquired(&node, &client, true).await;
    let (left, ()) = tokio::join!(client.close(SOON), async {
        node.receive().await.respond("403 Forbidden", FORBIDDEN).await;
    });
    assert_eq!(left, 1);
    drop(lease);
}

#[tokio::test]
async fn a_release_by_the_holder_that_takes_too_long_or_is_refused_is_left() {
    for by_id in [false, true] {
        let node = ScriptedNode::new().await;
        let client = Client::connect([node.url()]).unwrap();
        let lease = acquired(&node, &client, true).await;
        let releasing = client.clone();
        tokio::spawn(async move {
            match by_id {
                true => releasing.release(lease.into_id()).await,
                false => lease.release().await,
            }
        });
        let _hangs = node.receive().await;
        assert_eq!(client.close(Duration::from_millis(100)).await, 1);
    }
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease_id = acquired(&node, &client, true).await.into_id();
    let (released, left, ()) = tokio::join!(client.release(lease_id), client.close(SOON), async {
        node.receive().await.respond("403 Forbidden", FORBIDDEN).await;
    });
    assert!(matches!(released, Err(Error::Rejected(_))), "{released:?}");
    assert_eq!(left, 1);
}

/// The holder goes on with the release, and may be done before the longer of two closes.
#[tokio::test]
async fn a_release_that_outlasts_a_close_counts_for_another_as_it_ends() {
    for by_id in [false, true] {
        for (status, body, left) in [("204 No Content", "", 0), ("403 Forbidden", FORBIDDEN, 1)] {
            let node = ScriptedNode::new().await;
            let client = Client::connect([node.url()]).unwrap();
            let lease = acquired(&node, &client, true).await;
            let releasing = client.clone();
            tokio::spawn(async move {
                match by_id {
                    true => releasing.release(lease.into_id()).await,
                    false => lease.release().await,
                }
            });
            let request = node.receive().await;
            let (cut_off, is_cut_off) = oneshot::channel();
            let (longer, shorter, ()) = tokio::join!(
                client.close(SOON),
                async {
                    let shorter = client.close(Duration::from_millis(100)).await;
                    cut_off.send(()).unwrap();
                    shorter
                },
                async {
                    is_cut_off.await.unwrap();
                    request.respond(status, body).await;
                }
            );
            assert_eq!((longer, shorter), (left, 1), "{status}");
        }
    }
}

/// The lease once counted as left already, and a second time if its release failed, too.
#[tokio::test]
async fn a_lease_that_could_not_be_kept_is_left_once_unless_it_is_released() {
    for (status, body, left) in [("204 No Content", "", 0), ("403 Forbidden", FORBIDDEN, 1)] {
        let node = ScriptedNode::new().await;
        let client = Client::connect([node.url()]).unwrap();
        drop(acquired(&node, &client, true).await);
        let other = node.receive().await;
        let lock = client.lock("b").ttl(Duration::from_secs(600)).hold_at_least(Duration::from_secs(2));
        let (lease, id) = tokio::join!(lock.acquire(), async {
            let put = node.receive().await;
            let id = id(&put);
            grant(put).await;
            id
        });
        let (closed, ()) = tokio::join!(client.close(SOON), async {
            let keep = node.receive().await;
            assert_eq!(keep.path, format!("/v1/leases/{id}/renew"));
            keep.respond("403 Forbidden", FORBIDDEN).await;
            let release = node.receive().await;
            is_delete(&release, &id);
            release.respond(status, body).await;
            other.respond("204 No Content", "").await;
        });
        assert_eq!(closed, left, "{status}");
        drop(lease);
    }
}
