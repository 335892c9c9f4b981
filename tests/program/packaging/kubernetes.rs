//! The program accepts the pods that Kubernetes makes from the manifests.

use std::path::Path;
use std::process::Command;

use ringfence_harness::{Cluster, granted, try_once, until};
use ringfence_wire::LeaseId;
use serde_json::Value;

use super::manifests::image;
use super::start::{Start, Variables};
use super::yaml::{self, list, string, words};
use super::{PROGRAM, text};
use crate::support::SOON;

/// What the secrets of the manifests contain in these tests.
const SECRET: &str = "redis://user:password@redis:6379";

/// The pods of the StatefulSet, and `more` pods to which it is scaled, with the changes of an overlay, if there is one.
fn pods(overlay: Option<&str>, more: u64) -> Vec<Start> {
    pods_of(&yaml::read("kubernetes/base/statefulset.yaml"), overlay, more)
}

fn pods_of(set: &Value, overlay: Option<&str>, more: u64) -> Vec<Start> {
    let overlay = overlay.map_or(Value::Null, yaml::read);
    let container = |set: &Value| set["spec"]["template"]["spec"]["containers"][0].clone();
    let (container, patch) = (container(set), container(&overlay));
    let number = |value: &Value| value.as_u64().unwrap();
    let (first, replicas) = (number(&set["spec"]["ordinals"]["start"]), number(&set["spec"]["replicas"]));
    let pod = |ordinal: u64| {
        let mut variables = Variables::new();
        let patch = patch["env"].as_array().into_iter().flatten();
        for variable in list(&container["env"]).iter().chain(patch) {
            let value = value(variable, ordinal, set, &variables);
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

/// What a JSON patch adds to the environment of the container, removes or replaces there.
fn patched(environment: &Value, patch: &Value) -> Value {
    let mut all = list(environment).to_vec();
    for step in list(patch) {
        let Some(path) = step["path"].as_str().and_then(|path| path.split_once("/containers/0/env/")) else {
            continue;
        };
        let (place, field) = path.1.split_once('/').unwrap_or((path.1, ""));
        let (value, at) = (&step["value"], place.parse::<usize>());
        match (step["op"].as_str().unwrap(), at) {
            ("add", Err(_)) => all.push(value.clone()),
            ("test", Ok(at)) => assert_eq!(all[at][field], *value, "{step}"),
            ("replace", Ok(at)) => all[at][field] = value.clone(),
            ("remove", Ok(at)) => drop(all.remove(at)),
            _ => panic!("{step}"),
        }
    }
    Value::Array(all)
}

/// This test adds the component as kustomize adds it to an overlay.
#[test]
fn the_pods_with_the_component_listen_for_redis_lock_libraries() {
    let mut set = yaml::read("kubernetes/base/statefulset.yaml");
    let patch = yaml::read("kubernetes/resp/statefulset.yaml");
    let container = &mut set["spec"]["template"]["spec"]["containers"][0];
    container["env"] = patched(&container["env"], &patch);
    let port = list(&patch).iter().find(|step| step["path"].as_str().unwrap().contains("/ports/")).unwrap();
    let port = &port["value"]["containerPort"];
    for pod in pods_of(&set, None, 0) {
        pod.is_accepted();
        assert_eq!(pod.variables["RINGFENCE_RESP"], format!("0.0.0.0:{port}"));
    }
}

/// With the files that the page puts into the secret, on this machine. `curl` verifies that the certificates are for the names that
/// pods and services have.
#[tokio::test]
async fn the_pods_with_certificates_and_rules_found_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let page = text("README.md");
    let (_, block) = page.split_once("```sh\nringfence cert authorities").unwrap();
    let commands = block.split("kubectl").next().unwrap();
    let script = format!(
        "set -eu; cd {}; PATH={}:$PATH; ringfence cert authorities{commands}",
        dir.path().display(),
        Path::new(PROGRAM).parent().unwrap().display()
    );
    let made = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let secret = dir.path().join("secret");
    assert!(secret.join("access.toml").exists() && !secret.join("node-authority.key").exists());

    let mut set = yaml::read("kubernetes/base/statefulset.yaml");
    let patch = yaml::read("kubernetes/secured/statefulset.yaml");
    let container = &mut set["spec"]["template"]["spec"]["containers"][0];
    container["env"] = patched(&container["env"], &patch);
    // Its address is free, and nothing else uses it.
    let laid_out = Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap();
    let host = laid_out.node(1).http().ip();
    let mut nodes = Vec::new();
    for (id, pod) in (1..).zip(pods_of(&set, None, 0)) {
        pod.is_accepted();
        assert!(!pod.variables.contains_key("RINGFENCE_INSECURE"));
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(&pod.command[1..]).env_clear().kill_on_drop(true);
        for (name, value) in &pod.variables {
            let mut value = value.replace("/etc/ringfence", &secret.display().to_string());
            for other in 1..=3 {
                let named = format!("ringfence-{other}.ringfence-peers:7500");
                value = value.replace(&named, &format!("{host}:750{other}"));
            }
            command.env(name, value);
        }
        let data = dir.path().join(format!("data-{id}"));
        command.env("RINGFENCE_DATA", data).env("RINGFENCE_HTTP", format!("{host}:740{id}"));
        nodes.push(command.env("RINGFENCE_PEER", format!("{host}:750{id}")).spawn().unwrap());
    }
    let credential = std::fs::read_to_string(dir.path().join("operator.credential")).unwrap();
    let get = async |id: u64, name: &str, more: &[&str]| {
        let mut curl = tokio::process::Command::new("curl");
        curl.args(["-s", "--connect-to", &format!("::{host}:740{id}"), "--cacert"]);
        curl.arg(dir.path().join("authority.pem")).args(more).arg(format!("https://{name}:7400/v1/cluster"));
        String::from_utf8(curl.output().await.unwrap().stdout).unwrap()
    };
    let login = ["--oauth2-bearer", credential.trim()];
    for id in 1..=3 {
        let own = format!("ringfence-{id}.ringfence-peers.locks.svc");
        for name in [own.as_str(), "ringfence.locks.svc", "ringfence"] {
            let knows_all = async || {
                let status = get(id, name, &login).await;
                let mut all =
                    (1..=3).map(|id| format!("\"https://ringfence-{id}.ringfence-peers.locks.svc:7400\""));
                all.all(|url| status.contains(&url)).then_some(())
            };
            until(SOON, format!("{name} names all nodes"), knows_all).await.unwrap();
        }
        assert!(
            get(id, &own, &[]).await.contains("unauthenticated"),
            "nobody is let in without a credential"
        );
        assert_eq!(get(id, "elsewhere", &login).await, "", "the certificate is for no other name");
    }
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
