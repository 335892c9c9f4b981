//! How the page follows the cluster.

use ringfence_harness::{Consistency, key, until};
use serde_json::json;

use super::*;

#[tokio::test]
#[ignore = "slow"]
async fn changes_from_before_the_page_was_opened_are_marked_as_earlier() {
    let Some(cluster) = cluster().await else { return };
    let client = cluster.node(1).client().patient();
    acquire(&client, &held_for(600_000, "orders/42", "billing-7")).await;
    let mut browser = browse(cluster.node(1), "#/cluster").await;
    // The watch waits until the test opens the gate.
    let hold = "
        const real = window.fetch;
        const gate = new Promise((open) => { window.openGate = open; });
        window.fetch = async (url, options) => {
            if (url.startsWith('v1/watch')) await gate;
            return real(url, options);
        };
        location.hash = '#/key/orders%2F42';
    ";
    run(&mut browser, hold).await;
    browser.until("document.querySelector('.one-key button.danger')").await;
    let view = client.key(&key("orders/42"), Consistency::Linearizable).await.done();
    client.revoke(&key("orders/42"), view.holders[0].token).await.done();
    browser.until("document.querySelector('.one-key').innerText.includes('Nobody holds this key')").await;
    browser.evaluate("openGate()").await;
    let seen = "[...document.querySelectorAll('.history tbody tr')].map(row => row.lastChild.textContent === 'earlier')";
    browser.until(&format!("{seen}.length === 2")).await;
    assert_eq!(browser.evaluate(seen).await, json!([false, true]));
}

/// A new leader skips revisions. The page once asked for what followed one of those, and showed only what came later.
#[tokio::test]
async fn the_history_of_a_key_goes_back_beyond_a_change_of_leaders() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).first_revision(None).start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let mut before = Vec::new();
    for name in ["orders/42", "orders/43"] {
        let grant = acquire(&client, &held_for(600_000, name, "billing-7")).await;
        client.release(grant.lease_id).await.done();
        before.push(grant.token.0);
    }
    let former = cluster.leader().await.unwrap().id();
    let changes = || async {
        cluster.node(1).client().raw("POST", "/v1/cluster/transfer", "").await.ok()?;
        (cluster.leader().await.ok()?.id() != former).then_some(())
    };
    until(SOON, "another leads", changes).await.unwrap();
    let after = acquire(&client, &held_for(600_000, "orders/42", "reports")).await.token.0;
    assert!(after > before[1] + 16_384, "{after} is no further from {before:?} than the page looks back");

    let mut browser = browse(cluster.node(1), "#/key/orders%2F42").await;
    let seen = |rows: &[&str]| {
        let names =
            "[...document.querySelectorAll('.history tbody tr')].map(row => row.children[1].textContent)";
        format!("JSON.stringify({names}) === '{}'", json!(rows))
    };
    browser.until(&seen(&["granted", "released", "granted"])).await;
    browser.evaluate("location.hash = '#/key/orders%2F43'").await;
    browser.until(&seen(&["released", "granted"])).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_watch_that_was_cut_off_resumes_and_lists_are_read_again_with_backoff() {
    let Some(cluster) = cluster().await else { return };
    let mut browser = browse(cluster.node(1), "#/cluster").await;
    // The first four watches find that their history is gone. Records when each was opened.
    let refuse = "
        window.asked = [];
        const real = window.fetch;
        window.fetch = async (url, options) => {
            if (!url.startsWith('v1/watch')) return real(url, options);
            asked.push(performance.now());
            return asked.length > 4 ? real(url, options) : new Response('', { status: 410 });
        };
        location.hash = '#/locks';
    ";
    run(&mut browser, refuse).await;
    let is_live = "document.querySelector('#mode').textContent === 'live'";
    browser.until(&format!("asked.length === 5 && {is_live}")).await;
    let gaps = browser.evaluate("[2, 3, 4].map(place => asked[place] - asked[place - 1])").await;
    for (gap, at_least_ms) in gaps.as_array().unwrap().iter().zip([0.0, 999.0, 1_999.0]) {
        assert!(gap.as_f64().unwrap() >= at_least_ms, "{gaps}");
    }

    // A watch that was cut off resumes after its last event, and reads no list.
    let script = "
        const { follow } = await import('/dashboard/watch.js');
        const [real, asked, enough] = [window.fetch, [], new AbortController()];
        let lists = 0;
        const text = 'id: 7\\n\\nevent: cut-off\\ndata: {}\\n\\n';
        window.fetch = async (url, options) => {
            if (!url.includes('prefix=these')) return real(url, options);
            asked.push([new URLSearchParams(url.split('?')[1]).get('after'), lists]);
            if (asked.length === 2) enough.abort();
            options.signal.throwIfAborted();
            return new Response(text, { headers: { 'content-type': 'text/event-stream' } });
        };
        const load = async () => { lists += 1; return 5; };
        await follow({ prefix: 'these', load, changed: () => {}, live: () => {}, signal: enough.signal }).catch(() => {});
        return asked;
    ";
    assert_eq!(run(&mut browser, script).await, json!([["5", 1], ["7", 1]]));
}

#[tokio::test]
#[ignore = "slow"]
async fn without_a_quorum_times_freeze_and_the_page_recovers_by_itself() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.node(1);
    acquire(&node.client().patient(), &held_for(3_600_000, "orders/42", "billing-7")).await;
    let mut browser = browse(node, "").await;
    browser.until("document.querySelector('.spacer .row').innerText.includes('billing-7')").await;
    for other in cluster.others(1) {
        other.kill().unwrap();
    }
    let mode = |word: &str| format!("document.querySelector('#mode').textContent === '{word}'");
    browser.until(&mode("no leader")).await;
    browser.until("!document.querySelector('#banner').hidden").await;
    let share = browser.evaluate(SHARE).await;
    browser.until("document.querySelector('.spacer .row').innerText.includes('billing-7')").await;
    assert_eq!(browser.evaluate(&format!("{SHARE} >= {share}")).await, true);
    // Drawing again for another reason, here a failed read, shows the same time.
    let left = "document.querySelector('.spacer .left').textContent";
    let before = browser.evaluate(left).await;
    let reads =
        "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/v1/keys?')).length";
    let many = browser.evaluate(reads).await;
    browser.until(&format!("{reads} > {many} + 1")).await;
    browser.evaluate("document.querySelector('.rows').dispatchEvent(new Event('scroll'))").await;
    assert_eq!(browser.evaluate(left).await, before);

    // A view that is opened only now shows this node's state.
    browser.evaluate("location.hash = '#/key/orders%2F42'").await;
    browser.until("document.querySelector('.one-key td .label').textContent === 'billing-7'").await;
    browser.evaluate("location.hash = '#/locks'").await;
    browser.until("document.querySelector('.spacer .row').innerText.includes('billing-7')").await;

    node.kill().unwrap();
    browser.until(&mode("no connection")).await;
    browser.until("document.querySelectorAll('#banner a').length === 2").await;

    cluster.all_ready().await.unwrap();
    browser.until("document.querySelector('#banner').hidden").await;
    browser.until(&format!("{} || {}", mode("live"), mode("polling"))).await;
    acquire(&node.client().patient(), &held_for(3_600_000, "orders/43", "reports")).await;
    browser.until("document.querySelectorAll('.spacer .row').length === 2").await;
}
