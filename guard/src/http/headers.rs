use http::HeaderMap;
use percent_encoding::percent_decode_str;
use ringfence_wire::{Key, Token};

use super::Refused;
use crate::{Claim, ClaimError};

/// Names the key, percent-encoded.
pub const KEY: &str = "ringfence-key";
/// The token of the grant.
pub const TOKEN: &str = "ringfence-token";
/// The fence that the grant or the renewal gave for the key; the token where it is left out.
pub const FENCE: &str = "ringfence-fence";

/// The claim that a request makes with its headers on a resource that `key` guards.
///
/// Which key that is, only the resource knows: a token for another key says nothing about it, and is refused.
pub fn claim(headers: &HeaderMap, key: &Key) -> Result<Claim, Refused> {
    let named = one(headers, KEY)?.ok_or_else(Refused::token_required)?;
    let token = number(headers, TOKEN)?.ok_or_else(Refused::token_required)?;
    let fence = number(headers, FENCE)?.unwrap_or(token);
    let named = percent_decode_str(named).decode_utf8();
    if named.as_deref() != Ok(key.as_str()) {
        return Err(Refused::invalid(
            "Ringfence-Key",
            format!("what is asked for is guarded by the key `{key}`"),
        ));
    }
    Claim::new(token, fence).map_err(|why| {
        let field = match why {
            ClaimError::OutOfRange { field: "token", .. } => "Ringfence-Token",
            ClaimError::OutOfRange { .. } | ClaimError::FenceAboveToken { .. } => "Ringfence-Fence",
        };
        Refused::invalid(field, why.to_string())
    })
}

/// Whether a request makes any claim.
pub(super) fn has_any(headers: &HeaderMap) -> bool {
    [KEY, TOKEN, FENCE].iter().any(|&name| headers.contains_key(name))
}

fn number(headers: &HeaderMap, name: &'static str) -> Result<Option<Token>, Refused> {
    let parse = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten().map(Token)
    };
    match one(headers, name)? {
        None => Ok(None),
        Some(text) => match parse(text) {
            Some(number) => Ok(Some(number)),
            None => Err(Refused::invalid(spelt(name), format!("`{text}` is no number"))),
        },
    }
}

/// The header, if it is there. Two of them are a client, or a proxy, that contradicts itself.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let (value, another) = (values.next(), values.next());
    if another.is_some() {
        return Err(Refused::invalid(spelt(name), "stands there twice"));
    }
    match value.map(|value| value.to_str()) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(Refused::invalid(spelt(name), "has to be ASCII")),
    }
}

/// As the contract spells it.
fn spelt(name: &'static str) -> &'static str {
    match name {
        KEY => "Ringfence-Key",
        TOKEN => "Ringfence-Token",
        _ => "Ringfence-Fence",
    }
}
