//! The tables of the suite. The scenarios themselves are played by `conformance`.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use ringfence_conformance::adapter::Recipe;
use ringfence_conformance::mutants::Sdk;
use ringfence_conformance::play::{Outcome, PLAYS, play};
use ringfence_conformance::scenario::SCENARIOS;
use ringfence_conformance::world::World;

#[test]
fn scenarios_and_mutants_have_names_of_their_own() {
    let scenarios = SCENARIOS.iter().map(|one| one.name).collect::<Vec<_>>();
    let mutants = Sdk::ALL.map(|sdk| sdk.mutants().iter().map(|one| one.name).collect());
    for names in mutants.into_iter().chain([scenarios]) {
        let all: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(all.len(), names.len());
    }
}

#[test]
fn each_scenario_fails_a_mutant_of_each_library_that_offers_it() {
    let known: BTreeSet<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    for sdk in Sdk::ALL {
        assert_eq!(sdk.untested(), [""; 0], "{sdk}");
        for name in sdk.mutants().iter().flat_map(|mutant| mutant.fails) {
            assert!(known.contains(name), "{sdk}: there is no scenario {name}");
        }
    }
}

#[test]
fn each_mutant_applies_to_its_client() {
    for sdk in Sdk::ALL {
        for mutant in sdk.mutants() {
            let text = std::fs::read_to_string(sdk.source().join(mutant.file)).unwrap();
            mutant.applied(&text).unwrap();
        }
    }
}

/// What the runner says of these adapters: its status, and its output.
fn judged(scenario: &str, adapters: &[&str]) -> Option<(i32, String)> {
    // Set by the tests of the workspace.
    let Some(program) = std::env::var_os("RINGFENCE_UNDER_TEST") else {
        eprintln!("skipped: RINGFENCE_UNDER_TEST names no program");
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
    // Tests run in the folder of their crate.
    command.current_dir("../..").arg("--program").arg(program).args(["--only", scenario]);
    for adapter in adapters {
        command.args(["--adapter", adapter]);
    }
    let output = command.output().unwrap();
    Some((output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap()))
}

#[test]
#[ignore = "slow"]
fn an_adapter_that_hangs_ends_or_says_something_else_fails_alone() {
    let own = env!("CARGO_BIN_EXE_conformance-adapter");
    let Some((status, text)) = judged("invalid-key", &["sleep 600", "cat", "true", "no-such-program", own])
    else {
        return;
    };
    for why in ["has not answered `hello`", "ended without an answer", "cannot start no-such-program"] {
        assert!(text.contains(why), "{why}: {text}");
    }
    assert!(status == 1 && text.contains(&format!("== {own}: 1 of 1 passed")), "{text}");
}

#[test]
fn what_is_not_offered_is_listed_and_does_not_pass() {
    let own = env!("CARGO_BIN_EXE_conformance-adapter");
    let Some((status, text)) = judged("fork-child", &[own]) else { return };
    assert!(text.contains("0 of 1 passed, 0 failed, 1 not offered"), "{text}");
    assert!(status == 0 && text.contains("not offered: fork-child-lost-and-silent (no fork)"), "{text}");
}

#[tokio::test]
async fn what_fails_while_the_machine_is_slow_is_played_again_and_fails_in_the_end() {
    let Some(program) = std::env::var_os("RINGFENCE_UNDER_TEST") else {
        eprintln!("skipped: RINGFENCE_UNDER_TEST names no program");
        return;
    };
    let world = World::start(program.into()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs");
    // It ends without an answer, once the runner has stood still.
    let script = format!("touch {0}; while [ -e {0} ]; do sleep 0.05; done", file.display());
    let words = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let recipe = Recipe { words };
    let stand_still = async {
        loop {
            if file.exists() {
                std::thread::sleep(Duration::from_millis(900));
                std::fs::remove_file(&file).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (outcome, earlier) = tokio::select! {
        played = play(&world, &SCENARIOS[0], &recipe, true) => played,
        () = stand_still => unreachable!("it goes on for ever"),
    };
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    assert_eq!(earlier.len(), PLAYS - 1, "{earlier:?}");
    assert!(earlier.iter().all(|why| why.contains("stood still for")), "{earlier:?}");
}
