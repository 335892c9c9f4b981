//! `kill -9`.

use std::time::Duration;

use tempfile::TempDir;

use crate::writer::{Writer, check};

#[test]
fn a_killed_process_leaves_all_it_acknowledged() {
    let dir = TempDir::new().unwrap();
    let mut total = 0;
    for round in 0..25 {
        let writer = Writer::start(dir.path());
        std::thread::sleep(Duration::from_millis(20 + round * 37 % 150));
        let acknowledged = writer.kill().max(total);
        total = check(dir.path(), acknowledged);
    }
    assert!(total > 1_000, "only {total} records were written: nothing was tried");
}
