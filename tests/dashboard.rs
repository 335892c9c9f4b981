//! The dashboard in a real browser, over a real cluster: what is done to leases from outside is seen in the page, and what
//! is done in the page is done.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use ringfence_harness::{
    Acquired, Answered, Browser, Client, Cluster, Consistency, Node, key, try_once, wait_for,
};
use ringfence_wire::{AcquireRequest, Grant, Holder, LeaseId, Metadata, Ttl};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ringfence");
/// For what takes moments.
const SOON: Duration = Duration::from_secs(60);

/// A browser that shows the dashboard of `node`, once it has drawn something.
async fn browse(node: &Node, hash: &str) -> Browser {
    let mut browser = Browser::start().await.unwrap();
    browser.open(&format!("{}/{hash}", node.url())).await.unwrap();
    browser
        .until(
            SOON,
            "document.querySelector('main h1') && !document.querySelector('#mode').matches(':empty')",
        )
        .await
        .unwrap();
    browser
}

/// Nobody but this node was asked for anything, and the browser had nothing to complain of.
fn is_clean(browser: &Browser, node: &Node) {
    let own = format!("{}/", node.url());
    for request in browser.requests() {
        assert!(request.starts_with(&own), "the page of {own} asked for {request}");
    }
    assert!(browser.requests().len() > 10, "the page asked for little: {:?}", browser.requests());
    let serious: Vec<_> = browser.complaints().iter().filter(|text| !is_too_far_back(text)).collect();
    assert!(serious.is_empty(), "{serious:#?}");
}

/// The history of a key is looked for further back than the node may keep it.
fn is_too_far_back(complaint: &str) -> bool {
    complaint.contains("/v1/watch?") && complaint.contains("410")
}

async fn acquire(client: &Client, wish: &AcquireRequest) -> Grant {
    match client.acquire(LeaseId::random(), wish).await.done() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn held_for(ttl_ms: u32, name: &str, holder: &str) -> AcquireRequest {
    let holder = Some(Holder::new(holder).unwrap());
    AcquireRequest { ttl_ms: Ttl::from_ms(ttl_ms).unwrap(), holder, ..try_once(name) }
}

/// The share of its time that the lease in the first row of the list has left, by the length of its bar.
const SHARE: &str =
    "Number(getComputedStyle(document.querySelector('.spacer .fill')).getPropertyValue('--share'))";

#[tokio::test]
async fn a_lease_appears_counts_down_and_is_revoked_from_the_page() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let node = cluster.node(1);
    let mut browser = browse(node, "").await;
    browser
        .until(SOON, "document.querySelector('main').innerText.includes('Nobody holds a lock')")
        .await
        .unwrap();

    // Another node grants it; the page learns of it by itself.
    let client = cluster.node(2).client();
    let grant = acquire(&client, &held_for(600_000, "orders/42", "billing-7")).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.acquire(LeaseId::random(), &wait_for("orders/42", 60_000)).await.done() }
    });
    let row = format!(
        "(text => text.includes('orders/42') && text.includes('billing-7') && text.includes('{}'))\
         (document.querySelector('.spacer .row').innerText)",
        grant.token
    );
    browser.until(SOON, &row).await.unwrap();
    browser.until(SOON, "document.querySelector('.spacer .waiters').textContent === '1'").await.unwrap();
    browser.until(SOON, &format!("{SHARE} > 0.5 && {SHARE} <= 1")).await.unwrap();
    let before = browser.evaluate(SHARE).await.unwrap();
    browser.until(SOON, &format!("{SHARE} < {before}")).await.unwrap();

    browser.evaluate("document.querySelector('.spacer .row').click()").await.unwrap();
    let revoke = format!("document.querySelector('button[data-token=\"{}\"]')", grant.token);
    browser.until(SOON, &revoke).await.unwrap();
    browser.evaluate(&format!("{revoke}.click()")).await.unwrap();
    browser
        .until(SOON, "document.querySelector('dialog.revoke').innerText.includes('billing-7')")
        .await
        .unwrap();
    let is_disabled = "document.querySelector('dialog.revoke button.danger').disabled";
    assert_eq!(browser.evaluate(is_disabled).await.unwrap(), true);
    browser.write("orders/4").await.unwrap();
    assert_eq!(browser.evaluate(is_disabled).await.unwrap(), true);
    browser.press("Enter").await.unwrap();
    assert_eq!(holders(&client, "orders/42").await, [grant.token], "part of the key is not the key");
    browser.write("2").await.unwrap();
    assert_eq!(browser.evaluate(is_disabled).await.unwrap(), false);
    browser.press("Enter").await.unwrap();
    browser.until(SOON, "document.querySelector('dialog .result.good')").await.unwrap();
    let told = browser.evaluate("document.querySelector('dialog .result').textContent").await.unwrap();
    assert!(told.as_str().unwrap().contains(&format!("token {} is dead", grant.token)), "{told}");

    let Acquired::Granted(next) = waiting.await.unwrap() else {
        panic!("the next in the queue was not granted")
    };
    assert_eq!(holders(&client, "orders/42").await, [next.token]);
    let next_button = format!("document.querySelector('button[data-token=\"{}\"]')", next.token);
    browser.until(SOON, &format!("{next_button} && !{revoke}")).await.unwrap();

    // What has ended meanwhile cannot be revoked, and is told so.
    browser.press("Escape").await.unwrap();
    browser.evaluate(&format!("{next_button}.click()")).await.unwrap();
    client.revoke(&key("orders/42"), next.token).await.done();
    browser.write("orders/42").await.unwrap();
    browser.press("Enter").await.unwrap();
    browser
        .until(SOON, "document.querySelector('dialog .result.bad')?.textContent.includes('no longer live')")
        .await
        .unwrap();
    assert_eq!(browser.evaluate("document.querySelectorAll('dialog.revoke').length").await.unwrap(), 1);
    let serious = browser.complaints().iter().filter(|text| !text.contains("409") && !is_too_far_back(text));
    assert_eq!(serious.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[tokio::test]
async fn names_that_look_like_markup_stay_text() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let node = cluster.leader().await.unwrap();
    let client = node.client();
    let names = [
        "<img src=x onerror=\"window.harmed=1\">",
        "</a><script>window.harmed=1<\u{2f}script>",
        "\" onmouseover=\"window.harmed=1\" x=\"",
        "javascript:window.harmed=1",
        "%3Cimg%20src=x%20onerror=window.harmed=1%3E/?#&",
        "a\u{202e}gnp.b\u{200b}",
        "😀/\u{ffee}",
    ];
    for name in names {
        let metadata = Metadata::new([(name.to_owned(), name.to_owned())].into()).unwrap();
        acquire(&client, &AcquireRequest { metadata, ..held_for(600_000, name, name) }).await;
    }
    let mut browser = browse(node, "#/locks").await;
    let rows = names.len();
    browser
        .until(SOON, &format!("document.querySelectorAll('.spacer .row').length === {rows}"))
        .await
        .unwrap();
    for name in names {
        let literal = json!(name);
        let link = format!(
            "[...document.querySelectorAll('.spacer .key a')].find(link => link.title === {literal})"
        );
        browser.until(SOON, &link).await.unwrap();
        browser.evaluate(&format!("{link}.click()")).await.unwrap();
        browser.until(SOON, "document.querySelector('.one-key button.danger')").await.unwrap();
        // What is not seen, or turns the direction of what follows, is written out.
        let shown = name.replace('\u{202e}', "⟨U+202E⟩").replace('\u{200b}', "⟨U+200B⟩");
        let texts = "['h1', 'td .label', '.metadata li'].map(place => document.querySelector(`.one-key ${place}`).textContent)";
        let texts = browser.evaluate(texts).await.unwrap();
        assert_eq!(texts, json!([shown, shown, format!("{shown} {shown}")]));
        browser.evaluate("document.querySelector('button.danger').click()").await.unwrap();
        browser.press("Escape").await.unwrap();
        browser.press("Escape").await.unwrap();
        // To go back takes a moment.
        browser.until(SOON, "location.hash === '#/locks'").await.unwrap();
    }
    browser
        .evaluate(&format!("location.hash = '#/locks?prefix=' + encodeURIComponent({})", json!(names[0])))
        .await
        .unwrap();
    browser.until(SOON, "document.querySelectorAll('.spacer .row').length === 1").await.unwrap();
    browser
        .until(SOON, &format!("document.querySelector('#filter').value === {}", json!(names[0])))
        .await
        .unwrap();
    assert_eq!(browser.evaluate("typeof window.harmed").await.unwrap(), "undefined");
    assert_eq!(
        browser.evaluate("document.querySelectorAll('main img, main script').length").await.unwrap(),
        0
    );
    is_clean(&browser, node);
}

#[tokio::test]
async fn every_view_is_reached_by_keys_alone() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let node = cluster.leader().await.unwrap();
    let client = node.client();
    for name in ["a/1", "a/2", "b/1"] {
        acquire(&client, &try_once(name)).await;
    }
    let mut browser = browse(node, "").await;
    browser.until(SOON, "document.querySelectorAll('.spacer .row').length === 3").await.unwrap();

    browser.press("/").await.unwrap();
    browser.until(SOON, "document.activeElement.id === 'filter'").await.unwrap();
    browser.write("a/").await.unwrap();
    browser.until(SOON, "location.hash === '#/locks?prefix=a%2F'").await.unwrap();
    browser.until(SOON, "document.querySelectorAll('.spacer .row').length === 2").await.unwrap();
    browser.press("Escape").await.unwrap();
    browser.press("j").await.unwrap();
    browser.press("ArrowDown").await.unwrap();
    browser.press("k").await.unwrap();
    browser.press("ArrowDown").await.unwrap();
    let chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).innerText.includes('a/2')";
    browser.until(SOON, chosen).await.unwrap();
    browser.press("Enter").await.unwrap();
    browser
        .until(SOON, "document.title.startsWith('a/2') && document.activeElement.tagName === 'H1'")
        .await
        .unwrap();
    browser.press("Escape").await.unwrap();
    browser
        .until(SOON, "document.title.startsWith('Locks') && location.hash === '#/locks?prefix=a%2F'")
        .await
        .unwrap();
    browser.press("2").await.unwrap();
    browser.until(SOON, "document.title.startsWith('Cluster') && document.querySelectorAll('.members tbody tr').length === 3").await.unwrap();
    browser.until(SOON, "document.querySelector('.own').innerText.includes('Disk flush')").await.unwrap();
    browser.press("3").await.unwrap();
    browser
        .until(SOON, "document.querySelector('main').innerText.includes('No mirror is kept')")
        .await
        .unwrap();
    browser.press("?").await.unwrap();
    browser.until(SOON, "document.querySelector('#help').open").await.unwrap();
    browser.press("Escape").await.unwrap();
    browser.until(SOON, "!document.querySelector('#help').open").await.unwrap();
    browser.press("Escape").await.unwrap();
    browser.until(SOON, "document.title.startsWith('Cluster')").await.unwrap();
    is_clean(&browser, node);
}

#[tokio::test]
async fn of_ten_thousand_keys_only_those_on_the_screen_are_in_the_page() {
    const KEYS: usize = 10_000;
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let node = cluster.leader().await.unwrap();
    let names: Vec<String> = (0..KEYS).map(|number| format!("many/{number:05}")).collect();
    for chunk in names.chunks(1_000) {
        let operations: Vec<_> = chunk
            .iter()
            .map(|name| json!({ "acquire": { "lease_id": LeaseId::random(), "keys": [name], "ttl_ms": 86_400_000 } }))
            .collect();
        let body = json!({ "operations": operations }).to_string();
        assert_eq!(node.client().raw("POST", "/v1/batch", body).await.unwrap().status, 200);
    }
    let mut browser = browse(node, "#/locks").await;
    browser
        .until(SOON, "document.querySelector('.summary').textContent.startsWith('10,000 keys ')")
        .await
        .unwrap();
    let rows = "document.querySelectorAll('.spacer .row').length";
    for (key, name) in [("End", "many/09999"), ("Home", "many/00000")] {
        browser.press(key).await.unwrap();
        browser
            .until(SOON, &format!("document.querySelector('.row.selected').innerText.includes('{name}')"))
            .await
            .unwrap();
        let many = browser.evaluate(rows).await.unwrap().as_u64().unwrap();
        assert!((10..100).contains(&many), "{many} rows are elements");
    }
    // Page by page, each key comes by.
    let seen = browser.evaluate(
        "(async () => {
            const body = document.querySelector('.rows');
            const seen = new Set();
            for (let top = 0; top < body.scrollHeight; top += body.clientHeight) {
                body.scrollTop = top;
                await new Promise(requestAnimationFrame);
                for (const link of document.querySelectorAll('.spacer .key a')) seen.add(link.title);
            }
            return seen.size;
        })()",
    );
    assert_eq!(seen.await.unwrap(), KEYS);
    let heap = browser.heap_bytes().await.unwrap();
    eprintln!("with {KEYS} keys the page's objects take {:.1} MB", heap as f64 / 1e6);
    is_clean(&browser, node);
}

#[tokio::test]
async fn without_a_quorum_time_stands_still_and_the_page_recovers_by_itself() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let node = cluster.node(1);
    acquire(&node.client(), &held_for(3_600_000, "orders/42", "billing-7")).await;
    let mut browser = browse(node, "").await;
    browser
        .until(SOON, "document.querySelector('.spacer .row').innerText.includes('billing-7')")
        .await
        .unwrap();
    for other in cluster.others(1) {
        other.kill().unwrap();
    }
    let mode = |word: &str| format!("document.querySelector('#mode').textContent === '{word}'");
    browser.until(SOON, &mode("no leader")).await.unwrap();
    browser.until(SOON, "!document.querySelector('#banner').hidden").await.unwrap();
    let share = browser.evaluate(SHARE).await.unwrap();
    browser
        .until(SOON, "document.querySelector('.spacer .row').innerText.includes('billing-7')")
        .await
        .unwrap();
    assert_eq!(browser.evaluate(&format!("{SHARE} >= {share}")).await.unwrap(), true);

    // What is opened only now shows what this node has.
    browser.evaluate("location.hash = '#/key/orders%2F42'").await.unwrap();
    browser
        .until(SOON, "document.querySelector('.one-key td .label').textContent === 'billing-7'")
        .await
        .unwrap();
    browser.evaluate("location.hash = '#/locks'").await.unwrap();
    browser
        .until(SOON, "document.querySelector('.spacer .row').innerText.includes('billing-7')")
        .await
        .unwrap();

    node.kill().unwrap();
    browser.until(SOON, &mode("no connection")).await.unwrap();
    browser.until(SOON, "document.querySelectorAll('#banner a').length === 2").await.unwrap();

    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    browser.until(SOON, "document.querySelector('#banner').hidden").await.unwrap();
    browser.until(SOON, &format!("{} || {}", mode("live"), mode("polling"))).await.unwrap();
    acquire(&node.client(), &held_for(3_600_000, "orders/43", "reports")).await;
    browser.until(SOON, "document.querySelectorAll('.spacer .row').length === 2").await.unwrap();
}

/// The tokens of those who hold a key.
async fn holders(client: &Client, name: &str) -> Vec<ringfence_wire::Token> {
    let view = client.key(&key(name), Consistency::Linearizable).await.done();
    view.holders.iter().map(|holder| holder.token).collect()
}
