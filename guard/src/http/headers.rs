use http::HeaderMap;
use percent_encoding::percent_decode_str;
pub use ringfence_wire::{FENCE_HEADER as FENCE, KEY_HEADER as KEY, TOKEN_HEADER as TOKEN};
use ringfence_wire::{Key, Token};

use super::Refused;
use crate::{Claim, ClaimError};

/// The claim in the headers of a request to a resource guarded by `key`.
///
/// Only the resource knows its key: a token for another key says nothing about it, and is refused.
pub fn claim(headers: &HeaderMap, key: &Key) -> Result<Claim, Refused> {
    let named = one(headers, KEY)?.ok_or_else(Refused::token_required)?;
    let token = number(headers, TOKEN)?.ok_or_else(Refused::token_required)?;
    let fence = number(headers, FENCE)?.unwrap_or(token);
    let named = percent_decode_str(named).decode_utf8();
    if named.as_deref() != Ok(key.as_str()) {
        return Err(Refused::invalid(
            spelled(KEY),
            format!("what is asked for is guarded by the key `{key}`"),
        ));
    }
    Claim::new(token, fence).map_err(|why| {
        let field = match why {
            ClaimError::OutOfRange { field: "token", .. } => TOKEN,
            ClaimError::OutOfRange { .. } | ClaimError::FenceAboveToken { .. } => FENCE,
        };
        Refused::invalid(spelled(field), why.to_string())
    })
}

/// Whether a request has any of the headers.
pub(super) fn has_any(headers: &HeaderMap) -> bool {
    [KEY, TOKEN, FENCE].iter().any(|&name| headers.contains_key(name))
}

fn number(headers: &HeaderMap, name: &'static str) -> Result<Option<Token>, Refused> {
    let Some(text) = one(headers, name)? else { return Ok(None) };
    // Digits only: `parse` would also take a sign.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(Token(number))),
        None => Err(Refused::invalid(spelled(name), format!("`{text}` is no number"))),
    }
}

/// The header, if present. A client or proxy that sends it twice contradicts itself.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let (value, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(Refused::invalid(spelled(name), "stands there twice"));
    }
    let not_ascii = |_| Refused::invalid(spelled(name), "has to be ASCII");
    value.map(|value| value.to_str().map_err(not_ascii)).transpose()
}

/// As documented.
fn spelled(name: &'static str) -> &'static str {
    match name {
        KEY => "Ringfence-Key",
        TOKEN => "Ringfence-Token",
        _ => "Ringfence-Fence",
    }
}
