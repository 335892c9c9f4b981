//! What a learned leader costs that hangs.

use ringfence_client::{Client, LeaseId};

use crate::scripted::node::{SOON, ScriptedNode};

/// All of a call's time once went to a leader that the one configured node had named.
#[tokio::test]
async fn the_one_configured_node_is_asked_if_the_leader_that_it_named_hangs() {
    // A call fails after 5 s. A machine that stalls for that long is no failure of the client.
    for _ in 0..5 {
        let (configured, leader) = (ScriptedNode::new().await, ScriptedNode::new().await);
        let client = Client::connect([configured.url()]).unwrap();
        let named = async {
            let url = leader.url();
            let head =
                format!("HTTP/1.1 204 No Content\r\nconnection: close\r\nringfence-leader: {url}\r\n\r\n");
            configured.receive().await.write(&head).await;
        };
        let (released, ()) = tokio::join!(client.release(LeaseId::random()), named);
        released.unwrap();
        let script = async {
            let _hangs = leader.receive().await;
            configured.receive().await.respond("204 No Content", "").await;
            std::future::pending().await
        };
        let ended = tokio::select! {
            released = tokio::time::timeout(SOON, client.release(LeaseId::random())) => released.unwrap(),
            () = script => unreachable!("the script has no end"),
        };
        if ended.is_ok() {
            return;
        }
    }
    panic!("the configured node was never asked");
}
