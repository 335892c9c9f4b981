//! The dashboard in a real browser, over a real cluster: what is done to leases from outside is seen in the page, and what
//! is done in the page is done.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::Range;
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
    let lease = LeaseId::random();
    let Acquired::Granted(grant) =
        client.acquire(lease, &held_for(600_000, "orders/42", "billing-7")).await.done()
    else {
        panic!("a free key was not granted")
    };
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
    // A renewal that changes nothing but times is seen in both.
    client.renew(lease, Some(Ttl::from_ms(86_400_000).unwrap())).await.done();
    for left in ["dialog .left", "td .left"] {
        let is_long = format!("document.querySelector('{left}').textContent.startsWith('23:59:')");
        browser.until(SOON, &is_long).await.unwrap();
    }
    browser.until(SOON, "document.querySelector('.one-key table').innerText.includes('24 h')").await.unwrap();
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
    let result = "document.querySelector('dialog.revoke').innerText";
    let told = browser.evaluate(result).await.unwrap();
    assert!(told.as_str().unwrap().contains("Nothing was revoked"), "{told}");

    // A try whose answer was lost may have been done, whatever the next one is told.
    browser.press("Escape").await.unwrap();
    let last = acquire(&client, &held_for(600_000, "orders/42", "billing-8")).await;
    let lose = "
        const real = window.fetch;
        window.fetch = async (url, options) => {
            const answer = await real(url, options);
            if (url !== 'v1/revoke') return answer;
            window.fetch = real;
            throw new TypeError('lost');
        };
    ";
    run(&mut browser, lose).await;
    let last_button = format!("document.querySelector('button[data-token=\"{}\"]')", last.token);
    browser.until(SOON, &last_button).await.unwrap();
    browser.evaluate(&format!("{last_button}.click()")).await.unwrap();
    browser.write("orders/42").await.unwrap();
    browser.press("Enter").await.unwrap();
    browser.until(SOON, &format!("{result}.includes('may or may not have been done')")).await.unwrap();
    assert_eq!(holders(&client, "orders/42").await, []);
    browser.press("Enter").await.unwrap();
    browser.until(SOON, &format!("{result}.includes('is dead')")).await.unwrap();
    let told = browser.evaluate(result).await.unwrap();
    assert!(!told.as_str().unwrap().contains("Nothing was"), "{told}");
    // Whoever goes elsewhere leaves the dialog behind.
    browser.evaluate("history.back()").await.unwrap();
    browser
        .until(SOON, "document.title.startsWith('Locks') && !document.querySelector('dialog.revoke')")
        .await
        .unwrap();
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
async fn no_two_texts_of_clients_are_written_alike() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let mut browser = browse(cluster.node(1), "").await;
    let script = "
        const { visible } = await import('/dashboard/text.js');
        return ['a b', ' a', 'a  b ', 'a␣', 'a\\u00a0b', 'a\\u2003b', 'a\\ufe0f', 'a\\u3164', 'a\\u2800', '⟨U+202E⟩', 'ä😀'].map(visible);
    ";
    let shown = json!([
        "a b",
        "␣a",
        "a␣ b␣",
        "a⟨U+2423⟩",
        "a⟨U+00A0⟩b",
        "a⟨U+2003⟩b",
        "a⟨U+FE0F⟩",
        "a⟨U+3164⟩",
        "a⟨U+2800⟩",
        "⟨U+27E8⟩U+202E⟩",
        "ä😀"
    ]);
    assert_eq!(run(&mut browser, script).await, shown);
}

#[tokio::test]
async fn of_changes_that_are_told_at_once_each_is_seen_now_or_was_before() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).first_revision(Some(1)).start().await.unwrap();
    let client = cluster.node(1).client();
    acquire(&client, &held_for(600_000, "orders/42", "billing-7")).await;
    let mut browser = browse(cluster.node(1), "#/cluster").await;
    // The watch waits until the test lets it go on.
    let hold = "
        const real = window.fetch;
        const gate = new Promise((open) => { window.letGo = open; });
        window.fetch = async (url, options) => {
            if (url.startsWith('v1/watch')) await gate;
            return real(url, options);
        };
        location.hash = '#/key/orders%2F42';
    ";
    run(&mut browser, hold).await;
    browser.until(SOON, "document.querySelector('.one-key button.danger')").await.unwrap();
    let view = client.key(&key("orders/42"), Consistency::Linearizable).await.done();
    client.revoke(&key("orders/42"), view.holders[0].token).await.done();
    browser
        .until(SOON, "document.querySelector('.one-key').innerText.includes('Nobody holds this key')")
        .await
        .unwrap();
    browser.evaluate("letGo()").await.unwrap();
    let seen = "[...document.querySelectorAll('.history tbody tr')].map(row => row.lastChild.textContent === 'earlier')";
    browser.until(SOON, &format!("{seen}.length === 2")).await.unwrap();
    assert_eq!(browser.evaluate(seen).await.unwrap(), json!([false, true]));
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

/// What a script gives that begins with the parts of the page that it names.
async fn run(browser: &mut Browser, script: &str) -> serde_json::Value {
    browser.evaluate(&format!("(async () => {{ {script} }})()")).await.unwrap()
}

/// A table of `most` keys, to which `page` and `tell` bring what a node would say.
const TABLE: &str = "
    const { KeyTable, START } = await import('/dashboard/key_table.js');
    const view = (key, revision, token) => ({ key, fence: token, revision, waiters: [],
        holders: [{ token, holder: null, mode: 'exclusive', limit: null, ttl_ms: 9000, expires_in_ms: 9000, metadata: {} }] });
    const page = (revision, next, ...tokens) => ({ revision, next,
        keys: tokens.map(([key, token, at = revision]) => view(key, at, token)) });
    const table = (most = 100) => {
        const it = new KeyTable(most);
        it.tell = (name, revision, key, token = revision) => it.apply(
            { name, revision, token, holder: null, keys: [{ key, mode: 'exclusive', fence: token }] }, 0, () => false);
        it.say = () => it.keys.map((key, place) => key + (it.at(place).ended ? ' ended' : '')).join(' ');
        return it;
    };
";

#[tokio::test]
async fn a_page_that_was_under_way_takes_nothing_back_of_what_a_watch_has_told() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
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
    // An end that is newer than the page: nothing else would ever tell it again.
    let released = "const keys = table(); keys.take(START, page(10, null, ['a', 1], ['b', 2]), 0, () => false);
        keys.tell('released', 15, 'b', 2); keys.take(START, page(10, null, ['a', 1], ['b', 2]), 0, () => false);
        return keys.say()";
    assert_eq!(says(released).await, "a");
    // The revision of a page is that of the first one, that of its keys is its own.
    let later =
        "const keys = table(); const mark = keys.take(START, page(10, 'x', ['a', 1]), 0, () => false);
        keys.take(mark, page(10, null, ['b', 2], ['c', 3]), 0, () => false); keys.tell('granted', 15, 'd');
        keys.take(mark, page(10, null, ['c', 3, 20]), 0, () => true); return keys.say()";
    assert_eq!(says(later).await, "a b ended c d ended");
}

#[tokio::test]
async fn a_table_keeps_the_first_keys_whatever_is_told_or_read() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let mut browser = browse(cluster.node(1), "").await;
    let mut says = async |script: &str| run(&mut browser, &format!("{TABLE} {script}")).await;

    let told = "const keys = table(3); keys.take(START, page(10, null, ['b', 1], ['d', 2]), 0, () => false);
        keys.tell('granted', 11, 'e'); keys.tell('granted', 12, 'a'); keys.tell('granted', 13, 'f');
        const many = [keys.say(), keys.complete]; keys.tell('released', 14, 'a', 12); keys.tell('granted', 15, 'e');
        return [...many, keys.say()]";
    assert_eq!(says(told).await, json!(["a b d", false, "b d"]));
    // A list that is read again ends where it was left, though the one before went further.
    let read =
        "const keys = table(3); const mark = keys.take(START, page(10, 'x', ['c', 1]), 0, () => false);
        keys.take(mark, page(10, null, ['d', 2], ['e', 3]), 0, () => false);
        const end = keys.take(START, page(20, 'y', ['a', 11], ['b', 12]), 0, () => false);
        keys.cut(end.last); return [keys.say(), keys.complete, keys.mark('z').last]";
    assert_eq!(says(read).await, json!(["a b", false, "b"]));
}

#[tokio::test]
async fn a_watch_that_was_cut_off_goes_on_and_lists_are_read_again_ever_more_slowly() {
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let mut browser = browse(cluster.node(1), "#/cluster").await;
    // What a node answers to each watch in turn, with nothing kept at first; and where in time the watches were.
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
    browser.until(SOON, &format!("asked.length === 5 && {is_live}")).await.unwrap();
    let gaps = browser.evaluate("[2, 3, 4].map(place => asked[place] - asked[place - 1])").await.unwrap();
    for (gap, at_least_ms) in gaps.as_array().unwrap().iter().zip([0.0, 999.0, 1_999.0]) {
        assert!(gap.as_f64().unwrap() >= at_least_ms, "{gaps}");
    }

    // What was cut off goes on from what it was told last, and no list is read for it.
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
async fn of_ten_thousand_keys_only_those_on_the_screen_are_in_the_page() {
    const KEYS: usize = 10_000;
    if !Browser::is_installed() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let node = cluster.leader().await.unwrap();
    hold_many(node, 0..KEYS).await;
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

    // Of more than the page shows it shows the first.
    let all = "document.querySelector('.summary').textContent.startsWith('the first 20,000 keys; a prefix finds more')";
    hold_many(node, KEYS..2 * KEYS + 500).await;
    browser.until(SOON, all).await.unwrap();
    // When what has changed is not kept, as many are read again, and what changes then is seen.
    let watch = "
        window.watches = [];
        const real = window.fetch;
        window.fetch = async (url, options) => {
            if (!url.startsWith('v1/watch')) return real(url, options);
            if (watches.length === 1) return watches.push(null), new Response('', { status: 410 });
            const cut = new AbortController();
            watches.push(cut);
            return real(url, { ...options, signal: AbortSignal.any([options.signal, cut.signal]) });
        };
        location.hash = '#/cluster';
    ";
    run(&mut browser, watch).await;
    browser.until(SOON, "document.title.startsWith('Cluster')").await.unwrap();
    browser.evaluate("location.hash = '#/locks'").await.unwrap();
    let is_live = "document.querySelector('#mode').textContent === 'live'";
    browser.until(SOON, &format!("watches.length === 1 && {is_live} && {all}")).await.unwrap();
    browser.evaluate("watches[0].abort()").await.unwrap();
    browser.until(SOON, &format!("watches.length === 3 && {is_live} && {all}")).await.unwrap();
    acquire(&node.client(), &try_once("earlier")).await;
    browser
        .until(SOON, "document.querySelector('.spacer .row').innerText.includes('earlier')")
        .await
        .unwrap();
    assert_eq!(browser.evaluate("watches.length").await.unwrap(), 3);
}

/// Takes leases on keys that differ by these numbers, for a day.
async fn hold_many(node: &Node, numbers: Range<usize>) {
    let names: Vec<String> = numbers.map(|number| format!("many/{number:05}")).collect();
    for chunk in names.chunks(1_000) {
        let operations: Vec<_> = chunk
            .iter()
            .map(|name| json!({ "acquire": { "lease_id": LeaseId::random(), "keys": [name], "ttl_ms": 86_400_000 } }))
            .collect();
        let body = json!({ "operations": operations }).to_string();
        assert_eq!(node.client().raw("POST", "/v1/batch", body).await.unwrap().status, 200);
    }
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
    // What is drawn again for other reasons shows the same time: here a read in vain.
    let left = "document.querySelector('.spacer .left').textContent";
    let before = browser.evaluate(left).await.unwrap();
    let reads =
        "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/v1/keys?')).length";
    let many = browser.evaluate(reads).await.unwrap();
    browser.until(SOON, &format!("{reads} > {many} + 1")).await.unwrap();
    browser.evaluate("document.querySelector('.rows').dispatchEvent(new Event('scroll'))").await.unwrap();
    assert_eq!(browser.evaluate(left).await.unwrap(), before);

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
