//! How an operator finds a key among many, and what the dashboard shows beside a key.

use ringfence_harness::{key, wait_for};
use ringfence_wire::{Mode, WantedKey};
use serde_json::json;
use tokio::task::JoinHandle;

use super::*;

/// The keys in the list, from the top.
const KEYS: &str = "[...document.querySelectorAll('.spacer .row')].sort((one, other) => one.ariaRowIndex - other.ariaRowIndex)\
    .map((row) => row.querySelector('.key').textContent)";

async fn lists(browser: &mut Browser, keys: &[&str]) {
    browser.until(&format!("JSON.stringify({KEYS}) === '{}'", json!(keys))).await;
}

/// Puts a value into an input of the list, as if somebody typed or chose it.
async fn set(browser: &mut Browser, input: &str, value: &str) {
    let script = format!(
        "(() => {{ const input = document.querySelector('#{input}'); input.value = '{value}';
            for (const name of ['input', 'change']) input.dispatchEvent(new Event(name)); }})()"
    );
    browser.evaluate(&script).await;
}

/// Waits for a key until the task is aborted.
fn wait(client: &Client, name: &str) -> JoinHandle<()> {
    let (client, wish) = (client.clone(), wait_for(name, 60_000));
    tokio::spawn(async move {
        loop {
            drop(client.acquire(LeaseId::random(), &wish).await);
        }
    })
}

#[tokio::test]
async fn keys_are_found_by_a_part_of_their_name_by_holder_and_by_who_waits() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.node(1);
    let client = node.client().patient();
    for (name, holder) in [("hot/other", "shop-2"), ("hot/flash-sale", "shop-1"), ("cold/a", "billing-7")] {
        acquire(&client, &held_for(600_000, name, holder)).await;
    }
    let mut waiting = vec![wait(&client, "hot/flash-sale"), wait(&client, "hot/flash-sale")];
    let last = wait(&client, "hot/other");
    let mut browser = browse(node, "").await;
    lists(&mut browser, &["cold/a", "hot/flash-sale", "hot/other"]).await;
    for (find, found) in [
        ("flash", &["hot/flash-sale"][..]),
        ("billing", &["cold/a"]),
        ("shop", &["hot/flash-sale", "hot/other"]),
    ] {
        set(&mut browser, "find", find).await;
        lists(&mut browser, found).await;
        assert_eq!(browser.evaluate("location.hash").await, format!("#/locks?find={find}"));
    }
    set(&mut browser, "find", "no such").await;
    browser.until("document.querySelector('.empty')?.textContent.includes('no such')").await;
    set(&mut browser, "find", "").await;

    set(&mut browser, "sort", "held").await;
    lists(&mut browser, &["hot/other", "hot/flash-sale", "cold/a"]).await;
    set(&mut browser, "sort", "waiters").await;
    browser.until(&format!("({KEYS})[0] === 'hot/flash-sale' && ({KEYS})[1] === 'hot/other'")).await;

    browser.evaluate("document.querySelector('#contended').click()").await;
    lists(&mut browser, &["hot/flash-sale", "hot/other"]).await;
    // The list shows changes: a key that gets a waiter appears, with its holder. One that loses its waiter is not called ended.
    waiting.push(wait(&client, "cold/a"));
    lists(&mut browser, &["hot/flash-sale", "cold/a", "hot/other"]).await;
    browser.until("document.querySelector('.spacer').innerText.includes('billing-7')").await;
    last.abort();
    let shown = "document.querySelector('.spacer').innerText";
    run(&mut browser, &format!(
        "window.told = []; new MutationObserver(() => told.push({shown})).observe(document.querySelector('.spacer'), \
         {{ childList: true, subtree: true, characterData: true }})"
    ))
    .await;
    lists(&mut browser, &["hot/flash-sale", "cold/a"]).await;
    assert_eq!(browser.evaluate("told.some((text) => text.includes('ended'))").await, false);
    // The URL keeps the search and the order.
    browser.evaluate("location.reload()").await;
    browser.until("document.querySelector('#sort')?.value === 'waiters'").await;
    lists(&mut browser, &["hot/flash-sale", "cold/a"]).await;
    waiting.into_iter().for_each(|waiter| waiter.abort());
    is_clean(&browser, node);
}

#[tokio::test]
async fn the_other_keys_of_a_lease_stand_beside_it_and_in_the_question_whether_to_revoke_it() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.node(1);
    let client = node.client().patient();
    let long = format!("tenants/{}/b", "x".repeat(200));
    let keys: Vec<_> =
        [long.as_str(), "orders/2"].map(|name| WantedKey { key: key(name), mode: Mode::Exclusive }).into();
    acquire(&client, &AcquireRequest { keys, ..held_for(600_000, "orders/2", "me") }).await;
    acquire(&client, &held_for(600_000, "alone", "me")).await;
    let mut browser = browse(node, &format!("#/key/{}", long.replace('/', "%2F"))).await;
    browser.until("document.querySelector('td .keys a')?.textContent === 'orders/2'").await;
    browser.resize(390, 800).await;
    let fits = "document.querySelector('.path').scrollWidth <= document.querySelector('.path').clientWidth \
        && document.querySelector('main').scrollWidth <= 390";
    browser.until(fits).await;
    browser.evaluate("document.querySelector('button.danger').click()").await;
    browser.until("document.querySelector('dialog .keys')?.textContent === 'orders/2'").await;
    browser.evaluate("location.hash = '#/key/alone'").await;
    browser.until("document.title.startsWith('alone') && document.querySelector('button.danger')").await;
    browser.evaluate("document.querySelector('button.danger').click()").await;
    browser.until("document.querySelector('dialog') && !document.querySelector('dialog .keys')").await;
    is_clean(&browser, node);
}

#[tokio::test]
async fn the_page_claims_no_more_than_stands_there() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.node(1);
    let mut browser = browse(node, "#/cluster").await;
    browser.until("document.querySelector('#mode').textContent === 'every 2 s'").await;
    for other in cluster.others(1) {
        other.kill().unwrap();
    }
    let banner = "document.querySelector('#banner').textContent";
    browser.until(&format!("{banner}.includes('was read before')")).await;
    browser.evaluate("location.hash = '#/locks'").await;
    browser.until(&format!("{banner}.includes('no leader') && !{banner}.includes('read before')")).await;
}
