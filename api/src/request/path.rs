use axum::http::Uri;
use percent_encoding::percent_decode_str;
use ringfence_wire::{FieldError, Key, LeaseId};

use super::number;

/// The `lease_id` of `/v1/leases/{lease_id}` and `/v1/leases/{lease_id}/renew`.
pub(crate) fn lease_id(uri: &Uri) -> Result<LeaseId, FieldError> {
    let rest = uri.path().strip_prefix("/v1/leases/").unwrap_or_default();
    let segment = rest.split('/').next().unwrap_or_default();
    decode(segment, "lease_id")?
        .parse()
        .map_err(|error: ringfence_wire::LeaseIdError| FieldError::new("lease_id", error.to_string()))
}

/// The `id` of `/v1/cluster/members/{id}`.
pub(crate) fn member(uri: &Uri) -> Result<u64, FieldError> {
    let id = uri.path().strip_prefix("/v1/cluster/members/").unwrap_or_default();
    number(&decode(id, "id")?)
        .filter(|number| *number > 0)
        .ok_or_else(|| FieldError::new("id", format!("`{id}` is not a node id")))
}

/// The `key` of `/v1/keys/{key}`: the rest of the path, decoded once, so that `%2F` and `/` are the same.
pub(crate) fn key(uri: &Uri) -> Result<Key, FieldError> {
    let rest = uri.path().strip_prefix("/v1/keys/").unwrap_or_default();
    Key::new(&decode(rest, "key")?).map_err(|error| FieldError::new("key", error.to_string()))
}

fn decode<'a>(text: &'a str, field: &str) -> Result<std::borrow::Cow<'a, str>, FieldError> {
    percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| FieldError::new(field, "is not valid UTF-8 after percent-decoding"))
}
