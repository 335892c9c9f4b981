//! How a release ends that finds nothing definite.

use ringfence_client::wire::EndReason;
use ringfence_client::{Client, Error, LeaseId, Loss};
use tokio::time::timeout;

use crate::played::node::{Played, SOON};

/// It was given up after some seconds, against what the error says.
#[tokio::test]
async fn a_release_whose_outcome_is_unknown_goes_on_in_the_background() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease_id = LeaseId::random();
    let blind = async {
        loop {
            node.asked().await.answer("502 Bad Gateway", "").await;
        }
    };
    let released = tokio::select! {
        released = client.release(lease_id) => released,
        () = blind => unreachable!("it is blind for ever"),
    };
    let unknown = released.unwrap_err();
    assert!(matches!(unknown, Error::Unknown { lease_id: Some(id), .. } if id == lease_id), "{unknown:?}");
    let again = node.asked().await;
    assert_eq!((again.method.as_str(), again.path.clone()), ("DELETE", format!("/v1/leases/{lease_id}")));
    again.answer("204 No Content", "").await;
    timeout(SOON, client.settle()).await.unwrap();
}

/// The cluster said 204: nobody learnt that the work had gone on without a lease.
#[tokio::test]
async fn a_release_of_a_lease_that_has_ended_says_how_and_is_not_repeated() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease_id = LeaseId::random();
    let gone = r#"{"type":"urn:ringfence:problem:lease-gone","title":"","status":410,"detail":"","reason":"revoked"}"#;
    let (released, ()) = tokio::join!(client.release(lease_id), async {
        node.asked().await.answer("410 Gone", gone).await;
    });
    assert_eq!(released, Err(Error::Lost(Loss::Ended(EndReason::Revoked))));
    timeout(SOON, client.settle()).await.unwrap();
}
