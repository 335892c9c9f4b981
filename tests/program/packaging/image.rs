//! A read-only root with the program and its libraries, as in the image of the Dockerfile.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use ringfence_harness::{Acquired, Answered, Client, may_mount, try_once, until};
use ringfence_wire::LeaseId;

use super::PROGRAM;
use super::manifests::image;
use crate::support::SOON;

/// The user of the image.
const USER: u32 = 65_532;
/// Mounts the root `$0` read-only, except the volume `$1`, and runs the rest as the image's user.
const RUN: &str = r#"
volume=$1; shift
mount --bind "$0" "$0" && mount --bind "$volume" "$0/var/lib/ringfence" && mount -o remount,bind,ro "$0" &&
exec chroot --userspec=65532:65532 "$0" "$@""#;

/// A process that is killed when this is dropped.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies the program and the libraries that it is linked with to `root`.
fn fill(root: &Path) {
    let copy = |from: &Path, to: &Path| {
        let to = root.join(to.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    copy(Path::new(PROGRAM), Path::new("/usr/bin/ringfence"));
    let linked = Command::new("ldd").arg(PROGRAM).output().unwrap();
    let linked = String::from_utf8(linked.stdout).unwrap();
    let libraries: Vec<PathBuf> =
        linked.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect();
    assert!(libraries.len() > 2, "{linked}");
    libraries.iter().for_each(|library| copy(library, library));
    fs::create_dir_all(root.join("var/lib/ringfence")).unwrap();
}

#[tokio::test]
async fn a_node_runs_as_the_user_of_the_image_and_writes_only_to_its_volume() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (root, volume) = (dir.path().join("root"), dir.path().join("volume"));
    fill(&root);
    fs::create_dir(&volume).unwrap();
    chown(&volume, Some(USER), Some(USER)).unwrap();

    // An address that no other test has, as the id of this process is in it.
    let [.., high, low] = std::process::id().to_be_bytes();
    let http = SocketAddr::from((Ipv4Addr::new(127, 99, high, low), 7400));
    let image = image();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "sh", "-c", RUN]);
    command
        .args([&root, &volume])
        .args(&image.command)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs(&image.variables).env("RINGFENCE_ID", "1");
    command.env("RINGFENCE_HTTP", http.to_string()).env("RINGFENCE_PEER", format!("{}:7500", http.ip()));
    let mut node = Container(command.spawn().unwrap());

    let client = Client::new(http);
    let look = || {
        assert!(node.0.try_wait().unwrap().is_none(), "the node has ended");
        async { client.is_ready().await.then_some(()) }
    };
    until(SOON, "the node is ready", look).await.unwrap();
    let granted = client.patient().acquire(LeaseId::random(), &try_once("kept")).await.done();
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    let process = PathBuf::from(format!("/proc/{}", node.0.id()));
    assert_eq!(fs::metadata(&process).unwrap().uid(), USER);
    let refused = fs::write(process.join("root/file"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let data = fs::metadata(volume.join("node")).unwrap();
    assert_eq!((data.uid(), data.mode() & 0o777), (USER, 0o700));

    Command::new("kill").arg(node.0.id().to_string()).status().unwrap();
    let end = || std::future::ready(node.0.try_wait().unwrap());
    assert!(until(SOON, "the node stops", end).await.unwrap().success());
}
