//! The environment of the command, and exit statuses.

use ringfence_wire::Token;
use tokio::io::AsyncWriteExt;

use super::*;

#[tokio::test]
async fn the_exit_status_is_that_of_the_command_and_the_key_is_free_then() {
    let cluster = cluster().await;
    run(lock(&cluster, "a", "exit 0")).await.with(0);
    run(lock(&cluster, "a", "exit 7")).await.with(7);
    run(lock(&cluster, "a", "kill -USR1 $$")).await.with(128 + 10);
    run(lock(&cluster, "a", "kill -KILL $$")).await.with(128 + 9);
    is_free(&cluster, "a").await;
    for (program, expected) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let err = run(ringfence(&cluster, &format!("lock a -- {program}"))).await.with(expected).err;
        assert!(err.contains(program), "{err}");
    }
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn without_the_lock_nothing_runs_and_the_exit_status_says_so() {
    let cluster = cluster().await;
    take(&cluster, "a").await;
    for (words, expected) in [("a --try", 75), ("a --wait 200ms", 75), ("b a --try -E 9", 9)] {
        let err = run(lock(&cluster, words, "echo ran")).await.says(expected, "");
        assert!(err.contains("ringfence: "), "{err}");
    }
    is_free(&cluster, "b").await;
    cluster.kill_all().unwrap();
    run(lock(&cluster, "c --try", "echo ran")).await.says(125, "");
    let err = run(lock(&cluster, "c//d", "echo ran")).await.with(125).err;
    assert!(err.contains("keys[0]"), "{err}");
}

#[tokio::test]
async fn the_command_gets_its_token_and_standard_input() {
    let cluster = cluster().await;
    let script = "env | grep ^RINGFENCE_ | grep -vE 'URLS|UNDER_TEST'; cat";
    let mut command = lock(&cluster, "b a --ttl 30s", script);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let held = || async { view(&cluster, "a").await.holders.first().map(|holder| holder.token) };
    let token = until(SOON, "it holds", held).await.unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(b"said\n").await.unwrap();
    drop(pipe);
    let out = end_of(child).await.with(0).out;
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.pop(), Some("said"));
    lines.sort_unstable();
    // The second key and the second fence are on lines of their own.
    let (fence, name) = (format!("RINGFENCE_FENCE={token}"), format!("RINGFENCE_TOKEN={token}"));
    // So are the keys, with their tokens.
    let held = format!("RINGFENCE_HELD={token} b");
    assert_eq!(lines, [fence.as_str(), &held, "RINGFENCE_KEYS=b", name.as_str()], "{out}");
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn commands_on_one_key_run_one_after_the_other_and_readers_together() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("log");
    // A command that is not alone finds the file of the other.
    let script = format!(
        "test ! -e {0}.in && touch {0}.in && sleep 0.05 && rm {0}.in && echo . >> {0}",
        file.display()
    );
    let children: Vec<Child> = (0..8).map(|_| lock(&cluster, "jobs/a", &script).spawn().unwrap()).collect();
    for child in children {
        end_of(child).await.with(0);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 8);

    // Two readers hold at once: each waits for the other.
    let met = |own: &str, other: &str| {
        format!("touch {0}.{own}; until test -e {0}.{other}; do sleep 0.01; done", file.display())
    };
    let readers = [met("r1", "r2"), met("r2", "r1")];
    let children: Vec<Child> = readers
        .iter()
        .map(|script| lock(&cluster, "b --shared --limit 2", script).spawn().unwrap())
        .collect();
    for child in children {
        end_of(child).await.with(0);
    }
}

#[tokio::test]
async fn a_command_is_ended_after_its_maximum_time() {
    let cluster = cluster().await;
    run(lock(&cluster, "a --max 200ms", "sleep 1000")).await.with(128 + 15);
    // If the signal comes before the shell has set its trap, try again with more time.
    for (words, script, expected) in [
        ("--signal usr1", "trap 'exit 5' USR1; echo set; sleep 1000 & wait", 5),
        ("--kill-after 300ms", "trap '' TERM; echo set; sleep 1000 & wait; wait", 128 + 9),
    ] {
        let mut ended = None;
        for max in ["200ms", "2s", "20s"] {
            let end = run(lock(&cluster, &format!("a --max {max} {words}"), script)).await;
            if end.out == "set\n" {
                ended = Some(end);
                break;
            }
        }
        ended.expect("the shell sets its trap in time").with(expected);
    }
    is_free(&cluster, "a").await;
}

/// Nothing forces SIGKILL upon it while the lease is healthy.
#[tokio::test]
async fn a_command_has_as_much_time_after_its_maximum_as_was_said() {
    let cluster = cluster().await;
    let script = "trap 'sleep 4; exit 5' TERM; echo set; while :; do sleep 0.05; done";
    run(lock(&cluster, "a --ttl 6s --max 2s --kill-after 10m", script)).await.with(5);
}

#[tokio::test]
async fn a_lock_that_would_wait_for_itself_fails_at_once() {
    let cluster = cluster().await;
    let nested = |outer: &str, inner: &str| {
        lock(&cluster, outer, &format!("{PROGRAM} lock b -- {PROGRAM} lock {inner} -- echo ran"))
    };
    for (outer, inner) in [("a", "a"), ("a", "c a"), ("a", "a --shared"), ("a --shared", "a")] {
        let err = run(nested(outer, inner)).await.says(125, "");
        assert!(err.contains("wait for itself"), "{err}");
    }
    for (outer, inner) in [("a", "c"), ("a --shared", "a --shared")] {
        run(nested(outer, inner)).await.says(0, "ran\n");
    }
    // The lease of the variable has ended.
    let mut late = lock(&cluster, "a", "echo ran");
    late.env("RINGFENCE_HELD", "3 a\n");
    assert_eq!(run(late).await.out, "ran\n");
}

#[tokio::test]
async fn a_waiter_can_start_its_command_after_the_program_was_replaced() {
    let cluster = cluster().await;
    let (_dir, program) = file_of("ringfence");
    std::fs::copy(PROGRAM, &program).unwrap();
    let lease_id = take(&cluster, "a").await;
    let child = by(&[], lock(&cluster, "a", "echo ran"), Some(&program)).spawn().unwrap();
    waiters(&cluster, "a", 1).await;
    std::fs::remove_file(&program).unwrap();
    cluster.node(1).client().patient().release(lease_id).await.done();
    end_of(child).await.says(0, "ran\n");
}

#[tokio::test]
async fn invalid_arguments_have_an_exit_status_of_their_own() {
    let cluster = cluster().await;
    for (words, named) in [("a --no-such-flag", "--no-such-flag"), ("a --ttl 1999ms", "--ttl")] {
        let err = run(lock(&cluster, words, "echo ran")).await.says(125, "");
        assert!(err.contains(named), "{err}");
    }
    let err = run(ringfence(&cluster, "lock a echo ran")).await.says(125, "");
    assert!(err.contains("`--` goes between"), "{err}");
    assert!(!run(ringfence(&cluster, "lock --help")).await.with(0).out.is_empty());
}

#[tokio::test]
#[ignore = "slow"]
async fn a_lease_is_kept_beyond_its_ttl() {
    let cluster = cluster().await;
    let child = lock(&cluster, "a --ttl 6s", "sleep 10; echo $RINGFENCE_TOKEN").spawn().unwrap();
    let held = || async { view(&cluster, "a").await.holders.first().map(|holder| holder.token) };
    let token = until(SOON, "it holds", held).await.unwrap();
    let out = end_of(child).await.with(0).out;
    assert_eq!(out.trim(), token.to_string());
    assert_eq!(view(&cluster, "a").await.fence, Token(token.0 + 2), "granted and released, and nothing else");
}
