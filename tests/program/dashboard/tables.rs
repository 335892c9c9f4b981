//! The table of keys.

use std::ops::Range;

use ringfence_harness::until;
use ringfence_wire::BatchAnswer;
use serde_json::json;

use super::*;

/// A table of `most` keys, with `page` and `tell` to feed it a node's answers and events.
const TABLE: &str = "
    const { KeyTable, START } = await import('/dashboard/key_table.js');
    const view = (key, revision, token) => ({ key, fence: token, revision, waiters: [],
        holders: [{ token, holder: null, mode: 'exclusive', limit: null, ttl_ms: 9000, expires_in_ms: 9000, metadata: {} }] });
    const hex = (key) => [...new TextEncoder().encode(key)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    const page = (revision, isBefore, ...tokens) => ({ revision, next: isBefore && `${revision}.${hex(tokens.at(-1)[0])}`,
        keys: tokens.map(([key, token, at = revision]) => view(key, at, token)) });
    const table = (most = 100) => {
        const it = new KeyTable(most);
        it.tell = (name, revision, key, token = revision) => it.apply(
            { name, revision, token, holder: null, keys: [{ key, mode: 'exclusive', fence: token }] }, 0, () => false);
        it.say = () => it.keys.map((key) => key + (it.entry(key).ended ? ' ended' : '')).join(' ');
        return it;
    };
";

#[tokio::test]
#[ignore = "slow"]
async fn a_page_does_not_undo_newer_events() {
    let Some(cluster) = cluster().await else { return };
    let mut browser = browse(cluster.node(1), "").await;
    let mut says = async |script: &str| run(&mut browser, &format!("{TABLE} {script}")).await;

    // A grant that is newer than the page.
    let granted = "const keys = table(); keys.take(START, page(10, null, ['a', 1]), 0, () => true);
        keys.tell('granted', 15, 'b'); keys.take(START, page(10, null, ['a', 1]), 0, () => true); return keys.say()";
    assert_eq!(says(granted).await, "a b");
    let first = "const keys = table(); keys.take(START, page(10, null), 0, () => true);
        keys.tell('granted', 15, 'b'); keys.take(START, page(10, null), 0, () => true);
        const before = keys.say(); keys.take(START, page(16, null), 0, () => true); return [before, keys.say()]";
    assert_eq!(says(first).await, json!(["b", "b ended"]));
    // An end that is newer than the page: no later event repeats it.
    let released = "const keys = table(); keys.take(START, page(10, null, ['a', 1], ['b', 2]), 0, () => false);
        keys.tell('released', 15, 'b', 2); keys.take(START, page(10, null, ['a', 1], ['b', 2]), 0, () => false);
        return keys.say()";
    assert_eq!(says(released).await, "a");
    // Later pages have the revision of the first; their keys have their own.
    let later =
        "const keys = table(); const mark = keys.take(START, page(10, 'x', ['a', 1]), 0, () => false);
        keys.take(mark, page(10, null, ['b', 2], ['c', 3]), 0, () => false); keys.tell('granted', 15, 'd');
        keys.take(mark, page(10, null, ['c', 3, 20]), 0, () => true); return keys.say()";
    assert_eq!(says(later).await, "a b ended c d ended");
}

#[tokio::test]
#[ignore = "slow"]
async fn a_table_keeps_the_first_keys() {
    let Some(cluster) = cluster().await else { return };
    let mut browser = browse(cluster.node(1), "").await;
    let mut says = async |script: &str| run(&mut browser, &format!("{TABLE} {script}")).await;

    let told = "const keys = table(3); keys.take(START, page(10, null, ['b', 1], ['d', 2]), 0, () => false);
        keys.tell('granted', 11, 'e'); keys.tell('granted', 12, 'a'); keys.tell('granted', 13, 'f');
        const many = [keys.say(), keys.complete]; keys.tell('released', 14, 'a', 12); keys.tell('granted', 15, 'e');
        return [...many, keys.say()]";
    assert_eq!(says(told).await, json!(["a b d", false, "b d"]));
    // A list that is read again ends where reading stopped, though the one before went further.
    let read =
        "const keys = table(3); const mark = keys.take(START, page(10, 'x', ['c', 1]), 0, () => false);
        keys.take(mark, page(10, null, ['d', 2], ['e', 3]), 0, () => false);
        const end = keys.take(START, page(20, 'y', ['a', 11], ['b', 12]), 0, () => false);
        keys.cut(end.last); return [keys.say(), keys.complete, keys.mark('z').last]";
    assert_eq!(says(read).await, json!(["a b", false, "b"]));
}

#[tokio::test]
#[ignore = "slow"]
async fn only_the_visible_keys_of_ten_thousand_are_in_the_page() {
    const KEYS: usize = 10_000;
    let Some(cluster) = cluster().await else { return };
    let node = cluster.leader().await.unwrap();
    hold_many(node, 0..KEYS).await;
    let mut browser = browse(node, "#/locks").await;
    browser.until("document.querySelector('.summary').textContent.startsWith('10,000 keys ')").await;
    let rows = "document.querySelectorAll('.spacer .row').length";
    for (key, name) in [("End", "many/09999"), ("Home", "many/00000")] {
        browser.press(key).await;
        browser.until(&format!("document.querySelector('.row.selected').innerText.includes('{name}')")).await;
        let many = browser.evaluate(rows).await.as_u64().unwrap();
        assert!((10..100).contains(&many), "{many} rows are elements");
    }
    // Scrolling shows every key. On a busy machine that takes minutes.
    let scroll = "
        const [body, spacer] = ['.rows', '.spacer'].map((name) => document.querySelector(name));
        const bottom = (element) => element.getBoundingClientRect().bottom;
        const isDrawn = () => [...spacer.children].some((row) => bottom(row) > Math.min(bottom(body), bottom(spacer)) - 8);
        const seen = window.seen = new Set();
        const show = async () => {
            for (let top = 0; top < body.scrollHeight; top += body.clientHeight) {
                body.scrollTop = top;
                do await new Promise(requestAnimationFrame); while (!isDrawn());
                for (const link of spacer.querySelectorAll('.key a')) seen.add(link.title);
            }
        };
        show();
    ";
    run(&mut browser, scroll).await;
    for many in (1..=KEYS).step_by(KEYS / 100).chain([KEYS]) {
        browser.until(&format!("seen.size >= {many}")).await;
    }
    assert_eq!(browser.evaluate("seen.size").await, KEYS);
    let heap = browser.heap_bytes().await;
    eprintln!("with {KEYS} keys the page's objects take {:.1} MB", heap as f64 / 1e6);
    is_clean(&browser, node);

    // With more keys than it shows, the page shows the first.
    let all = "document.querySelector('.summary').textContent.startsWith('the first 20,000 keys; a prefix finds more')";
    hold_many(node, KEYS..2 * KEYS + 500).await;
    browser.until(all).await;
    // When the history is gone, as many are read again, and later changes show.
    let watch = "
        window.gone = { wanted: 0, answered: 0 };
        const real = window.fetch;
        window.fetch = async (url, options) => {
            if (!url.startsWith('v1/watch')) return real(url, options);
            if (gone.answered < gone.wanted) return gone.answered += 1, new Response('', { status: 410 });
            const cut = window.watch = new AbortController();
            return real(url, { ...options, signal: AbortSignal.any([options.signal, cut.signal]) });
        };
        location.hash = '#/cluster';
    ";
    run(&mut browser, watch).await;
    browser.until("document.title.startsWith('Cluster')").await;
    browser.evaluate("location.hash = '#/locks'").await;
    let is_live = "document.querySelector('#mode').textContent === 'live'";
    browser.until(&format!("watch && {is_live} && {all}")).await;
    browser.evaluate("gone.wanted = 1; watch.abort()").await;
    browser.until(&format!("gone.answered === 1 && {is_live} && {all}")).await;
    acquire(&node.client().patient(), &try_once("earlier")).await;
    browser.until("document.querySelector('.spacer .row').innerText.includes('earlier')").await;
}

/// Acquires leases of the keys with these numbers, for a day.
async fn hold_many(node: &Node, numbers: Range<usize>) {
    let names: Vec<String> = numbers.map(|number| format!("many/{number:05}")).collect();
    for chunk in names.chunks(1_000) {
        let operations: Vec<_> = chunk
            .iter()
            .map(|name| json!({ "acquire": { "lease_id": LeaseId::random(), "keys": [name], "ttl_ms": 86_400_000 } }))
            .collect();
        let body = json!({ "operations": operations }).to_string();
        let hold = async || {
            let answer = node.client().raw("POST", "/v1/batch", body.clone()).await.ok()?;
            let answer: BatchAnswer = serde_json::from_slice(&answer.body).ok()?;
            answer.results.iter().all(|result| result.status < 300).then_some(())
        };
        until(SOON, "all are held", hold).await.unwrap();
    }
}
