//! What a leader that was learnt, and then hangs, costs.

use ringfence_client::{Client, LeaseId};

use crate::played::node::{Played, SOON};

/// All of a call's time went to a leader that the one URL of the client had named.
#[tokio::test]
async fn the_one_node_that_was_given_has_its_turn_when_the_leader_it_named_hangs() {
    // A call gives up after 5 s: a machine that stands still for as long is no failure of the client.
    for _ in 0..5 {
        let (given, leader) = (Played::new().await, Played::new().await);
        let client = Client::connect([given.url()]).unwrap();
        let named = async {
            let url = leader.url();
            let head =
                format!("HTTP/1.1 204 No Content\r\nconnection: close\r\nringfence-leader: {url}\r\n\r\n");
            given.asked().await.say(&head).await;
        };
        let (released, ()) = tokio::join!(client.release(LeaseId::random()), named);
        released.unwrap();
        let play = async {
            let _hangs = leader.asked().await;
            given.asked().await.answer("204 No Content", "").await;
            std::future::pending().await
        };
        let ended = tokio::select! {
            released = tokio::time::timeout(SOON, client.release(LeaseId::random())) => released.unwrap(),
            () = play => unreachable!("it plays for ever"),
        };
        if ended.is_ok() {
            return;
        }
    }
    panic!("the given node is never asked");
}
