//! Signals to the lock and to its command.

use tempfile::TempDir;

use super::*;

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_the_queue() {
    let cluster = cluster().await;
    take(&cluster, "a").await;
    for (sent, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let child = lock(&cluster, "a", "echo ran").spawn().unwrap();
        waiters(&cluster, "a", 1).await;
        signal(&child, sent);
        let (status, out, err) = end_of(child).await;
        assert_eq!((as_shown(status), out.as_str()), (Some(expected), ""), "{err}");
        // At once, not when its closed connection is noticed, 2 s later.
        assert_eq!(view(&cluster, "a").await.waiters, []);
    }
}

#[tokio::test]
async fn a_stopped_waiter_still_waits_when_it_continues() {
    let cluster = cluster().await;
    let lease_id = take(&cluster, "a").await;
    let child = lock(&cluster, "a", "echo ran").spawn().unwrap();
    waiters(&cluster, "a", 1).await;
    signal(&child, Signal::TSTP);
    let pid = child.id().unwrap();
    let stopped = || async { (state(pid) == Some('T')).then_some(()) };
    until(SOON, "it is stopped", stopped).await.unwrap();
    signal(&child, Signal::CONT);
    cluster.node(1).client().patient().release(lease_id).await.done();
    let (status, out, err) = end_of(child).await;
    assert_eq!((status.code(), out.as_str()), (Some(0), "ran\n"), "{err}");
}

#[tokio::test]
async fn signals_reach_the_command_and_its_children() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let script = format!(
        "trap 'echo caught; exit 3' TERM; sleep 100 & echo $$ $! > {0}.new; mv {0}.new {0}; wait",
        file.display()
    );
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&child, Signal::TERM);
    let (status, out, err) = end_of(child).await;
    assert_eq!((status.code(), out.as_str()), (Some(3), "caught\n"), "{err}");
    die(&pids).await;
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn signals_ignored_as_under_nohup_stay_ignored() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pid");
    let script = format!("trap 'exit 5' USR1; echo $$ > {}; while :; do sleep 0.05; done", file.display());
    let child = after("trap '' HUP INT", lock(&cluster, "a", &script), "").spawn().unwrap();
    text_of(&file).await;
    for sent in [Signal::HUP, Signal::INT, Signal::USR1] {
        signal(&child, sent);
    }
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(5), "{err}");
}

#[tokio::test]
async fn without_a_terminal_stopping_the_lock_stops_the_command() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pid");
    // While a shell starts a command by vfork it is in another state than T, even if it was stopped.
    let script =
        format!("trap 'kill $!; exit 5' USR1; sleep 1000 >&- 2>&- & echo $$ > {}; wait", file.display());
    let child = after("", lock(&cluster, "a", &script), "setsid").spawn().unwrap();
    let pid = pids_in(&file).await[0].as_raw_nonzero().get().unsigned_abs();
    for (sent, is_stopped) in [(Signal::TSTP, true), (Signal::CONT, false)] {
        signal(&child, sent);
        let look = || async { ((state(pid) == Some('T')) == is_stopped).then_some(()) };
        until(SOON, format!("{sent:?} has reached it"), look).await.unwrap();
    }
    signal(&child, Signal::USR1);
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(5), "{err}");
}
