//! `kill -9`.

use tempfile::TempDir;

use crate::writer::{Writer, check};

#[test]
fn a_killed_process_leaves_all_it_acknowledged() {
    let dir = TempDir::new().unwrap();
    let mut total = 0;
    for round in 0..25 {
        let writer = Writer::start(dir.path());
        writer.write(20 + round * 149 % 600);
        let acknowledged = writer.kill().max(total);
        total = check(dir.path(), acknowledged);
    }
    assert!(total > 1_000, "only {total} records were written: nothing was tried");
}
