//! A lock in a terminal.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A shell in a terminal.
pub(crate) struct Typed {
    script: Child,
    shown: Arc<Mutex<String>>,
}

impl Typed {
    pub(crate) fn start(cluster: &Cluster, shell: &str) -> Self {
        let mut command = Command::new("script");
        command.args(["-qec", shell, "/dev/null"]);
        command.env("PROGRAM", PROGRAM).env("RINGFENCE_URLS", urls(cluster));
        command.env("PS1", "").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut script = command.spawn().unwrap();
        let mut out = script.stdout.take().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&shown);
        tokio::spawn(async move {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = out.read(&mut bytes).await {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { script, shown }
    }

    pub(crate) async fn types(&mut self, text: &str) {
        let keyboard = self.script.stdin.as_mut().unwrap();
        keyboard.write_all(text.as_bytes()).await.unwrap();
    }

    /// Waits until the terminal shows `text`. What is typed is shown, too.
    pub(crate) async fn shows(&self, text: &str) {
        let look = || async { self.shown.lock().unwrap().contains(text).then_some(()) };
        let seen = until(SOON, format!("{text:?} is shown"), look).await;
        assert!(seen.is_ok(), "{text:?} is not in {:?}", self.shown.lock().unwrap());
    }
}

/// Writes a script that locks `a` for a command and then goes on; returns the shell command to run it.
pub(crate) fn script_in(dir: &TempDir, lock: &str, command: &str) -> String {
    let [script, of_lock] = ["script", "command"].map(|name| dir.path().join(name));
    std::fs::write(&of_lock, command).unwrap();
    std::fs::write(&script, format!("{lock} sh {}\necho went on\n", of_lock.display())).unwrap();
    format!("sh {}", script.display())
}

#[tokio::test]
async fn ctrl_c_ends_a_script_whose_command_it_ended_and_one_that_waits() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = script_in(&dir, "$PROGRAM lock a --", "echo up; exec sleep 1000");
    for waits in [false, true] {
        if waits {
            take(&cluster, "a").await;
        }
        let mut typed = Typed::start(&cluster, &script);
        if waits {
            waiters(&cluster, "a", 1).await;
        } else {
            typed.shows("up").await;
        }
        typed.types("\x03").await;
        tokio::time::timeout(SOON, typed.script.wait()).await.expect("it ends").unwrap();
        let shown = typed.shown.lock().unwrap().clone();
        assert!(!shown.contains("went on"), "{shown}");
    }
}

#[tokio::test]
async fn ctrl_z_stops_a_script_and_the_command_in_it_and_fg_continues_both() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = script_in(&dir, "$PROGRAM lock a --ttl 60s --", "echo up; read x; echo got $x");
    let mut typed = Typed::start(&cluster, "bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    typed.types("\x1a").await;
    typed.shows("Stopped").await;
    typed.types("echo ba''ck\n").await;
    typed.shows("back").await;
    typed.types("fg\n").await;
    typed.types("said\n").await;
    typed.shows("got said").await;
    typed.shows("went on").await;
}

/// Nobody renews the lease, and a SIGCONT to the command alone would let it write.
#[tokio::test]
async fn a_command_that_ctrl_z_stops_is_killed_before_its_lease_ends() {
    let cluster = cluster().await;
    let (dir, file) = file_of("pid");
    let command = format!("echo $$ > {}; echo up; read x", file.display());
    let script = script_in(&dir, "$PROGRAM lock a --ttl 6s --", &command);
    let mut typed = Typed::start(&cluster, "bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    typed.types("\x1a").await;
    typed.shows("Stopped").await;
    die(&pids_in(&file).await).await;
    typed.types("fg\n").await;
    typed.shows("killing the command").await;
    typed.shows("went on").await;
}

#[tokio::test]
async fn a_command_in_a_pipe_gets_the_terminal_when_it_asks_for_it() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let command = "echo up; read x </dev/tty; echo got $x";
    let script = script_in(&dir, "true | $PROGRAM lock a --ttl 60s --", command);
    let mut typed = Typed::start(&cluster, "bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    typed.types("said\n").await;
    typed.shows("got said").await;
    typed.shows("went on").await;
}

/// Its window was closed.
#[tokio::test]
async fn a_terminal_that_hangs_up_ends_the_command_and_its_descendants() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let [worker, log] = ["worker", "log"].map(|name| dir.path().join(name).display().to_string());
    let handler = format!("trap 'echo hung up > {log}; exit' HUP; echo up; while :; do sleep 0.05; done");
    std::fs::write(&worker, handler).unwrap();
    let script = script_in(&dir, "exec $PROGRAM lock a --", &format!("setsid sh {worker} & wait"));
    let mut typed = Typed::start(&cluster, &format!("exec {script}"));
    typed.shows("up").await;
    typed.script.kill().await.unwrap();
    assert_eq!(text_of(Path::new(&log)).await, "hung up\n");
    let free = || async { view(&cluster, "a").await.holders.is_empty().then_some(()) };
    until(SOON, "the key is free", free).await.unwrap();
}

#[tokio::test]
async fn who_waits_at_a_terminal_learns_who_holds() {
    let cluster = cluster().await;
    let token = {
        take(&cluster, "a").await;
        view(&cluster, "a").await.holders[0].token
    };
    let queue = lock(&cluster, "a", "true").spawn().unwrap();
    waiters(&cluster, "a", 1).await;
    let typed = Typed::start(&cluster, "$PROGRAM lock a -- true");
    typed.shows("waiting for a: held").await;
    typed.shows(&format!("with token {token}; one other waits")).await;
    drop(queue);
}
