//! Checks the OpenAPI document against the routes, the wire types, and every response that these tests receive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use ringfence_wire::{
    Access, AcquireRequest, AddMemberRequest, Backup, BatchAnswer, BatchRequest, CutOff, FieldError, Grant,
    Holder, Key, KeyList, KeyView, MAX_BATCH, MAX_KEYS, MAX_TTL_MS, MAX_WAIT_MS, MIN_TTL_MS, MirroredGrant,
    Problem, ProblemKind, RenewManyRequest, RenewRequest, RevokeRequest, TransferRequest, Ttl,
    UpgradeRequest, Upgraded, ValidateRequest, Verdict, VerdictsAnswer, Waiting, WatchEvent, WatchEventName,
    from_json,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::Response;

mod agreement;

/// The document.
pub(crate) static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../openapi.json")).unwrap());

/// Fails unless the document allows this response to `method` on `target`.
pub(crate) fn check(method: &str, target: &str, response: &Response) {
    let context = format!("{method} {target} -> {response:?}");
    let path = template(target.split('?').next().unwrap());
    let documented = match response.status {
        404 | 405 if operation(method, &path).is_none() => {
            let name = if response.status == 404 { "NotFound" } else { "MethodNotAllowed" };
            &DOCUMENT["components"]["responses"][name]
        }
        421 => &DOCUMENT["components"]["responses"]["Misdirected"],
        status => {
            let operation =
                operation(method, &path).unwrap_or_else(|| panic!("no such operation: {context}"));
            operation["responses"]
                .get(status.to_string())
                .unwrap_or_else(|| panic!("no such status: {context}"))
        }
    };
    let documented = resolve(documented);
    for (name, header) in documented["headers"].as_object().unwrap() {
        let is_there = response.header(&name.to_ascii_lowercase()).is_some();
        assert!(is_there || resolve(header)["required"] != true, "lacks the header {name}: {context}");
    }
    let Some(content) = documented.get("content") else {
        return assert!(response.body.is_empty(), "a body where none is documented: {context}");
    };
    let (content_type, content) = content.as_object().unwrap().iter().next().unwrap();
    assert_eq!(response.header("content-type"), Some(content_type.as_str()), "{context}");
    if content_type.contains("json") && method != "HEAD" {
        let body: Value = response.json();
        if let Err(error) = validator(&content["schema"]).validate(&body) {
            panic!("not as documented at {}: {error}: {context}", error.instance_path());
        }
    }
}

/// Fails unless `value` matches the schema `name`.
pub(crate) fn check_schema(name: &str, value: &Value) {
    let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
    if let Err(error) = validator(&schema).validate(value) {
        panic!("no {name}, at {}: {error}: {value}", error.instance_path());
    }
}

/// The path in the document that `path` is an instance of.
fn template(path: &str) -> String {
    let known = DOCUMENT["paths"].as_object().unwrap();
    match path.split('/').collect::<Vec<_>>()[..] {
        _ if known.contains_key(path) => path.to_owned(),
        ["", "v1", "leases", id] if !id.is_empty() => "/v1/leases/{lease_id}".to_owned(),
        ["", "v1", "leases", id, "renew"] if !id.is_empty() => "/v1/leases/{lease_id}/renew".to_owned(),
        ["", "v1", "cluster", "members", id] if !id.is_empty() => "/v1/cluster/members/{id}".to_owned(),
        ["", "v1", "keys", ..] => "/v1/keys/{key}".to_owned(),
        _ => path.to_owned(),
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let method = if method == "HEAD" { "get".to_owned() } else { method.to_ascii_lowercase() };
    DOCUMENT["paths"].get(path)?.get(method)
}

fn resolve(value: &'static Value) -> &'static Value {
    match value.get("$ref") {
        Some(reference) => {
            DOCUMENT.pointer(reference.as_str().unwrap().trim_start_matches('#')).expect("it exists")
        }
        None => value,
    }
}

/// The validator of `schema`, cached because building one is slow.
fn validator(schema: &Value) -> Arc<Validator> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap();
    let build = || {
        let schema = json!({ "allOf": [schema], "components": DOCUMENT["components"] });
        Arc::new(jsonschema::draft202012::new(&schema).unwrap())
    };
    Arc::clone(known.entry(schema.to_string()).or_insert_with(build))
}

/// The name of the component that `schema` refers to.
fn name(schema: &Value) -> &str {
    schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()).unwrap_or_default()
}

/// Whether a wire type reads `example`, and writes it again as it was.
type Reads = fn(&Value) -> Result<(), String>;

fn request<T: DeserializeOwned>(
    example: &Value,
    check: fn(&T) -> Result<(), FieldError>,
) -> Result<(), String> {
    let body = from_json(example.to_string().as_bytes()).map_err(|error| format!("{error:?}"))?;
    check(&body).map_err(|error| format!("{error:?}"))
}

fn answer<T: DeserializeOwned + Serialize>(example: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(example.clone()).map_err(|error| error.to_string())?;
    let written = serde_json::to_value(read).map_err(|error| error.to_string())?;
    if written == *example { Ok(()) } else { Err(format!("is written as {written}")) }
}

/// The wire type of each schema that has examples.
fn wire_types() -> BTreeMap<&'static str, Reads> {
    BTreeMap::from([
        ("AcquireRequest", (|it| request(it, AcquireRequest::check)) as Reads),
        ("RenewRequest", |it| request::<RenewRequest>(it, |_| Ok(()))),
        ("RenewManyRequest", |it| request(it, RenewManyRequest::check)),
        ("BatchRequest", |it| request(it, BatchRequest::check)),
        ("RevokeRequest", |it| request::<RevokeRequest>(it, |_| Ok(()))),
        ("AddMemberRequest", |it| request(it, AddMemberRequest::check)),
        ("TransferRequest", |it| request(it, TransferRequest::check)),
        ("UpgradeRequest", |it| request::<UpgradeRequest>(it, |_| Ok(()))),
        ("ValidateRequest", |it| request::<ValidateRequest>(it, |body| body.clone().checks().map(drop))),
        ("Grant", answer::<Grant>),
        ("MirroredGrant", answer::<MirroredGrant>),
        ("Waiting", answer::<Waiting>),
        ("KeyView", answer::<KeyView>),
        ("KeyList", answer::<KeyList>),
        ("Verdict", answer::<Verdict>),
        ("VerdictsAnswer", answer::<VerdictsAnswer>),
        ("BatchAnswer", answer::<BatchAnswer>),
        ("Access", answer::<Access>),
        ("Backup", answer::<Backup>),
        ("Upgraded", answer::<Upgraded>),
    ])
}

/// Every `content` of a request or an answer in the document: where it stands, its schema and its examples.
fn contents() -> Vec<(String, &'static Value, Vec<&'static Value>)> {
    let mut found = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters")
        {
            let answers = operation["responses"].as_object().unwrap().iter();
            let bodies = operation.get("requestBody").map(|body| ("body", body)).into_iter();
            for (part, value) in bodies.chain(answers.map(|(status, answer)| (status.as_str(), answer))) {
                for (_, content) in
                    resolve(value).get("content").and_then(Value::as_object).into_iter().flatten()
                {
                    let examples = content.get("examples").and_then(Value::as_object).into_iter().flatten();
                    let examples = examples.map(|(_, example)| &resolve(example)["value"]).collect();
                    found.push((format!("{method} {path} {part}"), &content["schema"], examples));
                }
            }
        }
    }
    found
}

#[test]
fn every_example_is_what_the_wire_types_read_and_write() {
    let types = wire_types();
    let mut seen = BTreeSet::new();
    for (place, schema, examples) in contents() {
        for example in examples {
            if let Err(error) = validator(schema).validate(example) {
                panic!("{place}: {error}: {example}");
            }
            let alternatives = match schema.get("oneOf") {
                Some(alternatives) => alternatives.as_array().unwrap().iter().collect(),
                None => vec![schema],
            };
            let fitting: Vec<_> =
                alternatives.into_iter().filter(|schema| validator(schema).is_valid(example)).collect();
            let [fitting] = fitting[..] else { panic!("{place}: fits {} schemas: {example}", fitting.len()) };
            if fitting.get("properties").is_some() {
                continue; // Of health: no wire type.
            }
            let reads =
                types.get(name(fitting)).unwrap_or_else(|| panic!("{place}: no wire type of {fitting}"));
            reads(example).unwrap_or_else(|error| panic!("{place}: {error}: {example}"));
            seen.insert(name(fitting));
        }
    }
    assert_eq!(seen, types.keys().copied().collect(), "every wire type has an example");
}

#[test]
fn every_body_has_an_example_and_refuses_an_unknown_field() {
    for (place, schema, examples) in contents().into_iter().filter(|(place, ..)| place.ends_with(" body")) {
        assert!(!examples.is_empty(), "{place}");
        for example in examples {
            let mut unknown = example.clone();
            unknown["colour"] = json!(1);
            assert!(!validator(schema).is_valid(&unknown), "{place}: the document takes {unknown}");
            assert!(wire_types()[name(schema)](&unknown).is_err(), "{place}: the wire type takes {unknown}");
        }
    }
}

/// Clients that generate requests from the document send nothing that is always refused.
#[test]
fn what_the_wire_types_refuse_the_document_refuses() {
    for (name, wrong) in [
        ("AcquireRequest", json!({ "keys": [{ "key": "a", "limit": 2 }] })),
        ("AcquireRequest", json!({ "keys": [{ "key": "a", "mode": "exclusive", "limit": 2 }] })),
        ("AcquireRequest", json!({ "keys": ["a", "a"] })),
        ("AddMemberRequest", json!({ "id": 4, "peer": "10.0.0.4" })),
        ("AddMemberRequest", json!({ "id": 4, "peer": ":7500" })),
        ("AddMemberRequest", json!({ "id": 4, "peer": "a:0" })),
        ("ValidateRequest", json!({ "key": "a" })),
        ("ValidateRequest", json!({ "key": "a", "token": 7, "checks": [] })),
        ("ValidateRequest", json!({})),
    ] {
        assert!(wire_types()[name](&wrong).is_err(), "the wire type takes {wrong}");
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        assert!(!validator(&schema).is_valid(&wrong), "the document takes {wrong}");
    }
    // The table refuses it.
    for key in [json!("@db3/a"), json!({ "key": "@db3" })] {
        let wrong = json!({ "keys": [key] });
        let schema = json!({ "$ref": "#/components/schemas/AcquireRequest" });
        assert!(!validator(&schema).is_valid(&wrong), "the document takes {wrong}");
    }
    check_schema("AcquireRequest", &json!({ "keys": ["@dbs/a", "a/@db3"] }));
    let shared = json!([{ "key": "a", "mode": "shared", "limit": 2 }, { "key": "b", "mode": "shared" }]);
    let exclusive = json!(["a", { "key": "b" }, { "key": "c", "mode": "exclusive", "limit": null }]);
    for keys in [shared, exclusive] {
        check_schema("AcquireRequest", &json!({ "keys": keys }));
    }
    for peer in ["10.0.0.4:7500", "[::1]:1", "node-4.example:65535"] {
        check_schema("AddMemberRequest", &json!({ "id": 4, "peer": peer }));
    }
}

#[test]
fn every_problem_is_documented_with_its_status_and_title() {
    let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
    let documented: BTreeMap<_, _> = schemas
        .iter()
        .filter(|(name, _)| name.starts_with("Problem") && *name != "Problem")
        .map(|(_, schema)| (schema["properties"]["type"]["const"].as_str().unwrap(), schema))
        .collect();
    let kinds: Vec<_> = ProblemKind::ALL.iter().filter(|kind| !kind.is_of_a_guard()).collect();
    assert_eq!(documented.len(), kinds.len());
    for kind in &kinds {
        let schema = documented[kind.urn()];
        assert_eq!(schema["properties"]["status"]["const"], kind.status());
        let example = &schema["examples"][0];
        assert_eq!(example["title"], kind.title());
        assert!(validator(schema).is_valid(example), "{example}");
        answer::<Problem>(example).unwrap_or_else(|error| panic!("{error}: {example}"));
    }
    let names =
        DOCUMENT["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].as_array().unwrap();
    assert_eq!(names.len(), kinds.len());
}

#[test]
fn watch_events_are_documented_as_the_wire_types_write_them() {
    for (name, reads) in [("WatchEvent", answer::<WatchEvent> as Reads), ("CutOff", answer::<CutOff>)] {
        let schema = &DOCUMENT["components"]["schemas"][name];
        let example = &schema["examples"][0];
        check_schema(name, example);
        reads(example).unwrap_or_else(|error| panic!("{error}: {example}"));
    }
    let watch = &DOCUMENT["paths"]["/v1/watch"]["get"];
    let names: Vec<_> = WatchEventName::ALL.iter().map(|name| name.as_str()).chain([CutOff::NAME]).collect();
    let event = &watch["responses"]["200"]["content"]["text/event-stream"]["schema"]["properties"]["event"];
    assert_eq!(event["enum"], json!(names));
    for name in names {
        assert!(watch["description"].as_str().unwrap().contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn limits_and_defaults_are_those_of_the_wire_types() {
    let number = |pointer: &str| {
        let value = DOCUMENT.pointer(&format!("/components/schemas/{pointer}"));
        value.and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {pointer}"))
    };
    let default: AcquireRequest = from_json(br#"{"keys":["a"]}"#).unwrap();
    for (pointer, limit) in [
        ("Key/maxLength", Key::MAX_BYTES as u64),
        ("Holder/maxLength", Holder::MAX_BYTES as u64),
        ("Ttl/minimum", MIN_TTL_MS.into()),
        ("Ttl/maximum", MAX_TTL_MS.into()),
        ("AcquireRequest/properties/keys/maxItems", MAX_KEYS as u64),
        ("AcquireRequest/properties/ttl_ms/default", Ttl::default().ms().into()),
        ("AcquireRequest/properties/wait_ms/maximum", MAX_WAIT_MS.into()),
        ("AcquireRequest/properties/wait_ms/default", default.wait_ms.ms().into()),
        ("RenewManyRequest/properties/lease_ids/maxItems", MAX_BATCH as u64),
        ("BatchRequest/properties/operations/maxItems", MAX_BATCH as u64),
        ("ValidateRequest/oneOf/1/properties/checks/maxItems", MAX_BATCH as u64),
    ] {
        assert_eq!(number(pointer), limit, "{pointer}");
    }
    assert_eq!(
        default.keep_place,
        DOCUMENT["components"]["schemas"]["AcquireRequest"]["properties"]["keep_place"]["default"]
    );
}
