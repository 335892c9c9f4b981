//! The commands of `ringfence` that call a cluster, except `lock`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_harness::{Cluster, until};
use ringfence_wire::MemberStatus;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::end::{self, End, ringfence};
use crate::support::{PROGRAM, SOON, urls};

/// `ringfence` for this cluster, with arguments that are separated by spaces.
fn command(cluster: &Cluster, words: &str) -> Command {
    let mut command = ringfence(words);
    command.env("RINGFENCE_URLS", urls(cluster));
    command
}

fn run(cluster: &Cluster, words: &str) -> End {
    end::run(&mut command(cluster, words))
}

/// Its JSON output. It must succeed.
fn json_of(cluster: &Cluster, words: &str) -> Value {
    run(cluster, &format!("{words} -o json")).json()
}

/// Its exit status and standard error. It must print nothing else.
fn failed(cluster: &Cluster, words: &str) -> (i32, String) {
    let end = run(cluster, words);
    assert_eq!(end.out, "", "{words}");
    (end.status.code().unwrap(), end.err)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_acquired_shown_renewed_validated_and_released() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let grant = json_of(&cluster, "acquire orders/1 orders/2 --ttl 60s --holder me");
    assert_eq!(
        (&grant["state"], &grant["holder"], &grant["ttl_ms"]),
        (&json!("granted"), &json!("me"), &json!(60_000))
    );
    assert!(grant["expires_in_ms"].as_u64().unwrap() > 50_000);
    let (id, token) = (grant["lease_id"].as_str().unwrap(), &grant["token"]);

    let view = json_of(&cluster, "get orders/1");
    assert_eq!(
        (&view["fence"], &view["holders"][0]["token"], &view["holders"][0]["holder"]),
        (token, token, &json!("me"))
    );
    let list = json_of(&cluster, "ls orders/");
    let keys: Vec<&Value> = list["keys"].as_array().unwrap().iter().map(|view| &view["key"]).collect();
    assert_eq!(keys, [&json!("orders/1"), &json!("orders/2")]);
    assert_eq!(json_of(&cluster, "ls other/")["keys"], json!([]));

    assert_eq!(json_of(&cluster, &format!("renew {id} --ttl 90s"))["ttl_ms"], json!(90_000));
    assert_eq!(json_of(&cluster, &format!("validate orders/2 {token}"))["verdict"], "live");
    let (code, said) = failed(&cluster, "acquire orders/2 --try");
    assert!(code == 75 && said.contains("held by me"), "{code}: {said}");

    run(&cluster, &format!("release {id}")).says(0, "");
    let (code, said) = failed(&cluster, &format!("renew {id}"));
    assert!(code == 1 && said.contains("released"), "{code}: {said}");
    let verdict = run(&cluster, &format!("validate orders/2 {token}")).with(1).out;
    assert!(verdict.starts_with("stale"), "{verdict}");
    // It was released.
    run(&cluster, &format!("release {id}")).with(0);

    let lost = json_of(&cluster, "acquire orders/3 --ttl 60s");
    run(&cluster, &format!("revoke orders/3 {}", lost["token"])).with(0);
    for _ in 0..2 {
        let (code, said) = failed(&cluster, &format!("release {}", lost["lease_id"].as_str().unwrap()));
        assert!(code == 76 && said.contains("revoked by an operator"), "{code}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_cannot_forge_lines_or_control_the_terminal() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let mut forges = command(&cluster, "acquire a --ttl 60s --shared --limit 3 --holder");
    let forged = end::run(forges.arg("one\n99  exclusive\x1b[2J")).with(0).out;
    assert!(forged.starts_with("lease_id  "), "{forged}");
    for words in ["get a", "ls", "ls a"] {
        let shown = run(&cluster, words).out;
        let line = shown.lines().find(|line| line.contains("shared(3)")).unwrap();
        assert!(line.ends_with(r"one\n99  exclusive\u{1b}[2J"), "{shown}");
    }
    let (code, said) = failed(&cluster, "get a//b");
    assert!(code == 1 && said.contains("key"), "{code}: {said}");
    let nobody = run(&cluster, "get b").out;
    assert!(nobody.contains("not held"), "{nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_changes_from_a_given_revision_on() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let before = json_of(&cluster, "ls")["revision"].to_string();
    let grant = json_of(&cluster, "acquire seen/a other --ttl 60s --holder me");
    let mut watches = command(&cluster, &format!("watch seen/ --after {before} -o json"));
    let mut watch = watches.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let change = next();
    assert_eq!(
        (&change["kind"], &change["token"], &change["holder"]),
        (&json!("granted"), &grant["token"], &json!("me"))
    );
    let keys = change["keys"].as_array().unwrap();
    assert!(keys.len() == 1 && keys[0]["key"] == "seen/a", "{change}");
    run(&cluster, &format!("release {}", grant["lease_id"].as_str().unwrap())).with(0);
    assert_eq!(next()["kind"], "released");
    watch.kill().unwrap();
    watch.wait().unwrap();
    let (code, said) = failed(&cluster, "watch --after 9000000000000000");
    assert!(
        code == 1 && said.contains("9000000000000000") && said.contains("ringfence ls"),
        "{code}: {said}"
    );
}

/// Waits until it exits.
fn ends(child: &mut std::process::Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it is still running");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_exits_when_its_reader_is_gone() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let before = json_of(&cluster, "ls")["revision"].to_string();
    json_of(&cluster, "acquire seen other --ttl 60s");
    let watch = |prefix: &str| {
        let mut watches = command(&cluster, &format!("watch {prefix} --after {before}"));
        watches.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The reader of the first goes after a line, that of the second before any.
    let mut busy = watch("seen");
    let mut line = String::new();
    BufReader::new(busy.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("granted"), "{line}");
    let mut quiet = watch("quiet");
    drop(quiet.stdout.take());
    json_of(&cluster, "acquire seen/2 --ttl 60s");
    for child in [&mut busy, &mut quiet] {
        assert!(ends(child).success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_id_cannot_be_printed_is_released() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (_, closed) = std::io::pipe().unwrap();
    for (words, expected) in [("acquire a --ttl 60s", 1), ("lock a --ttl 60s --detach", 125)] {
        for out in [Stdio::from(full.try_clone().unwrap()), Stdio::from(closed.try_clone().unwrap())] {
            let ended = end::run(command(&cluster, words).stdout(out)).with(expected);
            assert!(!ended.err.is_empty());
            assert_eq!(json_of(&cluster, "get a")["holders"], json!([]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_revokes_a_lease_and_transfers_the_leadership() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let grant = json_of(&cluster, "acquire a --ttl 60s");
    let token = &grant["token"];
    let (code, said) = failed(&cluster, &format!("revoke a {}", token.as_u64().unwrap() + 1));
    assert!(code == 1 && !said.is_empty());
    assert_eq!(json_of(&cluster, &format!("revoke a {token}")), json!({"key": "a", "token": token}));
    assert_eq!(json_of(&cluster, "get a")["holders"], json!([]));

    let status = json_of(&cluster, "cluster status");
    let leader = status["leader"].as_u64().unwrap();
    let other = cluster.others(leader).next().unwrap().id();
    json_of(&cluster, &format!("cluster transfer --to {other}"));
    assert_eq!(cluster.leader().await.unwrap().id(), other);
    let shown = run(&cluster, "cluster status").out;
    assert_eq!(shown.lines().filter(|line| line.contains("http://")).count(), 3, "{shown}");
    assert!(shown.contains("\nrules     5") && shown.contains(" 1 to 5 "), "{shown}");
    let rules = status["rules"].as_u64().unwrap();
    let nothing = json!({ "from": rules, "to": rules });
    assert_eq!(json_of(&cluster, "cluster upgrade"), nothing);
    assert_eq!(json_of(&cluster, "cluster upgrade --dry-run"), nothing);
    assert!(run(&cluster, "cluster upgrade").out.starts_with("nothing to raise"));
    let (code, said) = failed(&cluster, "cluster upgrade --to 200");
    assert!(code == 1 && said.contains("upgrade it first"), "{code}: {said}");
    let (code, said) = failed(&cluster, "cluster add 0 127.0.0.1:1");
    assert!(code == 1 && said.contains("id"), "{code}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn urls_come_from_the_flag_then_the_variable_then_the_file_that_is_named() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let (right, wrong) = (cluster.node(1).url(), "http://127.0.0.1:9");
    let dir = TempDir::new().unwrap();
    let get = |flag: Option<&str>, variable: Option<&str>, file: &str| {
        std::fs::write(dir.path().join("ringfence.toml"), format!("urls = [{file:?}]\n")).unwrap();
        let mut command = ringfence("get a");
        command.current_dir(dir.path()).env("RINGFENCE_CONFIG", "ringfence.toml");
        flag.into_iter().for_each(|urls| _ = command.args(["--urls", urls]));
        variable.into_iter().for_each(|urls| _ = command.env("RINGFENCE_URLS", urls));
        command.output().unwrap().status.success()
    };
    assert!(get(Some(&right), Some(wrong), wrong));
    assert!(get(None, Some(&right), wrong));
    assert!(get(None, None, &right));
    assert!(!get(None, None, wrong));
    assert!(!get(None, Some("https://127.0.0.1:1"), &right));
}

/// The author of such a file would choose the servers that grant, or open a port.
#[test]
fn no_file_is_read_that_was_not_named() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("ringfence.toml"), "id = 1\ndata = \"d\"\nurls = [\"none\"]\n").unwrap();
    let run = |words: &str| end::run(ringfence(words).current_dir(dir.path()));
    let said = run("get a").err;
    assert!(!said.contains("none"), "{said}");
    let said = run("get a --config=ringfence.toml").fails();
    assert!(said.contains("none"), "{said}");

    let said = run("serve --check").fails();
    assert!(said.contains("--id"), "{said}");
    let said = run("serve --check --config=ringfence.toml").with(0).err;
    assert!(said.contains("file=ringfence.toml"), "{said}");
}

#[test]
fn a_variable_that_is_set_and_empty_is_named() {
    for (words, variables) in [
        ("get a", &["RINGFENCE_URLS", "RINGFENCE_CREDENTIAL", "RINGFENCE_CONFIG"][..]),
        ("lock a -- true", &["RINGFENCE_URLS", "RINGFENCE_CREDENTIAL"]),
        ("cluster status", &["RINGFENCE_URLS", "RINGFENCE_AUTHORITY"]),
        ("serve --check --id=1 --data=d", &["RINGFENCE_JOIN", "RINGFENCE_PEERS", "RINGFENCE_CONFIG"]),
        ("mirror purge --cluster=x", &["RINGFENCE_REDIS"]),
    ] {
        for variable in variables {
            let end = end::run(ringfence(words).env(variable, ""));
            let said = end.with(if words.starts_with("lock") { 125 } else { 2 }).err;
            assert!(said.contains(&format!("{variable} is empty")), "{words:?} {variable}: {said}");
        }
    }
    let said = end::run(&mut ringfence("get a --urls ")).fails();
    assert!(said.contains("--urls"), "{said}");
}

#[test]
fn a_password_of_redis_among_the_arguments_is_warned_of() {
    let said = |words: &[&str], variable: Option<&str>| {
        let mut command = Command::new(PROGRAM);
        end::run(command.args(words).envs(variable.map(|url| ("RINGFENCE_REDIS", url)))).err
    };
    let (open, secret) = ("--redis=redis://127.0.0.1:9", "--redis=redis://:hush@127.0.0.1:9");
    let id = "--cluster=00000000-0000-4000-8000-000000000001";
    for command in [&["serve", "--check", "--id=1", "--data=d"][..], &["mirror", "purge", id]] {
        let with = |word| [command, &[word]].concat();
        let warned = said(&with(secret), None);
        assert!(warned.contains("can see the password in --redis") && !warned.contains("hush"), "{warned}");
        assert!(!said(&with(open), None).contains("password"), "{command:?}");
        let of_variable = said(command, secret.strip_prefix("--redis="));
        assert!(!of_variable.contains("password in --redis"), "{of_variable}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_shows_the_lags_that_only_the_leader_knows() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    for node in cluster.nodes() {
        let status = json_of(&cluster, &format!("cluster status -u {}", node.url()));
        assert_eq!(status["node_id"], node.id());
        for other in cluster.others(leader) {
            let lag = &status["members"][other.id().to_string()]["lag_entries"];
            assert!(lag.is_u64(), "{status}");
        }
    }
    cluster.node(leader).stop().unwrap();
    let node = cluster.others(leader).next().unwrap();
    let end = run(&cluster, &format!("cluster status -u {}", node.url()));
    // Unless another leads by now.
    let lags = end.out.lines().filter(|line| line.contains("http://") && line.contains(" – ")).count();
    let (is_well, is_missing) = (end.status.success(), end.out.contains("lags are missing"));
    assert!(is_missing || lags < 3, "{end:?}");
    assert!(is_well || end.status.code() == Some(3), "{end:?}");
    assert!(!is_well || !is_missing, "{end:?}");
}

/// It was shown like any other, with the exit status 0.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_which_node_does_not_answer_and_exits_accordingly() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let is_well = async || run(&cluster, "cluster status").status.success().then_some(());
    until(SOON, "all is well", is_well).await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let (frozen, other) = (cluster.others(leader).next().unwrap(), cluster.others(leader).nth(1).unwrap());
    frozen.stop().unwrap();
    let silent = format!("node {} has not answered node ", frozen.id());
    for node in [cluster.node(leader), other] {
        let tells = async || {
            let end = run(&cluster, &format!("cluster status -u {}", node.url()));
            (end.status.code() == Some(3) && end.out.contains(&silent)).then_some(())
        };
        until(SOON, "the status tells it", tells).await.unwrap();
        // In JSON the time is the leader's, who may have heard the node last.
        let shows = async || {
            let end = run(&cluster, &format!("cluster status -o json -u {}", node.url()));
            let status: Value = serde_json::from_str(&end.out).unwrap();
            let silent_ms = &status["members"][frozen.id().to_string()]["silent_ms"];
            let is_silent = silent_ms.as_u64().is_some_and(|time| time >= MemberStatus::SILENT_MS);
            (is_silent && end.err.contains(&silent)).then_some(())
        };
        until(SOON, "the status shows it", shows).await.unwrap();
    }
    frozen.resume().unwrap();
    until(SOON, "all is well again", is_well).await.unwrap();
}

#[test]
fn completions_manual_pages_and_files_of_guards_are_in_the_program() {
    let print = |words: &str| end::run(&mut ringfence(words)).with(0).out;
    for shell in ["bash", "zsh", "fish"] {
        let completions = print(&format!("completions {shell}"));
        assert!(completions.contains("kill-after") && completions.contains("transfer"), "{shell}");
        assert!(!completions.contains("supervise"), "{shell}: hidden commands must not be completed");
    }
    assert!(print("man").contains("ringfence\\-lock"));
    let page = print("man lock");
    assert!(page.contains("kill\\-after") && page.contains("RINGFENCE_TOKEN"), "{page}");
    let synopsis = page.split(".SH ").find(|section| section.starts_with("SYNOPSIS")).unwrap();
    assert!(synopsis.contains("<KEY>... \\-\\- <COMMAND>"), "{synopsis}");
    for page in [page, print("man hold")] {
        let statuses = page.split(".SH ").find(|section| section.starts_with("\"EXIT STATUS\"")).unwrap();
        assert!(statuses.contains("125") && !page.contains("Exit status:"), "{page}");
    }
    for (store, mentions) in
        [("postgres", "ringfence.protect"), ("mysql", "SIGNAL SQLSTATE"), ("redis", "KEYS[1]")]
    {
        assert!(print(&format!("guard {store}")).contains(mentions), "{store}");
    }
    end::run(&mut ringfence("man locks")).fails();
}
