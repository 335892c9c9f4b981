//! Commands that changed their user. The lock may not signal them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt, BufReader};

use super::terminal::{Typed, script_in};
use super::*;

/// A directory with what an unprivileged user can run: the program, and a shell command that becomes root, writes 0 to `up` if
/// it is, and runs until a file `go` exists.
struct BecomesRoot {
    dir: TempDir,
    program: PathBuf,
    command: String,
}

impl BecomesRoot {
    /// `None` where this is not root.
    async fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let dir = TempDir::new().unwrap();
        let [program, setpriv, up, go] =
            ["ringfence", "setpriv", "up", "go"].map(|name| dir.path().join(name));
        let which = Command::new("sh").args(["-c", "command -v setpriv"]).output().await.unwrap();
        fs::copy(PROGRAM, &program).unwrap();
        fs::copy(String::from_utf8(which.stdout).unwrap().trim(), &setpriv).unwrap();
        for (path, mode) in [(dir.path(), 0o777), (program.as_path(), 0o755), (setpriv.as_path(), 0o4755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let (up, go, setpriv) = (up.display(), go.display(), setpriv.display());
        let waits = format!(
            "until test -e {go}; do grep -q Uid:.0.0 /proc/$$/status; echo $? > {up}; sleep 0.05; done"
        );
        let command = format!("{setpriv} --reuid 0 sh -c '{waits}'");
        Some(Self { dir, program, command })
    }

    /// Whether the command became root. If not, prints so and ends it.
    async fn succeeds(&self) -> bool {
        let is_root = text_of(&self.dir.path().join("up")).await == "0\n";
        if !is_root {
            self.end();
            eprintln!("skipped: programs here cannot become another user");
        }
        is_root
    }

    fn end(&self) {
        fs::write(self.dir.path().join("go"), "").unwrap();
    }
}

#[tokio::test]
async fn a_process_of_another_user_is_reported_and_waited_for() {
    let Some(root) = BecomesRoot::new().await else { return };
    let cluster = cluster().await;
    let command = lock(&cluster, "a --kill-after 300ms", &format!("{} & wait", root.command));
    let mut command = by(&["setpriv", "--reuid", "65534", "--clear-groups"], command, Some(&root.program));
    let mut child = command.spawn().unwrap();
    if !root.succeeds().await {
        return;
    }
    signal(&child, Signal::TERM);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut log = String::new();
    while !log.contains("killing") {
        let line = tokio::time::timeout(SOON, lines.next_line()).await.expect("it is reported").unwrap();
        log += &line.expect("it goes on");
    }
    assert!(log.contains("cannot signal"), "{log}");
    assert_eq!(view(&cluster, "a").await.holders.len(), 1);
    root.end();
    end_of(child).await.with(143);
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn ctrl_z_keeps_the_lease_of_a_command_that_partly_became_another_user() {
    let Some(root) = BecomesRoot::new().await else { return };
    let cluster = cluster().await;
    let command = format!("{} & echo up; read x; echo got $x; wait", root.command);
    let script = script_in(&root.dir, &format!("{} lock a --ttl 60s --", root.program.display()), &command);
    let mut typed = Typed::start(&cluster, "exec setpriv --reuid 65534 --clear-groups bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    if !root.succeeds().await {
        return;
    }
    typed.types("\x1a").await;
    typed.shows("Stopped").await;
    assert_eq!(view(&cluster, "a").await.holders.len(), 1);
    typed.types("fg\n").await;
    typed.shows("cannot signal").await;
    typed.types("said\n").await;
    typed.shows("got said").await;
    root.end();
    typed.shows("went on").await;
    is_free(&cluster, "a").await;
}
