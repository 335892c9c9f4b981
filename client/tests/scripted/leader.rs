//! What a learned leader costs that hangs.

use std::cell::Cell;

use ringfence_client::{Client, LeaseId};
use tokio::time::timeout;

use crate::scripted::node::{SOON, ScriptedNode};

/// All of a call's time once went to a leader that the one configured node had named.
#[tokio::test]
async fn the_one_configured_node_is_asked_if_the_leader_that_it_named_hangs() {
    // A call fails after 5 s. A machine that stalls for that long is no failure of the client.
    for _ in 0..5 {
        let (configured, leader) = (ScriptedNode::new().await, ScriptedNode::new().await);
        let client = Client::connect([configured.url()]).unwrap();
        let header = format!("ringfence-leader: {}\r\n", leader.url());
        let hangs = Cell::new(false);
        let script = async {
            let _hangs = loop {
                tokio::select! {
                    request = leader.receive() => break request,
                    request = configured.receive() => request.respond_with("204 No Content", &header, "").await,
                }
            };
            leader.hang();
            hangs.set(true);
            configured.receive().await.respond("204 No Content", "").await;
            std::future::pending().await
        };
        let calls = async {
            loop {
                let released = timeout(SOON, client.release(LeaseId::random())).await.unwrap();
                if hangs.get() {
                    return released;
                }
                released.unwrap();
            }
        };
        let ended = tokio::select! {
            released = calls => released,
            () = script => unreachable!("the script has no end"),
        };
        if ended.is_ok() {
            return;
        }
    }
    panic!("the configured node was never asked");
}
