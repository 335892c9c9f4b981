//! Commands whose lease has ended or may have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;

#[tokio::test]
#[ignore = "slow"]
async fn without_a_cluster_a_stubborn_command_and_its_children_die_before_the_lease_can_end() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let child = lock(&cluster, "a --ttl 6s", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    assert!(pids.len() >= 4, "{pids:?}");
    die_without_the_cluster(&cluster, vec![child], &pids).await;
}

/// Measures how late this machine wakes a thread.
struct Lateness {
    enough: Arc<AtomicBool>,
    worst: std::thread::JoinHandle<Duration>,
}

impl Lateness {
    fn start() -> Self {
        const NAP: Duration = Duration::from_millis(5);
        let enough = Arc::<AtomicBool>::default();
        let is_enough = Arc::clone(&enough);
        let worst = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !is_enough.load(Ordering::Relaxed) {
                let slept = Instant::now();
                std::thread::sleep(NAP);
                worst = worst.max(slept.elapsed() - NAP);
            }
            worst
        });
        Self { enough, worst }
    }

    /// Fails if more than 6 s, the TTL of the lease, have passed since `since`. The kill, the death, and its observation may each
    /// be as late as a nap was.
    fn check(self, since: Instant) {
        let took = since.elapsed();
        self.enough.store(true, Ordering::Relaxed);
        let worst = self.worst.join().unwrap();
        assert!(took < Duration::from_secs(6) + 3 * worst, "{took:?}, where a nap ends {worst:?} late");
    }
}

/// Stops the cluster, checks that these processes die before a lease of 6 s can end and that the children exit with 76, and
/// continues the cluster.
pub(crate) async fn die_without_the_cluster(cluster: &Cluster, children: Vec<Child>, pids: &[Pid]) {
    let (lateness, stopped) = (Lateness::start(), Instant::now());
    for node in cluster.nodes() {
        node.stop().unwrap();
    }
    die(pids).await;
    // The last renewal was sent before.
    lateness.check(stopped);
    for child in children {
        end_of(child).await.with(76);
    }
    for node in cluster.nodes() {
        node.resume().unwrap();
    }
}

#[tokio::test]
async fn a_command_whose_lease_is_revoked_is_killed() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let child = lock(&cluster, "a --ttl 10s", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    let token = view(&cluster, "a").await.holders[0].token;
    cluster.node(2).client().patient().revoke(&key("a"), token).await.done();
    die(&pids).await;
    let err = end_of(child).await.with(76).err;
    assert!(err.contains("revoked"), "{err}");
}

/// Pipes that cannot be written to: a full one, and one without a reader.
fn pipes_in_vain() -> (std::io::PipeReader, [std::io::PipeWriter; 2]) {
    let (reader, full) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut writer = &full;
    while std::io::Write::write(&mut writer, &[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
    let (_, broken) = std::io::pipe().unwrap();
    (reader, [full, broken])
}

#[tokio::test]
#[ignore = "slow"]
async fn a_command_ends_with_its_lease_even_if_standard_error_blocks() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let (_reader, pipes) = pipes_in_vain();
    let (mut children, mut pids) = (Vec::new(), Vec::new());
    for (key, pipe) in ["a", "b"].into_iter().zip(pipes) {
        let file = dir.path().join(key);
        let mut command = lock(&cluster, &format!("{key} --ttl 6s"), &stubborn(&file));
        children.push(command.stderr(pipe).spawn().unwrap());
        pids.extend(pids_in(&file).await);
    }
    die_without_the_cluster(&cluster, children, &pids).await;
    take(&cluster, "c").await;
    let (_reader, [_, broken]) = pipes_in_vain();
    let mut command = lock(&cluster, "c --try", "true");
    command.stderr(broken);
    run(command).await.with(75);
}

/// As a debugger stops it. The command goes on, and nobody renews the lease.
#[tokio::test]
async fn a_command_is_dead_before_another_holds_while_its_lock_alone_is_stopped() {
    let cluster = cluster().await;
    let (_dir, file) = file_of("pids");
    let child = lock(&cluster, "a --ttl 6s", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&child, Signal::STOP);
    let looks = format!(
        "for pid in $(cat {}); do grep -s ^State: /proc/$pid/status; done; echo held",
        file.display()
    );
    let end = run(lock(&cluster, "a", &looks)).await;
    signal(&child, Signal::CONT);
    let out = end.with(0).out;
    assert!(out.ends_with("held\n"), "{out}");
    let lives = |line: &&str| line.starts_with("State:") && !line.contains('Z');
    assert_eq!(out.lines().filter(lives).count(), 0, "{pids:?}: {out}");
    let err = end_of(child).await.with(76).err;
    assert!(err.contains("lost"), "{err}");
}

#[tokio::test]
#[ignore = "slow"]
async fn a_command_is_not_started_after_a_pause_that_its_lease_may_not_have_survived() {
    if !may_inject() {
        return;
    }
    let cluster = cluster().await;
    let (_dir, file) = file_of("started");
    // The first process or thread that the main thread makes writes to standard error, the second is the supervisor.
    let pause = "inject=clone,clone3,vfork:delay_enter=7000000:when=2";
    let words =
        ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=clone,clone3,vfork", "-e", pause];
    let command = lock(&cluster, "a --ttl 5s", &format!("touch {}", file.display()));
    let err = run(by(&words, command, None)).await.with(76).err;
    assert!(!file.exists(), "{err}");
}
