//! The views, and what is done in them.

use ringfence_harness::{Consistency, key, wait_for};
use ringfence_wire::{Mode, Token, WantedKey};

use super::*;

#[tokio::test]
#[ignore = "slow"]
async fn a_lease_appears_counts_down_and_is_revoked_from_the_page() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.node(1);
    let mut browser = browse(node, "").await;
    browser.until("document.querySelector('main').innerText.includes('Nobody holds a lock')").await;

    // Another node grants it, and the page updates by itself.
    let client = cluster.node(2).client().patient();
    let lease = LeaseId::random();
    let grant = granted(&client, lease, &held_for(600_000, "orders/42", "billing-7")).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { acquire(&client, &wait_for("orders/42", 60_000)).await }
    });
    let row = format!(
        "(text => text.includes('orders/42') && text.includes('billing-7') && text.includes('{}'))\
         (document.querySelector('.spacer .row').innerText)",
        grant.token
    );
    browser.until(&row).await;
    browser.until("document.querySelector('.spacer .waiters').textContent === '1'").await;
    browser.until(&format!("{SHARE} > 0.5 && {SHARE} <= 1")).await;
    let before = browser.evaluate(SHARE).await;
    browser.until(&format!("{SHARE} < {before}")).await;

    browser.evaluate("document.querySelector('.spacer .row').click()").await;
    let revoke = format!("document.querySelector('button[data-token=\"{}\"]')", grant.token);
    browser.until(&revoke).await;
    browser.evaluate(&format!("{revoke}.click()")).await;
    browser.until("document.querySelector('dialog.revoke').innerText.includes('billing-7')").await;
    // A renewal, which changes only times, shows in both.
    client.renew(lease, Some(Ttl::from_ms(86_400_000).unwrap())).await.done();
    for left in ["dialog .left", "td .left"] {
        let is_long = format!("document.querySelector('{left}').textContent.startsWith('23:59:')");
        browser.until(&is_long).await;
    }
    browser.until("document.querySelector('.one-key table').innerText.includes('24 h')").await;
    let is_disabled = "document.querySelector('dialog.revoke button.danger').disabled";
    assert_eq!(browser.evaluate(is_disabled).await, true);
    browser.write("orders/4").await;
    assert_eq!(browser.evaluate(is_disabled).await, true);
    browser.press("Enter").await;
    assert_eq!(holders(&client, "orders/42").await, [grant.token], "part of the key is not the key");
    browser.write("2").await;
    assert_eq!(browser.evaluate(is_disabled).await, false);
    browser.press("Enter").await;
    browser.until("document.querySelector('dialog .result.good')").await;
    let told = browser.evaluate("document.querySelector('dialog .result').textContent").await;
    assert!(told.as_str().unwrap().contains(&format!("token {} is dead", grant.token)), "{told}");

    let next = waiting.await.unwrap();
    assert_eq!(holders(&client, "orders/42").await, [next.token]);
    let next_button = format!("document.querySelector('button[data-token=\"{}\"]')", next.token);
    browser.until(&format!("{next_button} && !{revoke}")).await;

    // A lease that has ended meanwhile cannot be revoked, and the page says so.
    browser.press("Escape").await;
    browser.evaluate(&format!("{next_button}.click()")).await;
    client.revoke(&key("orders/42"), next.token).await.done();
    browser.write("orders/42").await;
    browser.press("Enter").await;
    browser
        .until("document.querySelector('dialog .result.bad')?.textContent.includes('no longer live')")
        .await;
    assert_eq!(browser.evaluate("document.querySelectorAll('dialog.revoke').length").await, 1);
    let result = "document.querySelector('dialog.revoke').innerText";
    let told = browser.evaluate(result).await;
    assert!(told.as_str().unwrap().contains("Nothing was revoked"), "{told}");

    // A request whose answer was lost may have been done, whatever the next answer says.
    browser.press("Escape").await;
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
    browser.until(&last_button).await;
    browser.evaluate(&format!("{last_button}.click()")).await;
    browser.write("orders/42").await;
    browser.press("Enter").await;
    browser.until(&format!("{result}.includes('may or may not have been done')")).await;
    assert_eq!(holders(&client, "orders/42").await, []);
    browser.press("Enter").await;
    browser.until(&format!("{result}.includes('is dead')")).await;
    let told = browser.evaluate(result).await;
    assert!(!told.as_str().unwrap().contains("Nothing was"), "{told}");
    // Leaving the view closes the dialog.
    browser.evaluate("history.back()").await;
    browser.until("document.title.startsWith('Locks') && !document.querySelector('dialog.revoke')").await;
    let serious = browser.complaints().iter().filter(|text| !text.contains("409") && !is_too_far_back(text));
    assert_eq!(serious.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// On a narrow screen, a long token with the number of further holders moved the time of its row to the left.
#[tokio::test]
#[ignore = "slow"]
async fn the_times_of_all_rows_line_up_on_a_narrow_screen() {
    if !Browser::is_installed() {
        return;
    }
    // The tokens are as long as those of a real cluster.
    let cluster = Cluster::builder(PROGRAM).nodes(1).first_revision(None).start().await.unwrap();
    let client = cluster.node(1).client().patient();
    acquire(&client, &held_for(600_000, "orders/41", "one")).await;
    for holder in ["two", "three"] {
        let wanted = WantedKey { key: key("orders/42"), mode: Mode::Shared { limit: None } };
        acquire(&client, &AcquireRequest { keys: vec![wanted], ..held_for(600_000, "orders/42", holder) })
            .await;
    }
    let mut browser = browse(cluster.node(1), "").await;
    browser.resize(390, 800).await;
    browser.until("document.querySelector('.spacer').innerText.includes('+1')").await;
    let lefts =
        "[...document.querySelectorAll('.spacer .row .time')].map(time => time.getBoundingClientRect().left)";
    browser.until(&format!("(lefts => lefts.length === 2 && lefts[0] === lefts[1])({lefts})")).await;
}

/// The tokens of the holders of a key.
async fn holders(client: &Client, name: &str) -> Vec<Token> {
    let view = client.key(&key(name), Consistency::Linearizable).await.done();
    view.holders.iter().map(|holder| holder.token).collect()
}

/// A node that was down looked like any other; and the last of three was called the leader, beside "no leader".
#[tokio::test]
async fn the_page_says_which_nodes_do_not_answer_and_calls_nobody_the_leader_without_a_majority() {
    let Some(cluster) = cluster().await else { return };
    let leader = cluster.leader().await.unwrap();
    let mut browser = browse(leader, "#/cluster").await;
    let row = |id: u64| format!("document.querySelectorAll('.members tbody tr')[{}].innerText", id - 1);
    let is_silent = |id| format!("{}.includes('has not answered node {} for')", row(id), leader.id());
    let others: Vec<_> = cluster.others(leader.id()).collect();
    let is_leading = format!("{}.includes('leader') && !{}", row(leader.id()), is_silent(others[0].id()));
    browser.until(&is_leading).await;
    others[0].kill().unwrap();
    browser.until(&is_silent(others[0].id())).await;
    assert_eq!(browser.evaluate(&is_silent(others[1].id())).await, false);
    others[1].kill().unwrap();
    browser.until(&is_silent(others[1].id())).await;
    let without_leader = format!(
        "!{}.includes('leader') && !document.querySelector('#node').textContent.includes('leader') \
         && document.querySelector('.members').innerText.includes('none')",
        row(leader.id())
    );
    browser.until(&without_leader).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn every_view_is_reached_by_keys_alone() {
    let Some(cluster) = cluster().await else { return };
    let node = cluster.leader().await.unwrap();
    let client = node.client().patient();
    for name in ["a/1", "a/2", "b/1"] {
        acquire(&client, &try_once(name)).await;
    }
    let mut browser = browse(node, "").await;
    browser.until("document.querySelectorAll('.spacer .row').length === 3").await;

    browser.press("/").await;
    browser.until("document.activeElement.id === 'filter'").await;
    browser.write("a/").await;
    browser.until("location.hash === '#/locks?prefix=a%2F'").await;
    browser.until("document.querySelectorAll('.spacer .row').length === 2").await;
    browser.press("Escape").await;
    browser.press("j").await;
    browser.press("ArrowDown").await;
    browser.press("k").await;
    browser.press("ArrowDown").await;
    let chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).innerText.includes('a/2')";
    browser.until(chosen).await;
    browser.press("Enter").await;
    browser.until("document.title.startsWith('a/2') && document.activeElement.tagName === 'H1'").await;
    browser.press("Escape").await;
    browser.until("document.title.startsWith('Locks') && location.hash === '#/locks?prefix=a%2F'").await;
    browser.press("2").await;
    browser.until("document.title.startsWith('Cluster') && document.querySelectorAll('.members tbody tr').length === 3").await;
    browser.until("document.querySelector('.own').innerText.includes('Disk flush')").await;
    browser.press("3").await;
    browser.until("document.querySelector('main').innerText.includes('No mirror is kept')").await;
    browser.press("?").await;
    browser.until("document.querySelector('#help').open").await;
    browser.press("Escape").await;
    browser.until("!document.querySelector('#help').open").await;
    browser.press("Escape").await;
    browser.until("document.title.startsWith('Cluster')").await;
    is_clean(&browser, node);
}
