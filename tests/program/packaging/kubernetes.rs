//! The program accepts the pods that Kubernetes makes from the manifests.

use std::path::Path;
use std::process::Command;

use ringfence_harness::{Cluster, granted, try_once};
use ringfence_wire::LeaseId;
use serde_json::Value;

use super::PROGRAM;
use super::manifests::image;
use super::start::{Start, Variables};
use super::yaml::{self, list, string, words};

/// What the secrets of the manifests contain in these tests.
const SECRET: &str = "redis://user:password@redis:6379";

/// The pods of the StatefulSet, and `more` pods to which it is scaled, with the changes of an overlay, if there is one.
fn pods(overlay: Option<&str>, more: u64) -> Vec<Start> {
    let set = yaml::read("kubernetes/base/statefulset.yaml");
    let overlay = overlay.map_or(Value::Null, yaml::read);
    let container = |set: &Value| set["spec"]["template"]["spec"]["containers"][0].clone();
    let (container, patch) = (container(&set), container(&overlay));
    let number = |value: &Value| value.as_u64().unwrap();
    let (first, replicas) = (number(&set["spec"]["ordinals"]["start"]), number(&set["spec"]["replicas"]));
    let pod = |ordinal: u64| {
        let mut variables = Variables::new();
        let patch = patch["env"].as_array().into_iter().flatten();
        for variable in list(&container["env"]).iter().chain(patch) {
            let value = value(variable, ordinal, &set, &variables);
            variables.insert(string(&variable["name"]), value);
        }
        image().with(&container["args"], variables)
    };
    (first..first + replicas + more).map(pod).collect()
}

/// The value of a variable of a pod, after `earlier` ones.
fn value(variable: &Value, ordinal: u64, set: &Value, earlier: &Variables) -> String {
    let source = &variable["valueFrom"];
    match source["fieldRef"]["fieldPath"].as_str() {
        Some("metadata.name") => format!("{}-{ordinal}", string(&set["metadata"]["name"])),
        Some("metadata.namespace") => "locks".to_owned(),
        Some("metadata.labels['apps.kubernetes.io/pod-index']") => ordinal.to_string(),
        Some(other) => panic!("no pod has {other}"),
        None if source["secretKeyRef"].is_object() => SECRET.to_owned(),
        None => earlier.iter().fold(string(&variable["value"]), |text, (name, value)| {
            text.replace(&format!("$({name})"), value)
        }),
    }
}

#[tokio::test]
async fn the_pod_for_recovery_prints_the_backup_of_a_survivor() {
    let (pod, set) =
        (yaml::read("kubernetes/recovery/save-backup.yaml"), yaml::read("kubernetes/base/statefulset.yaml"));
    let (container, volumes) = (&pod["spec"]["containers"][0], list(&pod["spec"]["volumes"]));
    assert_eq!(container["image"], set["spec"]["template"]["spec"]["containers"][0]["image"]);
    let template = string(&set["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]);
    let claim = format!("{template}-{}-3", string(&set["metadata"]["name"]));
    assert_eq!(volumes[0]["persistentVolumeClaim"]["claimName"], claim);
    let mounted: Vec<_> = list(&container["volumeMounts"]).iter().map(|m| string(&m["mountPath"])).collect();
    assert_eq!(mounted, ["/var/lib/ringfence", "/tmp"]);

    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    granted(&cluster.node(1).client().patient(), LeaseId::random(), &try_once("a")).await;
    cluster.kill_all().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let inside = |word: String| {
        let word = word.replace("/tmp", &path(dir.path()));
        word.replace("/var/lib/ringfence", &path(&cluster.node(1).data()))
    };
    let mut command = Command::new(PROGRAM);
    command.args(words(&container["args"]).into_iter().map(inside)).env_clear();
    for variable in list(&container["env"]) {
        command.env(string(&variable["name"]), inside(string(&variable["value"])));
    }
    let saved = command.output().unwrap();
    assert!(saved.status.success(), "{saved:?}");
    // What it prints is the file that --restore needs.
    let restore = dir.path().join("printed.json");
    std::fs::write(&restore, &saved.stdout).unwrap();
    let restores = Variables::from([
        ("RINGFENCE_RESTORE".to_owned(), path(&restore)),
        ("RINGFENCE_JOIN".to_owned(), "false".to_owned()),
    ]);
    pods(None, 0)[2].with(&Value::Null, restores).is_accepted();
}

/// As the manifest says: with RINGFENCE_JOIN, and the list of the first members.
#[test]
fn the_program_accepts_the_pods_of_a_statefulset_that_is_scaled() {
    let joins = Variables::from([("RINGFENCE_JOIN".to_owned(), "true".to_owned())]);
    let scaled = pods(None, 1);
    assert!(scaled.last().unwrap().check().unwrap_err().contains("does not list this node"));
    for pod in scaled {
        pod.with(&Value::Null, joins.clone()).is_accepted();
    }
}

#[test]
fn the_program_accepts_the_pods_of_kubernetes() {
    for overlay in [None, Some("kubernetes/example/statefulset.yaml")] {
        let pods = pods(overlay, 0);
        let peers = &pods[0].variables["RINGFENCE_PEERS"];
        assert_eq!(peers.split(',').count(), pods.len(), "{peers} lists each pod");
        for pod in &pods {
            pod.is_accepted();
            let advertised = &pod.variables["RINGFENCE_ADVERTISE_HTTP"];
            assert!(!advertised.contains('$'), "{advertised}");
            let (id, name) = (&pod.variables["RINGFENCE_ID"], &pod.variables["POD_NAME"]);
            assert!(peers.contains(&format!("{id}={name}.ringfence-peers:7500")), "{peers}: {pod:?}");
        }
        assert_eq!(overlay.is_some(), pods[0].variables.contains_key("RINGFENCE_REDIS"));
    }
    let container =
        &yaml::read("kubernetes/base/statefulset.yaml")["spec"]["template"]["spec"]["containers"][0];
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(container["image"], format!("ringfence:{version}"));
    assert_eq!(yaml::read("kubernetes/example/kustomization.yaml")["images"][0]["newTag"], version);
}
