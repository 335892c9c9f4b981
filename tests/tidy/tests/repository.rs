//! The rules of CONTRIBUTING.md, tested on this repository.

use ringfence_tidy::tree::Tree;
use ringfence_tidy::{circles, crates, lists, metrics, paths, settings, sizes, undeclared, words};

/// Files that are longer than others may be.
const LONG_FILES: &[Exception] = &[
    ("service/src/watch/fanout.rs", "one structure: what is sent to whom, without I/O"),
    ("bench/src/hostile/shapes.rs", "a table of attacks"),
    ("jepsen/laws/src/history.rs", "the types of one format"),
    ("lease/src/laws/model.rs", "the naive model, to be read in one piece"),
];

/// Functions that are longer than others may be.
const LONG_FUNCTIONS: &[Exception] = &[
    ("api/tests/door/service.rs start_member", STARTS),
    ("guard/examples/stores.rs redis_writes_and_checks", STORY),
    ("jepsen/laws/src/report/tests/invented.rs hold", STORY),
    ("jepsen/src/field.rs set_up", STARTS),
    ("jepsen/src/grey/play.rs perform", STORY),
    ("lease/src/laws/garbage.rs records_that_contradict_each_other_are_refused", CASES),
    ("lease/src/laws/histories.rs play", STORY),
    ("lease/src/laws/model.rs acquire", "all rules of an acquire, to be read in one piece"),
    ("lease/src/laws/model.rs run", CASES),
    ("lease/src/laws/witness.rs saw_outcome", CASES),
    ("mirror/tests/real/writers.rs foreign_writes_are_noticed_and_replaced", STORY),
    ("raft/src/node.rs start", STARTS),
    ("sim/src/plan/courses.rs draw", CASES),
    ("sim/src/plan/faults/text.rs fmt", CASES),
    ("sim/src/world/happen.rs happen", CASES),
    ("src/config.rs from_options", "one line for each setting"),
    ("src/server.rs run", STARTS),
    ("tests/program/access/rights.rs a_right_allows_what_the_document_says_and_nothing_else", STORY),
    ("tests/program/access/owners.rs who_loses_a_right_keeps_nothing_that_rests_on_it", STORY),
    ("tests/program/dashboard/access.rs a_principal_signs_in_and_sees_what_it_may", STORY),
    ("tests/program/dashboard/tables.rs only_the_visible_keys_of_ten_thousand_are_in_the_page", STORY),
    ("tests/program/dashboard/views.rs a_lease_appears_counts_down_and_is_revoked_from_the_page", STORY),
    ("tests/program/hostile.rs no_flood_takes_a_lease_from_its_holder_or_the_leadership_from_a_node", STORY),
    ("tests/program/inspect.rs every_change_in_the_log_is_shown_and_equal_on_all_nodes", STORY),
    ("tests/program/metrics.rs traffic", STORY),
    ("tests/program/packaging/kubernetes.rs the_pods_with_certificates_and_rules_found_a_cluster", STORY),
    (
        "tests/program/peer_tls.rs certificates_are_replaced_while_nodes_run_and_broken_files_change_nothing",
        STORY,
    ),
    ("tests/program/secrets.rs no_log_metric_error_command_line_or_child_has_a_secret", STORY),
    ("tests/program/secrets.rs requests", CASES),
    ("tests/program/tls.rs a_cluster_changes_to_tls_and_replaces_certificates_under_load", STORY),
    ("tests/program/watch.rs every_node_sends_the_same_changes_in_order", STORY),
];
const STORY: &str = "one story, in order";
const STARTS: &str = "starts its parts, in order";
const CASES: &str = "one arm or line for each case";

/// Types beside others with the name of a term of the glossary.
const TYPES_OF_ONE_NAME: &[Exception] = &[
    ("resp/src/session/client.rs Client", "what a node knows of a client, as the glossary means it"),
    ("tls/src/client.rs Client", SIDE),
    ("tls/src/peer.rs Peer", SIDE),
];
const SIDE: &str = "a side of TLS, by the name of who has it";

/// What a finding begins with or contains, and why it may stay.
type Exception = (&'static str, &'static str);

/// Fails if a check finds something, and if an exception is not needed any more.
#[track_caller]
fn passes_but(check: fn(&Tree) -> Vec<String>, rule: &str, exceptions: &[Exception]) {
    let found = check(&Tree::of_repository().expect("the repository can be read"));
    let is_excepted = |finding: &&String| exceptions.iter().any(|(what, _)| is_about(finding, what));
    let wrong: Vec<&str> = found.iter().filter(|one| !is_excepted(one)).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
    for (what, why) in exceptions {
        assert!(
            found.iter().any(|finding| is_about(finding, what)),
            "no exception is needed for {what}: {why}"
        );
    }
}

/// Whether an exception is about a finding: `what` stands at a line's begin, and a name ends there.
fn is_about(finding: &str, what: &str) -> bool {
    finding
        .lines()
        .any(|line| line.trim_start().strip_prefix(what).is_some_and(|rest| rest.starts_with([':', ' '])))
}

#[track_caller]
fn passes(check: fn(&Tree) -> Vec<String>, rule: &str) {
    passes_but(check, rule, &[]);
}

#[test]
fn no_files_import_each_other() {
    passes(circles::circles, "move what ties these files together into one of them");
}

#[test]
fn every_file_is_compiled() {
    passes(undeclared::undeclared_files, "declare it with `mod`, or delete it");
}

#[test]
fn no_file_is_long() {
    passes_but(sizes::long_files, "split these files", LONG_FILES);
}

#[test]
fn no_function_is_long() {
    passes_but(sizes::long_functions, "split these functions", LONG_FUNCTIONS);
}

#[test]
fn crates_use_what_the_design_allows() {
    passes(crates::uses, "correct docs/design.md or the dependency");
}

#[test]
fn paths_in_documents_and_comments_exist() {
    passes(paths::missing_paths, "correct these paths");
}

#[test]
fn names_in_documents_are_in_the_files_that_they_name() {
    passes(paths::misplaced_names, "correct the name or the path");
}

#[test]
fn settings_have_one_name() {
    passes(settings::uneven_settings, "a flag and its variable have the same name");
}

#[test]
fn settings_in_documents_exist() {
    passes(settings::unknown_settings, "correct these settings");
}

#[test]
fn each_metric_is_defined_in_one_place() {
    passes(metrics::scattered_metrics, "define it in the `measure.rs` of its crate, and use the definition");
}

#[test]
fn metrics_in_documents_alerts_and_tests_exist() {
    passes(metrics::unknown_metrics, "correct these metrics");
}

#[test]
fn lists_of_fault_injection_are_complete() {
    passes(lists::fault_injection, "correct the lists");
}

#[test]
fn the_documented_lines_of_the_log_are_complete() {
    passes(lists::log_lines, "correct the list");
}

#[test]
fn replaced_words_are_gone() {
    passes(words::replaced_words, "use the word of docs/glossary.md");
}

#[test]
fn types_are_named_by_the_glossary() {
    passes_but(
        words::types_with_two_meanings,
        "one word for one thing: rename all but one",
        TYPES_OF_ONE_NAME,
    );
}

#[test]
fn the_glossary_is_in_order() {
    passes(words::disordered_glossary, "correct docs/glossary.md");
}

#[test]
fn an_exception_is_about_one_name() {
    assert!(is_about("a.rs run: 61", "a.rs run") && is_about("2 files:\n  a.rs → b.rs (X)", "a.rs → b.rs"));
    assert!(!is_about("a.rs run_on: 61", "a.rs run") && !is_about("aa.rs: 401", "a.rs"));
}
