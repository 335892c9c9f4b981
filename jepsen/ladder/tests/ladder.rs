//! The ladder, by its program.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use ringfence_harness::Browser;

fn ladder(folder: &Path, arguments: &[&str], path: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence-ladder"));
    command.args(arguments).args(["--rounds", "1", "--folder"]).arg(folder);
    command.envs(path.map(|path| ("PATH", path)));
    command.output().expect("the program is built with the test")
}

#[tokio::test]
async fn a_late_delete_of_another_holders_lock_is_seen_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let output = ladder(folder.path(), &["--only", "3,4", "--fault", "R"], None);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(folder.path().join("ladder.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let counts = |cell: usize| &report["cells"][cell]["rounds"][0]["counts"];
    assert!(counts(0)["stale_writes"].as_u64() > Some(0), "{report:#}");
    assert_eq!(counts(1)["stale_writes"], 0, "the random value prevents it: {report:#}");
    if !Browser::is_installed() {
        return;
    }
    let mut browser = Browser::start().await.unwrap();
    for width in [1_280, 390] {
        browser.resize(width, 900).await;
        let page = folder.path().join("index.html");
        browser.open(&format!("file://{}?{width}", page.display())).await;
        browser.until("document.querySelectorAll('#grid button').length === 2").await;
        browser.evaluate("document.querySelector('[data-cell=\"3-R\"]').click()").await;
        browser
            .until("[...document.querySelectorAll('.step.harm')].some((step) => step.innerText.includes('stale'))")
            .await;
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        browser.until(fits).await;
        let is_wide = width == 1_280;
        browser.press("ArrowDown").await;
        let focused = format!("document.activeElement.dataset.cell === '{}'", "4-R");
        browser.until(&focused).await;
        let opened = format!(
            "document.querySelector('#grid [aria-pressed=true]').dataset.cell === '{}'",
            if is_wide { "4-R" } else { "3-R" }
        );
        browser.until(&opened).await;
        browser.press("Escape").await;
        browser.until("document.getElementById('cell').hidden").await;
    }
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
#[ignore = "slow"]
fn a_count_in_the_transaction_of_its_lock_outlives_a_crash_and_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let output = ladder(folder.path(), &["--only", "13", "--fault", "C,F"], None);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(folder.path().join("ladder.json")).unwrap();
    assert!(text.contains("restarted with its data"), "{text}");
}

#[test]
fn a_fault_that_could_not_be_made_is_not_known() {
    let (folder, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for program in ["redis-server", "redis-cli", "setpriv"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        symlink(found.trim(), programs.path().join(program)).unwrap();
    }
    let output = ladder(folder.path(), &["--only", "3", "--fault", "W-"], Some(programs.path()));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("needs a C compiler"), "{output:?}");
    let output = ladder(folder.path(), &["--only", "15", "--fault", "P"], Some(programs.path()));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("needs ZooKeeper: java and"), "{output:?}");
}

#[test]
fn a_rung_or_fault_that_does_not_exist_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, why) in
        [(["--only", "99"], "there is no rung 99"), (["--fault", "X"], "there is no fault X")]
    {
        let output = ladder(folder.path(), &arguments, None);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
}
