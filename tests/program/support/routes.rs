//! Requests for every route of the document.

use ringfence_wire::{LeaseId, Token};
use serde_json::{Value, json};

/// The method, the path and the right of each route of the document.
pub(crate) fn routes(document: &Value) -> Vec<(String, String, String)> {
    let of_path = |(path, item): (&String, &Value)| {
        let methods = item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters");
        let route = |(method, operation): (&String, &Value)| {
            (method.to_ascii_uppercase(), path.clone(), operation["x-right"].as_str().unwrap().to_owned())
        };
        methods.map(route).collect::<Vec<_>>()
    };
    document["paths"].as_object().unwrap().iter().flat_map(of_path).collect()
}

/// What requests are about.
pub(crate) struct About<'a> {
    pub(crate) keys: &'a [String],
    pub(crate) prefix: &'a str,
    pub(crate) lease: LeaseId,
    /// A key of the lease, and its token.
    pub(crate) held: (&'a str, Token),
    /// Whether requests to change the cluster are valid. Otherwise, they change nothing that others rest on.
    pub(crate) changes_cluster: bool,
}

/// The target and the body of a request.
pub(crate) fn request(method: &str, path: &str, about: &About) -> (String, Option<Value>) {
    let About { keys, prefix, lease, held: (held, token), changes_cluster } = about;
    let claims: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
    let of_cluster = |valid: Value| Some(if *changes_cluster { valid } else { json!({ "invalid": true }) });
    match (method, path) {
        ("PUT", "/v1/leases/{lease_id}") => {
            (format!("/v1/leases/{}", LeaseId::random()), Some(json!({ "keys": claims })))
        }
        ("POST", "/v1/leases") => (path.into(), Some(json!({ "keys": claims }))),
        ("GET" | "DELETE", "/v1/leases/{lease_id}") => (format!("/v1/leases/{lease}"), None),
        ("POST", "/v1/leases/{lease_id}/renew") => (format!("/v1/leases/{lease}/renew"), Some(json!({}))),
        ("POST", "/v1/renew") => (path.into(), Some(json!({ "lease_ids": [lease] }))),
        ("POST", "/v1/batch") => {
            let acquire = json!({ "acquire": { "lease_id": LeaseId::random(), "keys": claims } });
            (path.into(), Some(json!({ "operations": [acquire] })))
        }
        ("POST", "/v1/validate") => {
            let checks: Vec<_> = keys.iter().map(|key| json!({ "key": key, "token": 7 })).collect();
            (path.into(), Some(json!({ "checks": checks })))
        }
        ("POST", "/v1/revoke") => (path.into(), Some(json!({ "key": held, "token": token }))),
        ("GET", "/v1/keys") => (format!("/v1/keys?prefix={prefix}"), None),
        ("GET", "/v1/watch") => (format!("/v1/watch?prefix={prefix}"), None),
        // It is about one key, of which nothing overlaps.
        ("GET", "/v1/keys/{key}") => (format!("/v1/keys/{}", keys[keys.len() - 1]), None),
        ("DELETE", "/v1/cluster/members/{id}") => {
            let member = if *changes_cluster { "3?force=true" } else { "none" };
            (format!("/v1/cluster/members/{member}"), None)
        }
        ("POST", "/v1/cluster/members") => {
            (path.into(), of_cluster(json!({ "id": 4, "peer": "10.0.0.4:7504" })))
        }
        ("POST", "/v1/cluster/transfer" | "/v1/cluster/upgrade") => (path.into(), of_cluster(json!({}))),
        (
            "GET",
            "/v1/access" | "/v1/cluster" | "/v1/cluster/backup" | "/livez" | "/readyz" | "/metrics"
            | "/openapi.json",
        ) => (path.into(), None),
        _ => panic!("{method} {path} has no request here"),
    }
}
