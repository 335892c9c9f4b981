//! The program accepts the pods that Kubernetes makes from the manifests.

use serde_json::Value;

use crate::manifests::image;
use crate::start::{Start, Variables};
use crate::yaml::{self, list, string};

/// What the secrets of the manifests contain in these tests.
const SECRET: &str = "redis://user:password@redis:6379";

/// The pods of the StatefulSet, with the changes of an overlay, if there is one.
fn pods(overlay: Option<&str>) -> Vec<Start> {
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
    (first..first + replicas).map(pod).collect()
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

#[test]
fn the_program_accepts_the_pods_of_kubernetes() {
    for overlay in [None, Some("kubernetes/example/statefulset.yaml")] {
        let pods = pods(overlay);
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
