use std::num::NonZeroU32;

use super::*;
use crate::{Mode, from_json};

fn field_of<T: serde::de::DeserializeOwned + fmt::Debug>(json: &str) -> (String, String) {
    let error = from_json::<T>(json.as_bytes()).expect_err(json);
    (error.field.unwrap_or_default(), error.detail)
}

#[test]
fn an_acquire_needs_only_keys() {
    let request: AcquireRequest =
        from_json(br#"{"keys":["a",{"key":"b","mode":"shared","limit":2}]}"#).unwrap();
    request.check().unwrap();
    assert_eq!(request.ttl_ms.ms(), 15_000);
    assert_eq!(request.wait_ms.ms(), 0);
    assert_eq!(request.keys[0].mode, Mode::Exclusive);
    assert_eq!(request.keys[1].mode, Mode::Shared { limit: NonZeroU32::new(2) });
}

#[test]
fn an_error_names_the_field_as_the_client_wrote_it() {
    for (json, field, word) in [
        (r#"{"keys":["a","b","c",7]}"#, "keys[3]", "a key as a string"),
        (r#"{"keys":["a","/b"]}"#, "keys[1]", "segment"),
        (r#"{"keys":[{"key":"a","mode":"both"}]}"#, "keys[0].mode", "unknown variant `both`"),
        (r#"{"keys":[{"key":"a","mode":"shared","limit":0}]}"#, "keys[0].limit", "nonzero"),
        (r#"{"keys":[{"key":"a","limit":1}]}"#, "keys[0]", "shared"),
        (r#"{"keys":[{"key":"a","colour":1}]}"#, "keys[0].colour", "unknown field `colour`"),
        (r#"{"keys":["a"],"ttl":5}"#, "ttl", "unknown field `ttl`"),
        (r#"{"keys":["a"],"ttl_ms":99}"#, "ttl_ms", "100 to 86,400,000"),
        (r#"{"keys":["a"],"ttl_ms":-1}"#, "ttl_ms", "-1"),
        (r#"{"keys":["a"],"ttl_ms":1.5}"#, "ttl_ms", "1.5"),
        (r#"{"keys":["a"],"wait_ms":60001}"#, "wait_ms", "60,000"),
        (r#"{"keys":["a"],"metadata":{"a":1}}"#, "metadata.a", "string"),
        (r#"{"ttl_ms":500}"#, "keys", "missing field `keys`"),
        (r#"{"keys":["a"],"keys":["b"]}"#, "keys", "duplicate field"),
        (r#"{"keys":["a"],"metadata":{"a":"1","a":"1"}}"#, "metadata.a", "duplicate field"),
        (r#"{"keys":["a"],"metadata":[["a","1"]]}"#, "metadata", "sequence"),
        (r#"{"keys":[["a","shared"]]}"#, "keys[0]", "a key as a string"),
        (r#"[["a"]]"#, "", "expected an object"),
    ] {
        let (found, detail) = field_of::<AcquireRequest>(json);
        assert_eq!(found, field, "{json}: {detail}");
        assert!(detail.contains(word), "{json}: {detail}");
    }
    let (field, _) = field_of::<BatchRequest>(r#"{"operations":[{"renew":{"lease_id":"x"}}]}"#);
    assert_eq!(field, "operations[0].renew.lease_id");
    assert!(field_of::<AcquireRequest>("{").1.contains("line 1"), "a syntax error has a place");
}

#[test]
fn a_list_is_not_a_request() {
    let id = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
    let wrong = |(field, detail): (String, String), expected: &str| {
        assert_eq!(field, expected, "{detail}");
        assert!(detail.contains("expected an object"), "{detail}");
    };
    wrong(field_of::<RenewRequest>("[]"), "");
    wrong(field_of::<RenewRequest>("[null]"), "");
    wrong(field_of::<TransferRequest>("[]"), "");
    wrong(field_of::<UpgradeRequest>("[]"), "");
    wrong(field_of::<RenewManyRequest>("[[]]"), "");
    wrong(field_of::<RevokeRequest>(r#"["a",1]"#), "");
    wrong(field_of::<AddMemberRequest>(r#"[1,"a:1"]"#), "");
    wrong(field_of::<BatchRequest>("[[]]"), "");
    wrong(field_of::<ValidateRequest>("[]"), "");
    wrong(field_of::<ValidateRequest>(r#"{"checks":[["a",1]]}"#), "checks[0]");
    for name in ["acquire", "renew", "release"] {
        let json = format!(r#"{{"operations":[{{"{name}":["{id}",["a"]]}}]}}"#);
        wrong(field_of::<BatchRequest>(&json), &format!("operations[0].{name}"));
    }
}

/// It took tens of milliseconds to read all of it.
#[test]
fn nothing_is_read_after_the_first_thing_too_many() {
    let too_many = |item: &str, max: usize| format!("{item},").repeat(max + 1) + "no JSON";
    let acquire = |rest: &str| field_of::<AcquireRequest>(&format!(r#"{{"keys":[{rest}"#));
    let check = r#"{"key":"a","token":1}"#;
    let id = r#""0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10""#;
    let release = format!(r#"{{"release":{{"lease_id":{id}}}}}"#);
    for ((field, detail), expected, word) in [
        (acquire(&too_many(r#""a""#, MAX_KEYS)), "keys", "at most 64"),
        (
            acquire(&format!(r#""a"],"metadata":{{"a":"{}",no JSON"#, "b".repeat(4_096))),
            "metadata",
            "at most 4,096 bytes",
        ),
        (
            field_of::<RenewManyRequest>(&format!(r#"{{"lease_ids":[{}"#, too_many(id, MAX_BATCH))),
            "lease_ids",
            "at most 1000",
        ),
        (
            field_of::<BatchRequest>(&format!(r#"{{"operations":[{}"#, too_many(&release, MAX_BATCH))),
            "operations",
            "at most 1000",
        ),
        (
            field_of::<ValidateRequest>(&format!(r#"{{"checks":[{}"#, too_many(check, MAX_BATCH))),
            "checks",
            "at most 1000",
        ),
    ] {
        assert!(field == expected && detail.contains(word), "{field}: {detail}");
    }
    let all = format!(r#"{{"keys":["a"],"metadata":{{"a":"{}"}}}}"#, "b".repeat(4_095));
    assert!(from_json::<AcquireRequest>(all.as_bytes()).is_ok());
    let all = format!(r#"{{"checks":[{check}{}]}}"#, format!(",{check}").repeat(MAX_BATCH - 1));
    assert_eq!(from_json::<ValidateRequest>(all.as_bytes()).unwrap().checks().unwrap().0.len(), MAX_BATCH);
}

#[test]
fn an_error_quotes_no_more_than_the_ends_of_a_long_name() {
    let name = "é".repeat(100_000);
    for json in [
        format!(r#"{{"keys":["a"],"{name}":1}}"#),
        format!(r#"{{"keys":["a"],"metadata":{{"{name}":1}}}}"#),
        format!(r#"{{"keys":["a"],"ttl_ms":"{name}"}}"#),
    ] {
        let (field, detail) = field_of::<AcquireRequest>(&json);
        assert!(field.len() < 600 && detail.len() < 600, "{field}: {detail}");
        assert!(detail.contains("line 1 column"), "{detail}");
    }
}

#[test]
fn a_duplicate_key_is_refused() {
    let twice: AcquireRequest = from_json(br#"{"keys":["a","b",{"key":"a","mode":"shared"}]}"#).unwrap();
    assert_eq!(twice.check().unwrap_err().field.as_deref(), Some("keys[2]"));
    let none: AcquireRequest = from_json(br#"{"keys":[]}"#).unwrap();
    assert_eq!(none.check().unwrap_err().field.as_deref(), Some("keys"));
}

#[test]
fn validation_takes_one_check_or_many_and_not_both() {
    let one: ValidateRequest = from_json(br#"{"key":"a","token":7}"#).unwrap();
    assert!(one.checks().unwrap().1);
    let many: ValidateRequest =
        from_json(br#"{"checks":[{"key":"a","token":7},{"key":"b","token":8}]}"#).unwrap();
    assert_eq!(many.checks().unwrap().0.len(), 2);
    for (json, field) in [
        ("{}", "key"),
        (r#"{"key":"a"}"#, "token"),
        (r#"{"token":1}"#, "key"),
        (r#"{"key":"a","token":1,"checks":[]}"#, "checks"),
    ] {
        let request: ValidateRequest = from_json(json.as_bytes()).unwrap();
        assert_eq!(request.checks().unwrap_err().field.as_deref(), Some(field), "{json}");
    }
}
