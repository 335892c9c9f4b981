//! Principals in the page.

use std::fs;

use ringfence_access::Credential;
use ringfence_client::{Client, Tls};
use ringfence_harness::{Browser, Certificates, Cluster, until};

use super::{PROGRAM, SOON};

#[tokio::test]
#[ignore = "slow"]
async fn a_principal_signs_in_and_sees_what_it_may() {
    if !Browser::is_installed() {
        return;
    }
    let (billing, operator) = (Credential::generate().unwrap(), Credential::generate().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("access.toml");
    let text = format!(
        "[principals.billing]\ncredentials = [\"{}\"]\nallow = [{{ keys = \"accounts/\", may = [\"acquire\", \"read\"] }}]\n\
         [principals.operator]\ncredentials = [\"{}\"]\nallow = [{{ keys = \"*\", may = [\"acquire\", \"read\", \"revoke\"] }}]\n\
         cluster = [\"metrics\", \"operate\"]\n",
        billing.digest(),
        operator.digest()
    );
    fs::write(&rules, text).unwrap();
    let cluster = Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap();
    let node = cluster.node(1);
    let files = Certificates::new(dir.path(), &format!("IP:{}", node.http().ip())).unwrap();
    node.start_with(|command| {
        command.arg(format!("--access={}", rules.display()));
        command.arg(format!("--tls-certificate={}", files.certificate().display()));
        command.arg(format!("--tls-key={}", files.key().display()));
    })
    .unwrap();
    let url = format!("https://{}", node.http());
    let credential = Some(ringfence_client::Credential::new(operator.reveal()).unwrap());
    let tls = Tls { authority: Some(files.authority().to_owned()), credential, ..Tls::default() };
    let client = Client::connect_with([&url], &tls).unwrap();
    let lease = async || client.lock("accounts/42").holder("me").acquire().await.ok();
    let _lease = until(SOON, "a lease", lease).await.unwrap();

    let mut browser = Browser::start().await.unwrap();
    browser.open(&format!("{url}/")).await;
    let sign_in = async |browser: &mut Browser, credential: &str| {
        browser.until("document.querySelector('dialog.sign-in #credential')").await;
        let typed = format!(
            "(() => {{ const input = document.querySelector('#credential'); input.value = '{credential}'; input.form.requestSubmit(); return true }})()"
        );
        browser.evaluate(&typed).await;
    };
    // Nothing is asked for that would be denied.
    assert!(
        !browser
            .requests()
            .iter()
            .any(|request| request.contains("/v1/cluster") || request.contains("/v1/keys"))
    );
    browser.until("document.querySelector('.empty')?.textContent.startsWith('Sign in')").await;
    sign_in(&mut browser, "rfc_wrong").await;
    browser.until("document.querySelector('dialog .result').textContent.includes('not valid')").await;

    sign_in(&mut browser, billing.reveal()).await;
    browser.until("!document.querySelector('dialog.sign-in')").await;
    browser.until("document.querySelector('#principal').textContent === 'billing'").await;
    browser.until("document.querySelector('.empty a')?.textContent === 'accounts/'").await;
    browser.evaluate("document.querySelector('.empty a').click()").await;
    browser.until("document.querySelector('.spacer .row .key')?.textContent === 'accounts/42'").await;
    browser.until("document.querySelector('#mode').textContent === 'live'").await;
    browser.evaluate("location.hash = '#/key/accounts%2F42'").await;
    browser.until("document.querySelector('button.danger')?.disabled").await;
    browser.evaluate("location.hash = '#/cluster'").await;
    browser.until("document.querySelector('main').textContent.includes('right observe')").await;

    browser.evaluate("document.querySelector('#sign').click()").await;
    sign_in(&mut browser, operator.reveal()).await;
    browser.until("document.querySelector('main table')").await;
    // The certificate of the test lasts for two days, which stands out.
    let ends =
        "[...document.querySelectorAll('main td .bad')].some((end) => end.textContent.includes('UTC, in '))";
    browser.until(ends).await;
    browser.until("document.querySelector('main').textContent.includes('server.pem')").await;
    browser.evaluate("location.hash = '#/key/accounts%2F42'").await;
    browser
        .until("document.querySelector('button.danger') && !document.querySelector('button.danger').disabled")
        .await;
    assert_eq!(browser.evaluate("document.cookie").await, "");
    let log = node.log();
    assert!(!log.contains(billing.reveal()) && !log.contains(operator.reveal()), "{log}");
}
