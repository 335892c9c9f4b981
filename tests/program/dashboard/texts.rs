//! Texts of clients in the page.

use ringfence_wire::Metadata;
use serde_json::json;

use super::*;

#[tokio::test]
#[ignore = "slow"]
async fn names_that_look_like_markup_stay_text() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.leader().await.unwrap();
    let client = node.client().patient();
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
    browser.until(&format!("document.querySelectorAll('.spacer .row').length === {rows}")).await;
    for name in names {
        let literal = json!(name);
        let link = format!(
            "[...document.querySelectorAll('.spacer .key a')].find(link => link.title === {literal})"
        );
        browser.until(&link).await;
        browser.evaluate(&format!("{link}.click()")).await;
        browser.until("document.querySelector('.one-key button.danger')").await;
        // Invisible characters, and those that change the direction of text, are shown by number.
        let shown = name.replace('\u{202e}', "⟨U+202E⟩").replace('\u{200b}', "⟨U+200B⟩");
        let texts = "['h1', 'td .label', '.metadata li'].map(place => document.querySelector(`.one-key ${place}`).textContent)";
        let texts = browser.evaluate(texts).await;
        assert_eq!(texts, json!([shown, shown, format!("{shown} {shown}")]));
        browser.evaluate("document.querySelector('button.danger').click()").await;
        browser.press("Escape").await;
        browser.press("Escape").await;
        // Going back takes a moment.
        browser.until("location.hash === '#/locks'").await;
    }
    browser
        .evaluate(&format!("location.hash = '#/locks?prefix=' + encodeURIComponent({})", json!(names[0])))
        .await;
    browser.until("document.querySelectorAll('.spacer .row').length === 1").await;
    browser.until(&format!("document.querySelector('#filter').value === {}", json!(names[0]))).await;
    assert_eq!(browser.evaluate("typeof window.harmed").await, "undefined");
    assert_eq!(browser.evaluate("document.querySelectorAll('main img, main script').length").await, 0);
    is_clean(&browser, node);
}

#[tokio::test]
async fn different_texts_look_different() {
    let Some(cluster) = cluster().await else { return };
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
