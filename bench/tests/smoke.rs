//! Each command measures something real and ends well. How fast is nothing that this build could tell.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program under test: the one that is named, or the one that is built beside this.
fn program() -> PathBuf {
    let beside = || Path::new(env!("CARGO_BIN_EXE_ringfence-bench")).with_file_name("ringfence");
    std::env::var_os("RINGFENCE_UNDER_TEST").map_or_else(beside, PathBuf::from)
}

/// For a second each.
fn bench(arguments: &str, rows: &[&str]) {
    prints(&format!("{arguments} --seconds=1"), rows);
}

/// With the program under test.
fn prints(arguments: &str, rows: &[&str]) {
    runs(&format!("{arguments} --program={}", program().display()), rows);
}

/// It ends well, and prints lines that begin like that.
fn runs(arguments: &str, rows: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence-bench"));
    command.args(arguments.split(' '));
    let output = command.output().unwrap();
    let (told, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments}: {told}{errors}");
    for row in rows {
        assert!(
            told.lines().any(|line| line.starts_with(row)),
            "{arguments}: {row} is missing: {told}{errors}"
        );
    }
}

#[test]
#[ignore = "slow"]
fn all_services_that_are_installed_are_compared() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let json_to = format!("--json={}", json.path().display());
    let rows = ["1 clients", "8 clients", "ringfence", "etcd", "redis fsync", "redlock of 5", "(http echo)"];
    bench(&format!("compare --clients=1,8 --rounds=1 {json_to}"), &rows);
    let figures: serde_json::Value = serde_json::from_reader(json.as_file()).unwrap();
    assert_eq!(figures["rows"][0]["service"], "ringfence");
    assert!(figures["rows"][0]["per_s"][0].as_f64().unwrap() > 0.0);
    bench("compare --clients=4 --rounds=1 --rate=20 --only=ringfence", &["4 clients", "ringfence"]);
}

#[test]
fn a_program_is_paired_with_itself() {
    let (json, program) = (tempfile::NamedTempFile::new().unwrap(), program().display().to_string());
    let arguments = format!("pairs {program} {program} --clients=2 --rounds=2 --seconds=1");
    let rows = ["2 clients: cycles/s", "2 clients: p99"];
    runs(&format!("{arguments} --json={}", json.path().display()), &rows);
    let figures: serde_json::Value = serde_json::from_reader(json.as_file()).unwrap();
    assert_eq!(figures.as_array().unwrap().len(), 4, "{figures}");
    assert_eq!(figures[0]["ratios"].as_array().unwrap().len(), 2, "{figures}");
    runs(&format!("{arguments} --resp --tasks"), &rows);
}

#[test]
#[ignore = "slow"]
fn tasks_of_one_program_are_compared() {
    let rows =
        ["24 clients acquire and release a key of one's own, as tasks", "ringfence", "etcd", "redis fsync"];
    bench("compare --tasks --clients=24 --rounds=1", &rows);
}

#[test]
#[ignore = "slow"]
fn one_key_is_contended_for() {
    bench("contended --clients=8 --rounds=1 --only=ringfence,etcd", &["8 clients", "ringfence", "etcd"]);
}

#[test]
#[ignore = "slow"]
fn services_that_were_fetched_are_compared() {
    // No service has this name; before it says so, it says what is not there.
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence-bench"));
    let output = command.args(["compare", "--only=no such", "--program"]).arg(program()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("--only: no service"), "{told}");
    for (service, row) in [("NATS", "nats kv, no expiry"), ("Hazelcast", "hazelcast, in memory")] {
        if told.contains(&format!("left out: {service}: ")) {
            eprintln!("skipped: {told}");
            continue;
        }
        let only = service.to_lowercase();
        bench(&format!("compare --clients=1,4 --rounds=1 --only={only}"), &["4 clients", row]);
        bench(&format!("compare --tasks --clients=4 --rounds=1 --only={only}"), &["4 clients", row]);
        bench(&format!("contended --clients=4 --rounds=1 --only={only}"), &["4 clients", row]);
    }
}

#[test]
#[ignore = "slow"]
fn locks_are_handed_over() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let rows = [
        "holder gone: ringfence",
        "holder gone, leader killed: ringfence",
        "holder gone, leader stopped: etcd",
    ];
    let arguments = "handover --rounds=1 --locks=2 --ttl=2 --only=ringfence,etcd";
    prints(&format!("{arguments} --json={}", json.path().display()), &rows);
    let figures: serde_json::Value = serde_json::from_reader(json.as_file()).unwrap();
    let rows = figures["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["beyond_s"].as_array().unwrap().len() == 2), "{figures}");
}

#[test]
#[ignore = "slow"]
fn batches_and_reads_are_measured() {
    bench(
        "batch --clients=4 --rounds=1 --only=ringfence",
        &["4 clients acquire and release 128 keys", "ringfence"],
    );
    let rows = ["4 clients read, linearizably", "4 clients write a value, guarded", "mirror reader"];
    bench("reads --clients=4 --rounds=1 --only=ringfence,redis,mirror", &rows);
}

#[test]
fn watchers_are_told_of_what_is_measured() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let arguments = format!("watch --clients=4 --watchers=20 --rounds=1 --json={}", json.path().display());
    bench(&arguments, &["4 clients", "0 watchers", "20 watchers", "ratio"]);
    let figures: serde_json::Value = serde_json::from_reader(json.as_file()).unwrap();
    // Each change of one of the four keys is told to five.
    let of = |row: usize, name: &str| figures["rows"][row][name][0].as_f64().unwrap();
    assert_eq!(of(0, "told_per_s"), 0.0);
    assert!(of(1, "per_s") > 0.0 && of(1, "told_per_s") > 5.0 * of(1, "per_s"), "{figures}");
}

#[test]
fn a_script_takes_locks() {
    let rows = ["ringfence lock KEY -- true", "a new cluster", "memory of an idle node", "program"];
    prints("shell --runs=1", &rows);
}

/// This build is slow, and the machine may be busy: a step that takes long is no fault here.
#[test]
fn a_hostile_shape_is_played() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence-bench"));
    command.args(["hostile", "--only=parameters", "--seconds=1", "--json"]).arg(json.path());
    let output = command.arg("--program").arg(program()).output().unwrap();
    let figures: serde_json::Value = serde_json::from_reader(json.as_file()).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    let row = &figures["rows"][0];
    assert!(row["done"].as_u64().unwrap() > 0 && row["renewed"]["renewals"].as_u64().unwrap() > 0, "{row}");
    assert!(row["longest_step_ms"].as_f64().unwrap() > 0.0, "{row}");
    assert_eq!(row["ended"], serde_json::json!([]));
}

#[test]
#[ignore = "slow"]
fn some_leases_are_scaled_to() {
    bench("scale --leases=200 --snapshot-after-bytes=524288", &["200"]);
}

#[test]
#[ignore = "slow"]
fn every_node_is_replaced_and_restarted_under_load() {
    let rows = ["20 cycles per second", "3 to 5 to 3 nodes", "1 rolling restart"];
    prints("members --rate=20 --clients=4 --kept=4 --restarts=1", &rows);
}
