//! Files of a node that every user of the machine may read or write.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_harness::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{ALL, SOON, Secured, cluster, principal};

fn allow(file: &Path, mode: u32) {
    fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn files_that_others_may_access_are_warned_of_at_the_start_and_when_they_change() {
    let (_, rules) = principal("operator", ALL);
    let secured = Secured::lay_out(cluster().nodes(1), &rules).await;
    let [key, access] = ["node-1.key", "access.toml"].map(|name| secured.path(name));
    let [read, written] = [
        format!("may read this file, which is secret: chmod o-r file={}", key.display()),
        format!("may write this file: chmod o-w file={}", access.display()),
    ];
    // Others may read what is no secret.
    allow(&access, 0o644);
    allow(&key, 0o644);
    secured.start(&[]);
    secured.ready().await;
    let node = secured.cluster.node(1);
    assert!(node.log().contains(&read), "{}", node.log());
    assert_eq!(node.log().matches("every user").count(), 1, "{}", node.log());

    fs::write(&access, format!("{rules}# changed\n")).unwrap();
    allow(&access, 0o646);
    let pid = node.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    kill_process(pid.unwrap(), Signal::HUP).unwrap();
    let warned = async || node.log().contains(&written).then_some(());
    until(SOON, "the change is warned of", warned).await.unwrap();
}

/// A hangup once ended a node that had no file to load again.
#[tokio::test]
async fn a_node_without_such_files_goes_on_after_a_hangup() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    cluster.ready().await.unwrap();
    let pid = cluster.node(1).pid().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    assert_eq!(caught & (1 << (Signal::HUP.as_raw() - 1)), 1, "{status}");
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::HUP).unwrap();
    cluster.ready().await.unwrap();
}
