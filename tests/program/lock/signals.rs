//! Signals to the lock and to its command.

use super::*;

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_the_queue() {
    let cluster = cluster().await;
    take(&cluster, "a").await;
    for (sent, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let child = lock(&cluster, "a", "echo ran").spawn().unwrap();
        waiters(&cluster, "a", 1).await;
        signal(&child, sent);
        let end = end_of(child).await;
        assert_eq!((as_shown(end.status), end.out.as_str()), (Some(expected), ""), "{end:?}");
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
    end_of(child).await.says(0, "ran\n");
}

#[tokio::test]
async fn signals_reach_the_command_and_its_children() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let script = format!(
        "trap 'echo caught; exit 3' TERM; sleep 100 & echo $$ $! > {0}.new; mv {0}.new {0}; wait",
        file.display()
    );
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&child, Signal::TERM);
    end_of(child).await.says(3, "caught\n");
    die(&pids).await;
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn signals_ignored_as_under_nohup_stay_ignored() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pid");
    let script = format!("trap 'exit 5' USR1; echo $$ > {}; while :; do sleep 0.05; done", file.display());
    let child = after("trap '' HUP INT", lock(&cluster, "a", &script), "").spawn().unwrap();
    text_of(&file).await;
    for sent in [Signal::HUP, Signal::INT, Signal::USR1] {
        signal(&child, sent);
    }
    end_of(child).await.with(5);
}

#[tokio::test]
async fn without_a_terminal_stopping_the_lock_stops_the_command() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pid");
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
    end_of(child).await.with(5);
}

/// As a server reads its configuration again, and its children serve on.
#[tokio::test]
async fn signals_that_do_not_end_the_job_go_to_the_command_alone() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let [log, pids] = ["log", "pids"].map(|name| dir.path().join(name));
    let names = ["HUP", "USR1", "USR2", "WINCH", "CONT"];
    let traps = names.map(|name| format!("trap 'echo {name} >> {}' {name}; ", log.display())).concat();
    // The child does not handle them, and was stopped by somebody.
    let script = format!(
        "{traps} sh -c 'kill -STOP $$; exec sleep 1000' >&- 2>&- & echo $! $$ > {0}.new; mv {0}.new {0}; while :; do wait; done",
        pids.display()
    );
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let left = Left(pids_in(&pids).await[0]);
    let is_stopped =
        || async { (state(left.0.as_raw_nonzero().get().unsigned_abs()) == Some('T')).then_some(()) };
    until(SOON, "the child is stopped", is_stopped).await.unwrap();
    for (sent, name) in
        [Signal::HUP, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT].into_iter().zip(names)
    {
        signal(&child, sent);
        let logged = || async { text_of(&log).await.ends_with(&format!("{name}\n")).then_some(()) };
        until(SOON, format!("{name} is handled"), logged).await.unwrap();
        is_stopped().await.unwrap_or_else(|| panic!("{name} reached the child"));
    }
    assert_eq!(text_of(&log).await.lines().collect::<Vec<_>>(), names);
    signal(&child, Signal::KILL);
    die(&[left.0]).await;
}

#[tokio::test]
async fn each_process_gets_the_signal_that_ends_the_job_once_also_below_another_lock() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let [worker, up, log] = ["worker", "up", "log"].map(|name| dir.path().join(name).display().to_string());
    // They stay until they are killed, so that a second signal would be seen.
    let handler = format!("trap 'echo $$ >> {log}' TERM; echo $$ >> {up}; while :; do sleep 0.05; done");
    std::fs::write(&worker, handler).unwrap();
    // Their parent dies of the signal.
    let script = format!(
        "exec >&- 2>&-; for i in 1 2 3 4 5; do setsid sh {worker} & sh {worker} & done; \
         {PROGRAM} lock b -- sh {worker} & wait"
    );
    let child = lock(&cluster, "a --kill-after 4s", &script).spawn().unwrap();
    let all = || async { (text_of(Path::new(&up)).await.lines().count() == 11).then_some(()) };
    until(SOON, "all are up", all).await.unwrap();
    signal(&child, Signal::TERM);
    end_of(child).await.with(143);
    let sorted = |file: String| async move {
        let mut lines: Vec<String> = text_of(Path::new(&file)).await.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(log).await, sorted(up).await);
}

#[tokio::test]
async fn a_command_that_ignores_a_signal_that_was_passed_on_is_killed() {
    let cluster = cluster().await;
    for sent in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let (_dir, file) = file_of("pid");
        let script =
            format!("trap '' TERM INT QUIT; echo $$ > {}; while :; do sleep 0.05; done", file.display());
        let child = lock(&cluster, "a --kill-after 500ms", &script).spawn().unwrap();
        pids_in(&file).await;
        signal(&child, sent);
        end_of(child).await.with(137);
        is_free(&cluster, "a").await;
    }
}
