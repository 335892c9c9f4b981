//! The document and the node take and refuse the same values.
//!
//! Each value stands once in each place of each example, and in each parameter. Three things are left out, which JSON Schema
//! cannot say: that a text has so many bytes, that `7.0` is no integer, and that two claims have one key.

use serde_json::{Value, json};

use super::{DOCUMENT, contents, name, resolve, validator, wire_types};
use crate::client::{Connection, request};
use crate::service::Service;

const ID: &str = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// On both sides of the limits.
const NUMBERS: [u64; 21] = [
    0,
    1,
    4,
    99,
    100,
    255,
    256,
    1_000,
    1_001,
    60_000,
    60_001,
    86_400_000,
    86_400_001,
    (1 << 32) - 1,
    1 << 32,
    (1 << 53) - 1,
    1 << 53,
    (1 << 53) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

fn texts() -> Vec<String> {
    let texts = [
        "",
        "a",
        "a/b",
        "a/",
        "/",
        "/a",
        "a//b",
        ".",
        "..",
        "a/../b",
        "./a",
        ".a",
        "...",
        "\n",
        "a\u{85}b",
        "ä",
        "a b",
        "+7",
        "-1",
        "1.5",
        "true",
        "false",
        "True",
        "linearizable",
        "local",
        "exclusive",
        "shared",
        "7.61",
        "7.",
        "7.6",
        "7.zz",
        "7.6A61",
        "a:1",
        "a:0",
        "a:01",
        "a:65535",
        "a:65536",
        "a:+1",
        ":1",
        "a b:1",
        "0.0.0.0:1",
        "[::]:1",
        "[::1]:1",
        "10.0.0.4:7500",
        ID,
        NIL,
        "18446744073709551616",
    ];
    let long = [256, 257, 512, 513].map(|length| "x".repeat(length));
    let hosts = [258, 259].map(|length| format!("{}:1", "x".repeat(length)));
    let upper = ID.to_uppercase();
    texts.map(str::to_owned).into_iter().chain(long).chain(hosts).chain([upper]).collect()
}

fn values() -> Vec<Value> {
    let others = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(1.5),
        json!([]),
        json!({}),
        json!([[]]),
        json!({ "a": "b" }),
    ];
    let texts = texts().into_iter().map(Value::from);
    others.into_iter().chain(NUMBERS.map(Value::from)).chain(texts).collect()
}

/// The JSON pointers of `value` and of all that is in it.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            (0..).zip(items).for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| places(field, &format!("{at}/{name}"), found));
        }
        _ => {}
    }
}

#[test]
fn the_document_and_the_wire_types_take_and_refuse_the_same_bodies() {
    let (types, values) = (wire_types(), values());
    for (place, schema, examples) in contents().into_iter().filter(|(place, ..)| place.ends_with(" body")) {
        let (validator, read) = (validator(schema), types[name(schema)]);
        let agree = |body: &Value| {
            let (documented, taken) = (validator.is_valid(body), read(body));
            assert_eq!(documented, taken.is_ok(), "{place}: {taken:?}: {body}");
        };
        for example in examples {
            let mut all = Vec::new();
            places(example, "", &mut all);
            for at in all {
                for value in &values {
                    let mut body = example.clone();
                    body.pointer_mut(&at).unwrap().clone_from(value);
                    agree(&body);
                }
                let (parent, field) = at.rsplit_once('/').unwrap_or_default();
                let mut body = example.clone();
                if let Some(Value::Object(fields)) = body.pointer_mut(parent) {
                    fields.remove(field);
                    agree(&body);
                }
            }
        }
    }
}

/// Whether `schema` allows a parameter that is written as `text`.
fn allows(schema: &Value, text: &str) -> bool {
    let is_string = resolved(schema)["type"] == "string";
    let read: Option<Value> = serde_json::from_str(text).ok();
    let as_written = |read: &Value| {
        let written = read.to_string();
        written == text
    };
    let read = read.filter(|read| !is_string && as_written(read));
    validator(schema).is_valid(&read.unwrap_or_else(|| text.into()))
}

fn resolved(schema: &Value) -> &Value {
    let pointer = schema["$ref"].as_str().map(|reference| reference.trim_start_matches('#'));
    pointer.map_or(schema, |pointer| DOCUMENT.pointer(pointer).unwrap())
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn the_document_and_the_node_take_and_refuse_the_same_parameters() {
    let service = Service::start().await;
    let numbers = NUMBERS.map(|number| number.to_string());
    let texts: Vec<_> = texts().into_iter().chain(numbers).collect();
    let mut parameters = 0;
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        let operations = item
            .as_object()
            .unwrap()
            .iter()
            .filter(|(method, _)| ["get", "delete"].contains(&method.as_str()));
        for (method, operation) in operations {
            let lists = [item.get("parameters"), operation.get("parameters")];
            let all = lists.into_iter().flatten().flat_map(|list| list.as_array().unwrap()).map(resolve);
            for parameter in all.filter(|parameter| parameter["in"] != "header") {
                parameters += 1;
                let name = parameter["name"].as_str().unwrap();
                for text in &texts {
                    // An empty segment is another path.
                    let is_path = parameter["in"] == "path";
                    if is_path && text.is_empty() {
                        continue;
                    }
                    let value = encoded(text);
                    let mut target = path.clone();
                    if is_path {
                        target = target.replace(&format!("{{{name}}}"), &value);
                    } else {
                        target += &format!("?{name}={value}");
                    }
                    let target = target.replace("{lease_id}", ID).replace("{key}", "a").replace("{id}", "4");
                    let mut connection = Connection::open(service.address).await;
                    connection.send(&request(&method.to_uppercase(), &target, &[], b"")).await;
                    let status = connection.receive_head().await.status;
                    let is_documented = allows(&parameter["schema"], text);
                    assert_eq!(is_documented, status != 400, "{method} {path}: {name} {text:?}: {status}");
                }
            }
        }
    }
    assert!(parameters >= 12, "the document has more than {parameters} parameters");
}
