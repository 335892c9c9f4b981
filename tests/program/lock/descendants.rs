//! Processes that the command has started, in its process group and outside of it.

use super::lost_leases::die_without_the_cluster;
use super::*;

#[tokio::test]
async fn the_command_and_its_children_die_with_their_parent() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let child = lock(&cluster, "a", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&child, Signal::KILL);
    assert_eq!(end_of(child).await.status.signal(), Some(9));
    die(&pids).await;
}

/// A shell that ends at SIGTERM, and leaves a process behind that ignores it; the id of that process is in `file`.
fn deserting(file: &Path) -> String {
    format!(
        "trap '' TERM; sleep 1000 >&- 2>&- & trap - TERM; echo $! > {0}.new; mv {0}.new {0}; wait",
        file.display()
    )
}

#[tokio::test]
#[ignore = "slow"]
async fn a_process_that_outlives_a_terminated_command_dies_before_the_key_is_free() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    for (number, words) in ["a --kill-after 500ms", "a --max 8s --kill-after 500ms"].iter().enumerate() {
        let file = dir.path().join(number.to_string());
        let child = lock(&cluster, words, &deserting(&file)).spawn().unwrap();
        let left = Left(pids_in(&file).await[0]);
        if number == 0 {
            signal(&child, Signal::TERM);
        }
        let end = end_of(child).await;
        assert!(!lives(left.0), "{words}: {end:?}");
        end.with(143);
        is_free(&cluster, "a").await;
    }

    let file = dir.path().join("ambiguous");
    let child = lock(&cluster, "a --ttl 6s", &deserting(&file)).spawn().unwrap();
    let left = Left(pids_in(&file).await[0]);
    die_without_the_cluster(&cluster, vec![child], &[left.0]).await;
}

#[tokio::test]
async fn background_processes_survive_a_command_that_ends_by_itself() {
    let cluster = cluster().await;
    let script = "sleep 1000 >&- 2>&- & echo $!";
    let out = run(lock(&cluster, "a", script)).await.with(0).out;
    is_free(&cluster, "a").await;
    let left = Left(Pid::from_raw(out.trim().parse().unwrap()).unwrap());
    assert!(lives(left.0));
}

/// A script whose children leave its process group in several ways. Each writes its id and runs `each`; then the script runs
/// `then`.
fn scattered(dir: &Path, each: &str, then: &str) -> String {
    let [child, all, pids] = ["child", "all", "pids"].map(|name| dir.join(name).display().to_string());
    std::fs::write(&child, format!("echo $$ >> {all}\n{each}\n")).unwrap();
    format!(
        "exec >&- 2>&-; timeout 1000 sh {child} & setsid sh {child} & setsid -f sh {child}; \
         (timeout 1000 setsid -w sh {child} &); until test $(wc -l < {all}) -ge 4; do sleep 0.01; done 2>/dev/null; \
         mv {all} {pids}; {then}"
    )
}

/// The children of such a script.
async fn scattered_in(dir: &Path) -> Vec<Left> {
    pids_in(&dir.join("pids")).await.into_iter().map(Left).collect()
}

#[tokio::test]
async fn processes_outside_the_process_group_end_before_the_key_is_free() {
    let cluster = cluster().await;
    let [ends, is_deaf, is_stopped] =
        ["exec sleep 1000", "trap '' TERM; sleep 1000 & wait; wait", "kill -STOP $$; exec sleep 1000"];
    for (each, then, terminated, expected) in [
        (ends, "wait", true, 143),
        (is_deaf, "wait", true, 143),
        (is_stopped, "wait", true, 143),
        // Not terminated by a signal to the lock, but a command that dies by SIGKILL leaves nothing behind on purpose.
        (ends, "kill -KILL $$", false, 137),
    ] {
        let dir = TempDir::new().unwrap();
        let script = scattered(dir.path(), each, then);
        let child = lock(&cluster, "a --kill-after 500ms", &script).spawn().unwrap();
        let left = scattered_in(dir.path()).await;
        if terminated {
            signal(&child, Signal::TERM);
        }
        let end = end_of(child).await;
        assert!(!left.iter().any(|left| lives(left.0)), "{each}, {then}: {end:?}");
        end.with(expected);
        is_free(&cluster, "a").await;
    }
}

/// A process that dies of the signal leaves its children to another parent, and they get the signal all the same.
#[tokio::test]
async fn no_process_is_killed_that_would_have_ended_by_the_signal() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = scattered(dir.path(), "exec sleep 1000", "wait");
    let child = lock(&cluster, "a --ttl 60s --kill-after 20s", &script).spawn().unwrap();
    let left = scattered_in(dir.path()).await;
    signal(&child, Signal::TERM);
    let end = end_of(child).await;
    assert!(!left.iter().any(|left| lives(left.0)), "{end:?}");
    assert_eq!(end.with(143).err, "");
}

/// Runs `command` where `pidfd_open` fails, as before Linux 5.3 (ENOSYS) or in a sandbox (EPERM). Its pid is that of `command`.
fn without_pidfds(error: &str, command: Command) -> Command {
    let fault = format!("inject=pidfd_open:error={error}");
    by(
        &["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pidfd_open", "-e", &fault],
        command,
        None,
    )
}

#[tokio::test]
async fn the_command_and_its_descendants_are_ended_without_pidfds() {
    if !may_inject() {
        return;
    }
    let cluster = cluster().await;
    for (error, words, each) in [
        ("ENOSYS", "a --ttl 60s --kill-after 20s", "exec sleep 1000"),
        ("EPERM", "a --ttl 60s --kill-after 20s", "exec sleep 1000"),
        ("ENOSYS", "a --kill-after 500ms", "trap '' TERM; sleep 1000 & wait; wait"),
        ("EPERM", "a --max 2s --kill-after 500ms", "trap '' TERM; sleep 1000 & wait; wait"),
    ] {
        let dir = TempDir::new().unwrap();
        let command = lock(&cluster, words, &scattered(dir.path(), each, "wait"));
        let child = without_pidfds(error, command).spawn().unwrap();
        let left = scattered_in(dir.path()).await;
        if !words.contains("--max") {
            signal(&child, Signal::TERM);
        }
        let end = end_of(child).await;
        assert!(!left.iter().any(|left| lives(left.0)), "{error}, {each}: {end:?}");
        let err = end.with(143).err;
        assert_eq!(err.contains("did not exit in time"), each.starts_with("trap"), "{error}: {err}");
        is_free(&cluster, "a").await;
    }
}

#[tokio::test]
async fn processes_outside_the_process_group_die_with_the_parent_of_the_command() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = scattered(dir.path(), "trap '' TERM; sleep 1000 & wait; wait", "wait");
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let left = scattered_in(dir.path()).await;
    signal(&child, Signal::KILL);
    assert_eq!(end_of(child).await.status.signal(), Some(9));
    die(&left.iter().map(|left| left.0).collect::<Vec<_>>()).await;
}

/// All processes of which this is true.
fn pids(which: impl Fn(&Pid) -> bool) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(which).collect()
}

/// The processes with this argument.
fn with_argument(argument: &str) -> Vec<Pid> {
    pids(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
}

#[tokio::test]
async fn a_process_that_forks_while_it_is_killed_does_not_escape() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let time = format!("1000.{}", std::process::id());
    // Each process has its own session, and starts others before it is killed.
    let breeds = format!(
        "trap '' TERM; for i in 1 2 3; do setsid -f sleep {time}; done; sleep 0.01; exec setsid -f sh $0"
    );
    let script = scattered(dir.path(), &breeds, "exec sleep 1000");
    let child = lock(&cluster, "a --kill-after 500ms", &script).spawn().unwrap();
    let breeding = || async { (with_argument(&time).len() > 20).then_some(()) };
    until(SOON, "they breed", breeding).await.unwrap();
    signal(&child, Signal::TERM);
    let end = end_of(child).await;
    let all = [with_argument(&time), with_argument(&dir.path().join("child").display().to_string())].concat();
    let left: Vec<Left> = all.into_iter().filter(|pid| lives(*pid)).map(Left).collect();
    assert!(left.is_empty(), "{} live: {end:?}", left.len());
    end.with(143);
}

#[tokio::test]
async fn only_sigkill_to_the_parent_of_the_command_ends_it() {
    let cluster = cluster().await;
    only_sigkill_ends_it(&cluster, |command| command).await;
    if may_inject() {
        only_sigkill_ends_it(&cluster, |command| without_pidfds("ENOSYS", command)).await;
    }
}

async fn only_sigkill_ends_it(cluster: &Cluster, run: impl FnOnce(Command) -> Command) {
    let (_dir, file) = file_of("pids");
    let script = format!("sleep 1000 & echo $$ $! $PPID > {0}.new; mv {0}.new {0}; wait", file.display());
    let child = run(lock(cluster, "a", &script)).spawn().unwrap();
    let [shell, sleep, parent] = pids_in(&file).await.try_into().unwrap();
    let (left, own) = ([Left(shell), Left(sleep)], child.id().unwrap().to_string());
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap();
    assert_eq!(stat.rsplit(')').next().unwrap().split_whitespace().nth(1), Some(own.as_str()), "{stat}");
    for sent in [Signal::HUP, Signal::INT, Signal::TERM, Signal::USR1, Signal::TSTP] {
        kill_process(parent, sent).unwrap();
    }
    assert!(left.iter().all(|left| lives(left.0)));
    kill_process(parent, Signal::KILL).unwrap();
    end_of(child).await.with(137);
    die(&left.each_ref().map(|left| left.0)).await;
    is_free(cluster, "a").await;
}

/// Runs in a pid namespace, where pids can be chosen.
#[tokio::test]
async fn a_process_that_reuses_the_pid_of_a_dead_command_is_not_killed() {
    if !is_root() {
        return;
    }
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let script = format!("echo $$ $PPID > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let first = format!(
        r#"(exec "$@") >&2 & lock=$!
        until test -e {0}; do sleep 0.05; done
        read command supervisor < {0}
        kill -STOP $lock; kill -KILL $supervisor
        while test -e /proc/$command; do sleep 0.05; done
        until test "$stranger" = $command; do
            echo $((command - 1)) > /proc/sys/kernel/ns_last_pid || exit 9
            setsid sleep 1000 & stranger=$!
        done
        until test "$(cut -d ' ' -f 5 /proc/$command/stat)" = $command; do sleep 0.05; done
        kill -CONT $lock; wait $lock; status=$?
        kill -0 $stranger && grep -q 'State:.S' /proc/$stranger/status && echo $status; exit 0"#,
        file.display()
    );
    let command = after(&first, lock(&cluster, "a --ttl 60s", &script), "");
    let command = by(&["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"], command, None);
    let end = run(command).await;
    assert_eq!(end.out, "137\n", "{end:?}");
}

#[tokio::test]
async fn nothing_is_started_where_proc_shows_other_pids() {
    if !is_root() {
        return;
    }
    let cluster = cluster().await;
    let err = run(after("", lock(&cluster, "a", "echo ran"), "unshare --fork --pid")).await.says(125, "");
    assert!(err.contains("mount"), "{err}");
    let proc = "unshare --fork --pid --mount-proc";
    run(after("", lock(&cluster, "a", "echo ran"), proc)).await.says(0, "ran\n");
}

/// A sandbox may have none. It once said only "No such file or directory".
#[tokio::test]
async fn without_proc_a_command_is_not_started_and_a_lease_is_handed_out() {
    if !is_root() {
        return;
    }
    let cluster = cluster().await;
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    // Only in a mount namespace of its own: this machine keeps its /proc.
    let script = format!(
        r#"test "$(readlink /proc/self/ns/mnt)" != '{}' && umount -l /proc && exec "$@""#,
        own.display()
    );
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script, "sh"];
    let without = |lock| by(&words, lock, None);
    let err = run(without(lock(&cluster, "a", "echo ran"))).await.says(125, "");
    assert!(err.contains("/proc"), "{err}");
    let out = run(without(ringfence(&cluster, "lock a --detach"))).await.with(0).out;
    assert!(!out.is_empty());
}

#[tokio::test]
async fn an_earlier_process_is_not_a_descendant() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let (earlier, own) = (dir.path().join("earlier"), dir.path().join("own"));
    let first = format!("sleep 1000 >&- 2>&- & echo $! > {}", earlier.display());
    let script = format!("echo $$ > {}; exec sleep 1000", own.display());
    let child = after(&first, lock(&cluster, "a", &script), "").spawn().unwrap();
    let earlier = Left(pids_in(&earlier).await[0]);
    text_of(&own).await;
    signal(&child, Signal::TERM);
    end_of(child).await.with(143);
    assert!(lives(earlier.0));
}

/// The living and dead children of a process.
fn children_of(parent: Pid) -> Vec<Pid> {
    pids(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent_of = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent_of.is_some_and(|of| of == parent.to_string())
    })
}

/// A process that entered the container (`docker exec`) leaves an orphan behind.
#[tokio::test]
async fn the_first_process_of_a_container_reaps_orphans_of_others() {
    if !is_root() {
        return;
    }
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let [up, go] = ["up", "go"].map(|name| dir.path().join(name));
    let command = lock(&cluster, "a --ttl 60s", &format!("echo up > {}; exec sleep 1000", up.display()));
    let command = by(&["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"], command, None);
    let child = { command }.spawn().unwrap();
    text_of(&up).await;
    let lock = children_of(Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap())[0];
    let children = |count: usize| {
        let look = move || async move { (children_of(lock).len() == count).then_some(()) };
        until(SOON, format!("{count} children"), look)
    };
    children(1).await.unwrap();
    let orphan = format!("setsid -f sh -c 'until test -e {}; do sleep 0.05; done' >&- 2>&-", go.display());
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &lock.to_string(), "--pid", "--mount", "sh", "-c", &orphan]);
    run(piped(enter)).await.with(0);
    children(2).await.unwrap();
    std::fs::write(&go, "").unwrap();
    children(1).await.unwrap();
}
