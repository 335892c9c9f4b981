//! How a release without a definite outcome ends.

use ringfence_client::wire::EndReason;
use ringfence_client::{Client, Error, LeaseId, Loss};

use crate::scripted::node::{SOON, ScriptedNode};

/// It was once abandoned after some seconds, contrary to the error.
#[tokio::test]
async fn a_release_with_an_unknown_outcome_is_repeated_in_the_background() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease_id = LeaseId::random();
    let script = async {
        loop {
            node.receive().await.respond("502 Bad Gateway", "").await;
        }
    };
    let released = tokio::select! {
        released = client.release(lease_id) => released,
        () = script => unreachable!("the script has no end"),
    };
    let unknown = released.unwrap_err();
    assert!(matches!(unknown, Error::Unknown { lease_id: Some(id), .. } if id == lease_id), "{unknown:?}");
    let again = node.receive().await;
    assert_eq!((again.method.as_str(), again.path.clone()), ("DELETE", format!("/v1/leases/{lease_id}")));
    again.respond("204 No Content", "").await;
    assert_eq!(client.close(SOON).await, 0);
}

/// The cluster once responded 204: nobody learned that the work had gone on without a lease.
#[tokio::test]
async fn a_release_of_a_lease_that_has_ended_reports_how_and_is_not_repeated() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease_id = LeaseId::random();
    let gone = r#"{"type":"urn:ringfence:problem:lease-gone","title":"","status":410,"detail":"","reason":"revoked"}"#;
    let (released, ()) = tokio::join!(client.release(lease_id), async {
        node.receive().await.respond("410 Gone", gone).await;
    });
    assert_eq!(released, Err(Error::Lost(Loss::Ended(EndReason::Revoked))));
    assert_eq!(client.close(SOON).await, 0);
}
