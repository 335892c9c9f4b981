//! The tables of the suite. The scenarios themselves are played by `conformance`.

use std::collections::BTreeSet;

use ringfence_conformance::mutants::{MUTANTS, python, untested};
use ringfence_conformance::scenario::SCENARIOS;

#[test]
fn scenarios_and_mutants_have_names_of_their_own() {
    for names in [
        SCENARIOS.iter().map(|one| one.name).collect::<Vec<_>>(),
        MUTANTS.iter().map(|one| one.name).collect(),
    ] {
        let all: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(all.len(), names.len());
    }
}

#[test]
fn each_scenario_fails_a_mutant() {
    assert_eq!(untested(), [""; 0]);
    let known: BTreeSet<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    for name in MUTANTS.iter().flat_map(|mutant| mutant.fails) {
        assert!(known.contains(name), "there is no scenario {name}");
    }
}

#[test]
fn each_mutant_applies_to_the_client() {
    for mutant in MUTANTS {
        let file = python().join("src/ringfence").join(mutant.file);
        mutant.applied(&std::fs::read_to_string(file).unwrap()).unwrap();
    }
}
