//! Metrics as `/metrics` shows them, and in expressions of Prometheus.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_harness::{Answered, Node};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../../deploy/grafana.json");

/// The metrics that the crates define.
pub(super) fn defined() -> Vec<&'static str> {
    let texts = [
        include_str!("../../../api/src/measure.rs"),
        include_str!("../../../http/src/measure.rs"),
        include_str!("../../../mirror/src/measure.rs"),
        include_str!("../../../raft/src/measure.rs"),
        include_str!("../../../service/src/measure.rs"),
        include_str!("../../../src/measure.rs"),
    ];
    let mut defined = Vec::new();
    for text in texts {
        let quoted = text.split("::new(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
        let before = defined.len();
        defined.extend(quoted.filter_map(|rest| rest.split('"').next()));
        assert!(defined.len() > before);
    }
    defined.retain(|name| name.starts_with("ringfence_"));
    defined
}

/// The queries of the dashboard's panels, as Grafana would send them for this cluster.
pub(super) fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut panels = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression.replace("$job", "ringfence").replace("$__rate_interval", "1m");
            assert!(!expression.contains('$'), "{expression}");
            let title = format!("{} ({})", panel["title"].as_str().unwrap(), target["legendFormat"]);
            panels.push((title, expression));
        }
    }
    panels
}

/// The names of metrics in a text.
pub(super) fn names(text: &str) -> BTreeSet<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_of_name(c));
    words.filter(|word| word.starts_with("ringfence_")).collect()
}

/// The label matchers of `name` in `expression`.
pub(super) fn matchers(expression: &str, name: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for selector in expression.split(&format!("{name}{{")).skip(1) {
        let mut rest = selector;
        while let Some((label, after)) = rest.split_once('"') {
            let (value, after) = after.split_once('"').unwrap();
            found.push((label.trim_matches([',', ' ', '=', '~', '!']).to_owned(), value.to_owned()));
            rest = after;
            if rest.starts_with('}') {
                break;
            }
        }
    }
    found
}

/// One line of `/metrics`.
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

pub(super) fn samples(text: &str) -> Vec<Sample> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}').unwrap();
        let labels = labels.split("\",").filter(|label| !label.is_empty()).map(|label| {
            let (label, value) = label.split_once("=\"").unwrap();
            (label.to_owned(), value.trim_end_matches('"').to_owned())
        });
        Sample { name: name.to_owned(), labels: labels.collect(), value: value.parse().unwrap() }
    };
    lines.map(sample).collect()
}

pub(super) async fn metrics(node: &Node) -> String {
    node.client().metrics().await.done()
}

/// The value of a metric without labels.
pub(super) async fn value(node: &Node, name: &str) -> f64 {
    let samples = samples(&metrics(node).await);
    samples.iter().find(|sample| sample.name == name).unwrap_or_else(|| panic!("no {name}")).value
}
