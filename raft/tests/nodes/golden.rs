//! The data directories in `golden/`, each written by a program that made a new cluster under these rules: every later program
//! must read the same states from them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use ringfence_lease::SUPPORTED;
use ringfence_raft::{Says, StoppedNode};
use tempfile::TempDir;

#[test]
fn the_data_of_all_supported_rules_replays_to_the_states_that_were_written_then() {
    for rules in SUPPORTED.oldest..=SUPPORTED.newest {
        let golden = Path::new("tests/golden").join(format!("rules-{rules}"));
        let dir = TempDir::new().unwrap();
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(golden.join("data.tar.gz")).arg("-C").arg(dir.path());
        assert!(unpack.status().unwrap().success());
        let node = StoppedNode::open(&dir.path().join("data")).unwrap();
        let states = fs::read_to_string(golden.join("states")).unwrap();
        assert!(!states.is_empty());
        for line in states.lines() {
            let (index, blake3) = line.split_once(' ').unwrap();
            let state = node.state(Some(index.parse().unwrap())).unwrap();
            assert_eq!((state.rules, state.blake3.as_str()), (rules, blake3), "after entry {index}");
        }
        let entries = node.log().unwrap().entries.into_iter();
        for (rules, requests) in entries.filter_map(|entry| match entry.says {
            Says::Commands { rules, requests, .. } => Some((rules, requests)),
            _ => None,
        }) {
            for command in requests.iter().flat_map(|request| &request.commands) {
                assert!(command.since() <= rules, "it stands under rules {rules}: {command:?}");
            }
        }
        let mut expected = BTreeSet::from(["Acquire", "Detach", "Release", "Renew", "Revoke"]);
        if rules >= 4 {
            expected.extend(["Conditional", "TakeBack"]);
        }
        assert_eq!(kinds(&node), expected);
        let snapshots = node.snapshots().unwrap();
        assert!(snapshots.snapshots.len() == 2 && snapshots.unusable.is_empty(), "{snapshots:?}");
    }
}

/// The kinds of the commands in the log of `node`.
fn kinds(node: &StoppedNode) -> BTreeSet<&'static str> {
    use ringfence_lease::Command::{Acquire, Conditional, Detach, Release, Renew, Revoke, Start, TakeBack};
    let says = node.log().unwrap().entries.into_iter().map(|entry| entry.says);
    let commands = says.flat_map(|says| match says {
        Says::Commands { requests, .. } => {
            requests.into_iter().flat_map(|request| request.commands).collect()
        }
        _ => Vec::new(),
    });
    commands
        .map(|command| match command {
            Start { .. } => "Start",
            Acquire(_) => "Acquire",
            Renew { .. } => "Renew",
            Release { .. } => "Release",
            Revoke { .. } => "Revoke",
            Detach { .. } => "Detach",
            Conditional(_) => "Conditional",
            TakeBack { .. } => "TakeBack",
        })
        .collect()
}
