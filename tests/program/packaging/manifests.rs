//! Every command line and variable of every manifest is one that the program accepts.

use std::collections::BTreeMap;
use std::process::Command;

use ringfence_harness::Cluster;
use serde_json::Value;

use super::start::{INSTALLED, Start, Variables};
use super::yaml::{string, words};
use super::{PROGRAM, text, yaml};

fn assignment(word: &str) -> (String, String) {
    let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("{word} is not NAME=VALUE"));
    (name.to_owned(), value.to_owned())
}

/// The last stage of the Dockerfile.
pub(crate) fn image() -> Start {
    let dockerfile = text("image/Dockerfile").replace("\\\n", " ");
    let last = dockerfile.rsplit("\nFROM ").next().unwrap();
    let mut start = Start::default();
    for line in last.lines() {
        let (instruction, rest) = line.split_once(' ').unwrap_or_default();
        match instruction {
            "ENV" => start.variables.extend(rest.split_whitespace().map(assignment)),
            "ENTRYPOINT" | "CMD" => start.command.extend(words(&serde_json::from_str(rest).unwrap())),
            _ => {}
        }
    }
    start
}

#[test]
fn the_program_accepts_the_image() {
    let settings = [("RINGFENCE_ID", "1"), ("RINGFENCE_INSECURE", "true")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    image().with(&Value::Null, BTreeMap::from(settings)).is_accepted();
}

/// The services of compose.yaml that are nodes.
fn composed() -> Vec<(String, Value)> {
    let compose = yaml::read("compose/compose.yaml");
    let services = compose["services"].as_object().unwrap().clone();
    services.into_iter().filter(|(name, _)| name.starts_with("node")).collect()
}

#[test]
fn the_program_accepts_the_nodes_of_compose() {
    let nodes = composed();
    assert_eq!(nodes.len(), 3);
    for (name, node) in &nodes {
        let variables = node["environment"].as_object().unwrap();
        let variables = variables.iter().map(|(name, value)| (name.clone(), string(value))).collect();
        let start = image().with(&node["command"], variables);
        start.is_accepted();
        assert_eq!(*name, format!("node{}", start.variables["RINGFENCE_ID"]));
        assert_eq!(node["image"], format!("ringfence:{}", env!("CARGO_PKG_VERSION")));
    }
    let prometheus = yaml::read("compose/prometheus.yml");
    let targets = words(&prometheus["scrape_configs"][0]["static_configs"][0]["targets"]);
    assert_eq!(targets, nodes.iter().map(|(name, _)| format!("{name}:7400")).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_health_check_of_compose_finds_a_node_of_a_cluster_healthy() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    for (_, service) in composed() {
        let test = words(&service["healthcheck"]["test"]);
        let [kind, program, arguments @ ..] = test.as_slice() else { panic!("{test:?}") };
        assert_eq!((kind.as_str(), program.as_str()), ("CMD", INSTALLED));
        let address = cluster.node(1).http().to_string();
        let arguments = arguments.iter().map(|argument| argument.replace("localhost:7400", &address));
        let checked = Command::new(PROGRAM).args(arguments).env_clear().output().unwrap();
        let shown = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && shown.contains(&address), "{checked:?}");
    }
}

/// The unit, with settings uncommented in its file of variables.
fn unit() -> Start {
    let mut start = Start::default();
    for line in text("systemd/ringfence.service").lines() {
        match line.split_once('=') {
            Some(("ExecStart", command)) => {
                start.command = command.split_whitespace().map(str::to_owned).collect()
            }
            Some(("Environment", variable)) => start.variables.extend([assignment(variable)]),
            _ => {}
        }
    }
    let settings = text("systemd/default");
    let settings = settings
        .lines()
        .filter_map(|line| line.strip_prefix('#').filter(|rest| rest.starts_with("RINGFENCE_")));
    start.variables.extend(settings.map(assignment));
    start
}

#[test]
fn the_program_accepts_the_unit_and_every_example_in_its_settings() {
    let unit = unit();
    unit.is_accepted();
    assert!(unit.variables.len() > 5, "the examples are found: {unit:?}");
    let unset = text("systemd/default").lines().all(|line| line.is_empty() || line.starts_with('#'));
    assert!(unset, "nothing is set before an operator sets it");
}

#[test]
fn the_unit_does_not_repeat_a_start_that_cannot_succeed_and_repeats_others_for_ever() {
    let file = text("systemd/ringfence.service");
    let invalid = ["serve", "--check", "--id=2", "--data=d", "--peers=1=a:1"];
    let ended = Command::new(PROGRAM).args(invalid).env_clear().output().unwrap();
    let status = ended.status.code().unwrap();
    assert!(file.contains(&format!("\nRestartPreventExitStatus={status}\n")), "{status}");
    assert!(file.contains("\nStartLimitIntervalSec=0\n"));
}

#[test]
fn a_manifest_with_a_mistake_is_refused() {
    let right = unit();
    let with = |name: &str, value: &str| {
        // One that joins need not be in the list.
        let settings = [("RINGFENCE_JOIN", "false"), (name, value)];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        right.with(&Value::Null, BTreeMap::from(settings)).check().unwrap_err()
    };
    assert!(with("RINGFENCE_PEER_LIST", "").contains("RINGFENCE_PEER_LIST"));
    assert!(with("RINGFENCE_ID", "4").contains("does not list this node"));
    assert!(with("RINGFENCE_HTTP", "10.0.0.1").contains("--http"));
    assert!(with("RINGFENCE_LOG", "ringfence=loud").contains("--log"));
    assert!(with("RINGFENCE_REDIS", "http://redis:6379").contains("redis://"));
    let wrong = right.with(&serde_json::json!(["serve", "--data-dir=/data"]), Variables::new());
    assert!(wrong.check().unwrap_err().contains("--data-dir"));
}
