//! The dashboard in a real browser, over a real cluster: changes of leases show in the page, and actions in the page change
//! leases.

mod access;
mod following;
mod searching;
mod tables;
mod texts;
mod views;

use ringfence_harness::{Answered, Browser, Client, Cluster, Node, granted, try_once};
use ringfence_wire::{AcquireRequest, Grant, Holder, LeaseId, Ttl};

use crate::support::{PROGRAM, SOON};

/// A cluster, where a browser is installed.
async fn cluster() -> Option<Cluster> {
    match Browser::is_installed() {
        true => Some(Cluster::builder(PROGRAM).start().await.unwrap()),
        false => None,
    }
}

/// A browser with the dashboard of `node`, once it has drawn something.
async fn browse(node: &Node, hash: &str) -> Browser {
    let mut browser = Browser::start().await.unwrap();
    browser.open(&format!("{}/{hash}", node.url())).await;
    browser
        .until("document.querySelector('main h1') && !document.querySelector('#mode').matches(':empty')")
        .await;
    browser
}

/// The page has sent requests to this node alone, and the browser did not complain.
fn is_clean(browser: &Browser, node: &Node) {
    let own = format!("{}/", node.url());
    for request in browser.requests() {
        assert!(request.starts_with(&own), "the page of {own} asked for {request}");
    }
    assert!(browser.requests().len() > 10, "the page asked for little: {:?}", browser.requests());
    let is_serious = |text: &&String| !is_too_far_back(text) && !is_without_a_leader(text);
    let serious: Vec<_> = browser.complaints().iter().filter(is_serious).collect();
    assert!(serious.is_empty(), "{serious:#?}");
}

/// The page asks for the history of a key from further back than the node may keep it.
fn is_too_far_back(complaint: &str) -> bool {
    complaint.contains("/v1/watch?") && complaint.contains("410")
}

/// On a busy machine, another leader may be elected at any time.
fn is_without_a_leader(complaint: &str) -> bool {
    complaint.contains("/v1/")
        && ["503", "504"].iter().any(|status| complaint.contains(&format!("status of {status}")))
}

async fn acquire(client: &Client, wish: &AcquireRequest) -> Grant {
    granted(client, LeaseId::random(), wish).await
}

fn held_for(ttl_ms: u32, name: &str, holder: &str) -> AcquireRequest {
    let holder = Some(Holder::new(holder).unwrap());
    AcquireRequest { ttl_ms: Ttl::from_ms(ttl_ms).unwrap(), holder, ..try_once(name) }
}

/// The remaining share of the TTL of the lease in the first row, by the length of its bar.
const SHARE: &str =
    "Number(getComputedStyle(document.querySelector('.spacer .fill')).getPropertyValue('--share'))";

/// Runs the body of an async function in the page, and returns its result.
async fn run(browser: &mut Browser, script: &str) -> serde_json::Value {
    browser.evaluate(&format!("(async () => {{ {script} }})()")).await
}
