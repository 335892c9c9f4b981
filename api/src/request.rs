//! The parts of a request: its sender and credential, host, head, path, query and body.

pub(crate) mod body;
pub(crate) mod credential;
pub(crate) mod head;
pub(crate) mod origin;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod requester;
pub(crate) mod trace_context;

/// A number in a path or a query. Digits only: `parse` would also take a sign, which the API document does not.
pub(crate) fn number(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}
