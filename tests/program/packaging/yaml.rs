//! Reads YAML. What does not have the expected type fails the test.

use serde_json::Value;

use super::text;

/// A file of `deploy/`.
pub(crate) fn read(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

pub(crate) fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned()
}

pub(crate) fn words(value: &Value) -> Vec<String> {
    list(value).iter().map(string).collect()
}
