//! What the command line says to somebody with an error, or with a long list.

use std::process::Command;

use ringfence_harness::{Cluster, until};
use serde_json::Value;

use crate::support::end::{self, End, ringfence};
use crate::support::{PROGRAM, SOON};

fn run(url: Option<&str>, words: &[&str]) -> End {
    end::run(Command::new(PROGRAM).envs(url.map(|url| ("RINGFENCE_URLS", url))).args(words))
}

/// What a failing command says.
fn failed(url: Option<&str>, words: &[&str]) -> String {
    run(url, words).fails()
}

#[test]
fn the_help_of_each_command_that_calls_nodes_names_the_variable_of_the_credential() {
    let help = |words: &[&str]| run(None, &[words, &["--help"]].concat()).out;
    for words in [&["lock"][..], &["ls"], &["acquire"], &["cluster", "add"], &["backup", "save"]] {
        assert!(help(words).contains("RINGFENCE_CREDENTIAL"), "{words:?}");
    }
    let of_lock = help(&["lock"]);
    assert!(of_lock.contains("RINGFENCE_TOKEN") && of_lock.contains("Exit status:"), "{of_lock}");
    for words in [&["serve"][..], &["cert", "node"], &["inspect"]] {
        assert!(!help(words).contains("RINGFENCE_CREDENTIAL"), "{words:?}");
    }
    let page = run(None, &["man", "cluster", "add"]).out;
    assert!(page.contains("RINGFENCE_CREDENTIAL"), "{page}");
}

#[test]
fn a_credential_for_plain_nodes_is_why_they_must_have_tls() {
    let variables = [("RINGFENCE_CREDENTIAL", "rfc_1"), ("RINGFENCE_URLS", "http://127.0.0.1:9")];
    let said = end::run(ringfence("get a").envs(variables)).fails();
    assert!(said.contains("credential") && said.contains("TLS"), "{said}");
}

/// It once listed options that variables had set, as if they were required.
#[test]
fn the_usage_in_an_error_is_that_of_the_help() {
    for url in [None, Some("http://127.0.0.1:9")] {
        let said = failed(url, &["revoke", "a"]);
        assert!(said.contains("Usage: ringfence revoke [OPTIONS] <KEY> <TOKEN>"), "{said}");
        let said = failed(url, &["cluster", "remove"]);
        assert!(said.contains("Usage: ringfence cluster remove [OPTIONS] <ID>"), "{said}");
    }
}

#[test]
fn who_calls_a_command_that_there_is_not_learns_which_one_does_it() {
    for (name, meant) in [
        ("status", "ringfence cluster status"),
        ("why", "ringfence get KEY"),
        ("top", "ringfence ls --sort waiters"),
        ("version", "ringfence --version"),
    ] {
        let said = failed(None, &[name]);
        assert!(said.contains(name) && said.contains(&format!("{meant}\n")), "{said}");
    }
    assert!(!failed(None, &["nonsense"]).contains("perhaps"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_in_vain_names_the_key_and_who_holds_it() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let url = cluster.node(1).url();
    run(Some(&url), &["acquire", "b", "--ttl=60s", "--holder=billing-7"]).with(0);
    for words in [&["lock", "a", "b", "--wait=50ms", "--", "true"][..], &["acquire", "a", "b", "--wait=50ms"]]
    {
        let said = failed(Some(&url), words);
        assert!(said.contains("not granted within 50 ms: b: held by billing-7 with token "), "{said}");
        assert!(!said.contains("wait"), "nobody else waits: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_one_word_is_told_that_no_shell_reads_it() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let url = cluster.node(1).url();
    let said = failed(Some(&url), &["lock", "a", "--", "echo hi && echo ho"]);
    assert!(said.contains("echo hi && echo ho") && said.contains("sh -c"), "{said}");
    let said = failed(Some(&url), &["lock", "a", "--", "no-such-program"]);
    assert!(!said.contains("sh -c"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_listed_by_waiters_and_by_how_long_they_are_held() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let url = cluster.node(1).url();
    for key in ["b", "c", "a"] {
        run(Some(&url), &["acquire", key, "--ttl=60s"]).with(0);
    }
    let mut waiters: Vec<_> = ["a", "c", "a"]
        .iter()
        .map(|key| Command::new(PROGRAM).args(["acquire", key, "-u", &url]).spawn().unwrap())
        .collect();
    let keys = |words: &[&str]| {
        let list: Value = run(Some(&url), &[&["ls", "-o", "json"], words].concat()).json();
        let keys = list["keys"].as_array().unwrap();
        keys.iter().map(|view| view["key"].as_str().unwrap()).collect::<String>()
    };
    let wait = async || (keys(&["--sort=waiters"]) == "acb").then_some(());
    until(SOON, "the waiters wait", wait).await.unwrap();
    assert_eq!(keys(&[]), "abc");
    assert_eq!(keys(&["--sort=held"]), "bca");
    assert_eq!(keys(&["--contended"]), "ac");
    assert_eq!(keys(&["--contended", "--sort=held"]), "ca");
    for waiter in &mut waiters {
        waiter.kill().unwrap();
        waiter.wait().unwrap();
    }
}
