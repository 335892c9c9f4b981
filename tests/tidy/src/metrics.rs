//! Metrics: each is defined once, and every other place uses the definition or names one that exists.

use std::collections::{BTreeMap, BTreeSet};

use crate::lists::{differences, product};
use crate::markdown::quoted;
use crate::rust::{strings, tokens};
use crate::tree::Tree;

const PREFIX: &str = "ringfence_";
/// What Prometheus adds to the names of histograms.
const SUFFIXES: [&str; 3] = ["_count", "_sum", "_bucket"];
const MIRROR: &str = "mirror/README.md";
const ALERTS: &str = "deploy/alerts.yml";
const RULES: &str = "deploy/kubernetes/monitoring/rules.yaml";

/// Metrics that are defined twice, or whose name stands in the product anywhere but in the definition.
pub fn scattered_metrics(tree: &Tree) -> Vec<String> {
    let defined = definitions(tree);
    let mut found: Vec<String> = defined
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("{name} is defined in {}", places.join(" and ")))
        .collect();
    for (path, text) in product(tree).filter(|(path, text)| !is_of_definitions(path) && text.contains(PREFIX))
    {
        let named = strings(tokens(text)).into_iter().filter(|text| text.starts_with(PREFIX));
        found.extend(named.map(|name| format!("{path}: use the definition of {name}")));
    }
    found
}

/// Metrics that documents, alerts, the dashboard, tests and benchmarks name, and that do not exist. The reverse, for the list of the mirror.
pub fn unknown_metrics(tree: &Tree) -> Vec<String> {
    let defined = definitions(tree);
    let crates: BTreeSet<String> = tree
        .crates()
        .iter()
        .map(|folder| folder.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned())
        .collect();
    let exists = |word: &str| {
        let base = SUFFIXES.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
        // Names of crates begin alike, and so do the functions of the guard in SQL, and the package of the program.
        let of_other = word.strip_prefix(PREFIX).is_some_and(|rest| rest == "cli" || crates.contains(rest));
        defined.contains_key(word) || defined.contains_key(base) || of_other
    };
    let mut found = Vec::new();
    for path in tree.under("").into_iter().filter(|path| names_metrics(path)) {
        let text = tree.text(path).filter(|text| text.contains(PREFIX)).unwrap_or_default();
        let words = if path.ends_with(".rs") { strings(tokens(text)).join(" ") } else { text.to_owned() };
        let words: BTreeSet<&str> = words
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with(PREFIX) && word.len() > PREFIX.len() && !word.ends_with('_'))
            .collect();
        found.extend(
            words.into_iter().filter(|word| !exists(word)).map(|word| format!("{path}: no metric {word}")),
        );
    }
    let of_mirror = |name: &&String| name.starts_with("ringfence_mirror_");
    let listed = tree.text(MIRROR).map_or(Vec::new(), quoted).into_iter().map(str::to_owned);
    let listed = listed
        .filter(|name| of_mirror(&name))
        .map(|name| name.split('{').next().unwrap_or_default().to_owned())
        .collect();
    found.extend(differences(
        MIRROR,
        "metric",
        &listed,
        &defined.keys().filter(of_mirror).cloned().collect(),
    ));
    found
}

/// The first alert line of Kubernetes that is not that of `deploy/alerts.yml`, two columns to the right.
pub fn uneven_alerts(tree: &Tree) -> Vec<String> {
    let indented = |line: &str| if line.is_empty() { String::new() } else { format!("  {line}") };
    let alerts: Vec<String> = tree.text(ALERTS).unwrap_or_default().lines().map(indented).collect();
    let (_, rules) = tree.text(RULES).unwrap_or_default().split_once("\nspec:\n").unwrap_or_default();
    let rules: Vec<&str> = rules.lines().collect();
    let uneven = (0..alerts.len().max(rules.len()))
        .find(|&at| alerts.get(at).map(String::as_str) != rules.get(at).copied());
    uneven
        .map(|at| format!("line {} of {ALERTS} is not in {RULES}, or the reverse", at + 1))
        .into_iter()
        .collect()
}

/// Where each metric is defined.
fn definitions(tree: &Tree) -> BTreeMap<String, Vec<&str>> {
    let mut defined: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| is_of_definitions(path)) {
        for rest in text.split("::new(").skip(1) {
            let name = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
            if let Some(name) = name.filter(|name| name.starts_with(PREFIX)) {
                defined.entry(name.to_owned()).or_default().push(path);
            }
        }
    }
    defined
}

fn is_of_definitions(path: &str) -> bool {
    path.ends_with("src/measure.rs") && !path.starts_with("bench/")
}

/// Whether a file may name metrics: not the guard's, which has functions in SQL with names alike, and not those of the SDKs, whose
/// examples have names of their own.
fn names_metrics(path: &str) -> bool {
    let is_text = path.ends_with(".md") || path.starts_with("deploy/");
    let is_test =
        ["tests/", "bench/", "jepsen/"].iter().any(|dir| path.starts_with(dir)) && path.ends_with(".rs");
    let is_of_others = ["guard/", "sdk/", "tests/tidy/"].iter().any(|dir| path.starts_with(dir));
    (is_text || is_test) && !is_of_others
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (&str, &str) =
        ("raft/src/measure.rs", "metrics! { A: Counter = Counter::new(\"ringfence_a_total\", \"x\"); }");

    #[test]
    fn a_metric_that_is_defined_twice_or_named_elsewhere_is_found() {
        let tree = Tree::of(&[
            ONE,
            ("src/measure.rs", "metrics! { B: Gauge = Gauge::new(\n\"ringfence_a_total\", \"x\"); }"),
            (
                "raft/src/node.rs",
                "fn f() { metrics::counter!(\"ringfence_b\"); }\n#[cfg(test)] mod tests { const T: &str = \"ringfence_c\"; }",
            ),
        ]);
        let expected = [
            "ringfence_a_total is defined in raft/src/measure.rs and src/measure.rs",
            "raft/src/node.rs: use the definition of ringfence_b",
        ];
        assert_eq!(scattered_metrics(&tree), expected);
    }

    #[test]
    fn alerts_that_differ_in_kubernetes_are_found() {
        let uneven = |rules| uneven_alerts(&Tree::of(&[(ALERTS, "a:\n\n- b\n"), (RULES, rules)]));
        assert!(uneven("kind: X\nspec:\n  a:\n\n  - b\n").is_empty());
        let expected = |line| vec![format!("line {line} of {ALERTS} is not in {RULES}, or the reverse")];
        assert_eq!(uneven("kind: X\nspec:\n  a:\n\n  - c\n"), expected(3));
        assert_eq!(uneven("kind: X\nspec:\n  a:\n\n  - b\n  - c\n"), expected(4));
        assert_eq!(uneven(""), expected(1));
    }

    #[test]
    fn a_metric_that_does_not_exist_is_found_and_one_that_a_list_lacks() {
        let tree = Tree::of(&[
            ONE,
            ("mirror/Cargo.toml", ""),
            (
                "mirror/src/measure.rs",
                "A::new(\"ringfence_mirror_a\", \"x\"); B::new(\"ringfence_mirror_b\", \"y\");",
            ),
            (MIRROR, "`ringfence_mirror_a{x}`, `ringfence_mirror_old`"),
            ("deploy/alerts.yml", "rate(ringfence_a_total[5m]) > ringfence_gone / ringfence_a_total_sum"),
            ("tests/program/a.rs", "use ringfence_mirror::X; fn f() { g(\"ringfence_odd\"); }"),
        ]);
        let expected = [
            "deploy/alerts.yml: no metric ringfence_gone",
            "mirror/README.md: no metric ringfence_mirror_old",
            "tests/program/a.rs: no metric ringfence_odd",
            "mirror/README.md does not list the metric ringfence_mirror_b",
            "mirror/README.md: there is no metric ringfence_mirror_old",
        ];
        assert_eq!(unknown_metrics(&tree), expected);
    }
}
