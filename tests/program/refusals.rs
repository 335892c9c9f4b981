//! What a node refuses: foreign data directories, clusters that do not know it, damage, and unknown words. Each refusal says
//! what to do.

use std::path::Path;
use std::time::Duration;

use ringfence_harness::{Answered, Ended, Node, run, take};

use crate::support::{PROGRAM, cluster, file_of};

const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// The exit status after which a service manager does not try again.
const FINAL: i32 = 2;

#[tokio::test]
async fn a_data_directory_that_is_not_this_nodes_is_refused() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let node = cluster.node(1);
    let data = node.data();
    let serve = |id: u64, data: &Path| {
        // Free ports: only the directory conflicts.
        let (http, peer) = (format!("{}:0", node.http().ip()), format!("{}:0", node.peer().ip()));
        let parent = format!("--die-with-parent={}", std::process::id());
        let arguments = ["serve".to_owned(), parent];
        let settings =
            [format!("--id={id}"), format!("--http={http}"), format!("--peer={peer}"), "--data".to_owned()];
        let data = data.to_str().unwrap().to_owned();
        run(PROGRAM, arguments.into_iter().chain(settings).chain([data]), ENDS_WITHIN)
    };

    let ended = serve(1, &data).await.unwrap();
    assert_refused(&ended, &["is in use by another process", "--data"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    take(&node.client(), "still/served").await;

    assert!(node.terminate().await.unwrap().success());
    assert_refused(
        &serve(2, &data).await.unwrap(),
        &["belongs to node 1, not to node 2", "--id 1", "--data"],
    );

    let identity = data.join("NODE");
    let written = std::fs::read_to_string(&identity).unwrap();
    std::fs::write(&identity, written.replace("format 1", "format 2")).unwrap();
    let ended = serve(1, &data).await.unwrap();
    assert_refused(&ended, &["another version of ringfence", "format 2"]);
    assert_eq!(ended.status.code(), Some(FINAL), "{ended:?}");
    std::fs::write(&identity, written.replace("node 1", "node 3")).unwrap();
    assert_refused(&serve(3, &data).await.unwrap(), &["NODE is damaged"]);
    std::fs::remove_file(&identity).unwrap();
    assert_refused(&serve(1, &data).await.unwrap(), &["not a data directory of ringfence", "--data"]);

    // Nothing of that has changed the directory.
    std::fs::write(&identity, written).unwrap();
    node.start().unwrap();
    cluster.ready().await.unwrap();
    take(&node.client(), "served/again").await;
}

#[tokio::test]
async fn an_address_in_use_is_refused_by_its_flag() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    // Another attempt may succeed, so the service manager makes one.
    for (http, peer, flag) in
        [(taken.to_string(), "127.0.0.1:0", "--http"), ("127.0.0.1:0".into(), &taken.to_string(), "--peer")]
    {
        let arguments = ["serve", "--id=1", "--data=d", "--http", &http, "--peer", peer];
        let ended = run(PROGRAM, arguments, ENDS_WITHIN).await.unwrap();
        assert_refused(&ended, &["cannot listen on", &taken.to_string(), flag]);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    }
}

#[tokio::test]
async fn settings_that_cannot_be_right_end_with_a_status_of_their_own() {
    for (wrong, said) in
        [("--peers=1=a:1", "does not list this node"), ("--http-threads=0", "--http-threads")]
    {
        let ended = run(PROGRAM, ["serve", "--id=2", "--data=d", wrong], ENDS_WITHIN).await.unwrap();
        assert_refused(&ended, &[said]);
        assert_eq!(ended.status.code(), Some(FINAL), "{ended:?}");
    }
}

#[tokio::test]
async fn a_directory_with_somebody_elses_files_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("thesis.tex");
    std::fs::write(&file, "years of work").unwrap();
    let data = dir.path().to_str().unwrap();
    let arguments = ["serve", "--id=1", "--http=127.0.0.1:0", "--peer=127.0.0.1:0", "--data", data];
    let ended = run(PROGRAM, arguments, ENDS_WITHIN).await.unwrap();
    assert_refused(&ended, &["is not empty, and not a data directory of ringfence"]);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [file]);
}

#[tokio::test]
async fn a_wiped_node_is_refused_under_its_old_id_and_the_others_go_on() {
    let cluster = cluster().start().await.unwrap();
    for (wiped, name) in [(1, "wiped/lowest"), (3, "wiped/other")] {
        let node = cluster.node(wiped);
        node.kill().unwrap();
        let kept = node.data().with_extension("kept");
        std::fs::rename(node.data(), &kept).unwrap();
        let ended = node.start_in_vain().await.unwrap();
        let knows = format!("knows node {wiped} with another data directory");
        assert_refused(
            &ended,
            &[&knows, "If its own data directory, and not a copy of it, is elsewhere", "add it again"],
        );
        assert_eq!(ended.status.code(), Some(FINAL), "{ended:?}");
        for other in cluster.others(wiped) {
            take(&other.client(), &format!("{name}/{}", other.id())).await;
        }
        // The remedy that the message gives.
        std::fs::remove_dir_all(node.data()).unwrap();
        std::fs::rename(&kept, node.data()).unwrap();
        node.start().unwrap();
        cluster.ready().await.unwrap();
        take(&node.client(), name).await;
    }
}

/// With an empty log and its old identity, a node could vote twice in a term, or for a leader that lacks what it acknowledged.
#[tokio::test]
async fn a_node_whose_log_alone_is_gone_is_refused() {
    let cluster = cluster().start().await.unwrap();
    take(&cluster.node(1).client(), "before").await;
    let node = cluster.node(2);
    node.kill().unwrap();
    std::fs::remove_dir_all(node.data().join("log")).unwrap();
    let ended = node.start_in_vain().await.unwrap();
    assert_refused(&ended, &["is gone", "forgotten what it voted"]);
    assert_eq!(ended.status.code(), Some(FINAL), "{ended:?}");
    for other in cluster.others(2) {
        take(&other.client(), &format!("after/{}", other.id())).await;
    }
}

#[tokio::test]
async fn a_node_that_the_cluster_does_not_know_is_refused() {
    let cluster = cluster().start().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ip = cluster.node(1).peer().ip();
    let mut peers: Vec<String> =
        cluster.nodes().iter().map(|node| format!("{}={}", node.id(), node.peer())).collect();
    peers.push(format!("4={ip}:7504"));
    let arguments = [
        "serve".to_owned(),
        "--id=4".to_owned(),
        format!("--http={ip}:7404"),
        format!("--peer={ip}:7504"),
        format!("--peers={}", peers.join(",")),
        format!("--data={}", dir.path().join("data").display()),
    ];
    let ended = run(PROGRAM, arguments, ENDS_WITHIN).await.unwrap();
    assert_refused(&ended, &["does not know node 4", "correct --peers"]);
    for node in cluster.nodes() {
        take(&node.client(), &format!("still/{}", node.id())).await;
        assert_eq!(node.client().cluster().await.done().members.len(), 3);
    }
}

#[tokio::test]
async fn a_damaged_log_is_refused_with_file_and_offset_and_the_others_go_on() {
    let cluster = cluster().start().await.unwrap();
    for number in 0..20 {
        take(&cluster.node(1).client(), &format!("before/{number}")).await;
    }
    for node in cluster.nodes() {
        assert!(node.terminate().await.unwrap().success());
        let (segment, damaged_at, written) = damage_the_middle(node);
        let ended = node.start_in_vain().await.unwrap();
        let name = segment.file_name().unwrap().to_str().unwrap();
        assert_refused(&ended, &["the log is damaged", name, "at byte"]);
        assert_eq!(ended.status.code(), Some(FINAL), "{ended:?}");
        let told = ended.output.split("at byte ").nth(1).unwrap();
        let told: usize = told.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        assert!(told <= damaged_at && damaged_at < told + 512, "reported {told}, damaged at {damaged_at}");
        for other in cluster.others(node.id()) {
            take(&other.client(), &format!("without/{}/{}", node.id(), other.id())).await;
        }
        std::fs::write(&segment, written).unwrap();
        node.start().unwrap();
        cluster.ready().await.unwrap();
    }
}

/// Flips a bit in the middle of the used part of a log. Returns the file, the offset, and the former contents.
fn damage_the_middle(node: &Node) -> (std::path::PathBuf, usize, Vec<u8>) {
    let mut segments: Vec<_> =
        std::fs::read_dir(node.data().join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    let segment = segments.remove(0);
    let written = std::fs::read(&segment).unwrap();
    let used = written.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(used > 4 * 512, "only {used} bytes are used: there is no middle");
    let mut damaged = written.clone();
    damaged[used / 2] ^= 4;
    std::fs::write(&segment, damaged).unwrap();
    (segment, used / 2, written)
}

#[tokio::test]
async fn unknown_words_are_refused_by_name() {
    let (_dir, file) = file_of("ringfence.toml");
    std::fs::write(&file, "id = 1\ndate = \"d\"\n").unwrap();
    let config = format!("--config={}", file.display());
    for (arguments, name) in [
        (vec!["serve", "--id=1", "--data=d", "--frobnicate"], "--frobnicate"),
        (vec!["serv"], "serv"),
        (vec!["serve", &config], "date"),
        (vec!["serve", "--data=d"], "--id"),
        (vec!["serve", "--id=1"], "--data"),
        (vec!["serve", "--id=1", "--data=d", "--peers=2=a:1"], "--peers"),
        (vec!["dev", "--nodes=0"], "--nodes"),
        (vec!["dev", "--mirror-prefix=p"], "--redis"),
    ] {
        let ended = run(PROGRAM, &arguments, ENDS_WITHIN).await.unwrap();
        assert_refused(&ended, &[name]);
    }
}

/// A variable that a deployment forgot to fill. An empty RINGFENCE_PEERS once let each node found a cluster of its own.
#[tokio::test]
async fn every_setting_that_is_set_and_empty_is_refused_by_name() {
    let help = run(PROGRAM, ["serve", "--help"], ENDS_WITHIN).await.unwrap().output;
    let settings: Vec<String> = help
        .split("[env: RINGFENCE_")
        .skip(1)
        .map(|rest| rest.split(['=', ']']).next().unwrap().to_lowercase().replace('_', "-"))
        .collect();
    assert!(settings.len() > 30, "{settings:?}");
    for setting in settings {
        let empty = format!("--{setting}=");
        let mut arguments = vec!["serve", "--check", "--id=1", "--data=d", "--redis=redis://a"];
        arguments.retain(|argument| !argument.starts_with(&empty));
        arguments.push(&empty);
        let ended = run(PROGRAM, arguments, ENDS_WITHIN).await.unwrap();
        assert_eq!(ended.status.code(), Some(2), "{empty} {}", ended.output);
        assert!(ended.output.replace('.', "-").contains(&setting), "{empty} {}", ended.output);
    }
}

/// Regression: an unknown level was taken for the name of a target, and nothing was logged.
#[tokio::test]
async fn a_misspelt_log_level_is_refused() {
    let arguments = ["serve", "--id=1", "--data=d", "--log=inof", "--http=127.0.0.1:0", "--peer=127.0.0.1:0"];
    assert_refused(&run(PROGRAM, arguments, ENDS_WITHIN).await.unwrap(), &["--log"]);
}

/// It must have failed without a panic, and its output must contain all of this.
fn assert_refused(ended: &Ended, said: &[&str]) {
    assert!(ended.status.code().is_some_and(|code| code != 0 && code != 101), "{ended:?}");
    assert!(!ended.output.contains("panicked"), "{ended:?}");
    for words in said {
        assert!(ended.output.contains(words), "{words:?} is not in {:?}", ended.output);
    }
}
