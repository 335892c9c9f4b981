//! Nodes that answer for another cluster.

use ringfence_client::{Client, Error, LeaseId};
use tokio::time::timeout;

use crate::scripted::node::{Received, SOON, ScriptedNode};

const OWN: &str = "ringfence-cluster: 00000000-0000-4000-8000-00000000000a\r\n";
const OTHER: &str = "ringfence-cluster: 00000000-0000-4000-8000-00000000000b\r\n";

async fn grants(put: Received, headers: &str) {
    let lease_id = put.path.strip_prefix("/v1/leases/").unwrap();
    let grant = format!(
        r#"{{"lease_id":"{lease_id}","state":"granted","token":7,"holder":null,"ttl_ms":60000,"expires_in_ms":60000,"keys":[]}}"#
    );
    put.respond_with("201 Created", headers, &grant).await;
}

/// It once went on there, and ran its command under a lease of the other cluster.
#[tokio::test]
async fn a_leader_that_answers_for_another_cluster_is_never_asked() {
    let (own, other) = (ScriptedNode::new().await, ScriptedNode::with_headers(OTHER).await);
    let client = Client::connect([own.url()]).unwrap();
    let headers = format!("{OWN}ringfence-leader: {}\r\n", other.url());
    for calls in 1.. {
        let (released, ()) = tokio::join!(client.release(LeaseId::random()), async {
            own.receive().await.respond_with("204 No Content", &headers, "").await;
        });
        released.unwrap();
        if calls == 1 {
            // It has asked who is there.
            other.connections(1).await;
        }
        if calls == 10 {
            break;
        }
        tokio::task::yield_now().await;
    }
    tokio::select! {
        biased;
        stranger = other.receive() => panic!("it was asked for {} {}", stranger.method, stranger.path),
        () = tokio::task::yield_now() => {}
    }
}

#[tokio::test]
async fn a_grant_of_another_cluster_is_none_and_the_put_is_repeated() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let (released, ()) = tokio::join!(client.release(LeaseId::random()), async {
        node.receive().await.respond_with("204 No Content", OWN, "").await;
    });
    released.unwrap();
    let acquired = tokio::spawn(client.lock("a").no_renew().try_acquire());
    let put = node.receive().await;
    let path = put.path.clone();
    grants(put, OTHER).await;
    // It has answered a probe. Nothing was sent to take the other grant back: that might end this one.
    let put = node.receive().await;
    assert_eq!((put.method.as_str(), &put.path), ("PUT", &path));
    grants(put, OWN).await;
    timeout(SOON, acquired).await.unwrap().unwrap().unwrap().into_id();
}

#[tokio::test]
#[ignore = "slow"]
async fn the_error_says_which_node_answers_for_which_cluster() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let script = async {
        node.receive().await.respond_with("204 No Content", OWN, "").await;
        loop {
            node.receive().await.respond_with("204 No Content", OTHER, "").await;
        }
    };
    let calls = async {
        client.release(LeaseId::random()).await.unwrap();
        let mut watch = client.watch("");
        (client.release(LeaseId::random()).await.unwrap_err(), watch.next().await.unwrap_err())
    };
    let (released, watched) = tokio::select! {
        errors = calls => errors,
        () = script => unreachable!("the script has no end"),
    };
    for error in [released, watched] {
        let Error::Unavailable { why } = error else { panic!("{error:?}") };
        assert!(
            why.contains(&node.url()) && why.contains("-00000000000b") && why.contains("-00000000000a"),
            "{why}"
        );
    }
}
