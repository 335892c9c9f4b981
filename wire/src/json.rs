use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

/// Why untrusted JSON was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct FieldError {
    /// The field, as a client would write it (`keys[3].limit`); `None` if no field is to blame.
    pub field: Option<String>,
    /// What is wrong there.
    pub detail: String,
}

impl FieldError {
    /// An error at `field`.
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), detail: detail.into() }
    }
}

/// Bytes of the beginning and of the end of an error that are kept: names in the body stand in it, and may be as long as that.
const QUOTED: usize = 256;

/// Reads `body` as a `T`. An empty body is `{}`.
pub fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, FieldError> {
    let body = if body.trim_ascii().is_empty() { b"{}".as_slice() } else { body };
    // Tracking the path costs about as much as reading, so only a wrong body is read that way.
    serde_json::from_slice(body).or_else(|_| with_path(body))
}

fn with_path<T: DeserializeOwned>(body: &[u8]) -> Result<T, FieldError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let known = error.path().iter().any(|segment| !matches!(segment, Segment::Unknown));
        let path = known.then(|| error.path().to_string());
        let detail = error.into_inner().to_string();
        let field = match field_in_text(&detail) {
            Some(name) => Some(path.map_or(name.to_owned(), |path| format!("{path}.{name}"))),
            None => path,
        };
        FieldError { field: field.map(cut), detail: cut(detail) }
    })?;
    deserializer.end().map_err(|error| FieldError { field: None, detail: error.to_string() })?;
    Ok(value)
}

/// A text that may quote the body, without the middle if it is long. Hexadecimal digits beside the cut go, too: they may be part of
/// a lease id or a credential, which the server could not recognize any more.
fn cut(text: String) -> String {
    if text.len() <= 2 * QUOTED {
        return text;
    }
    let boundary =
        |from: usize| (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let of_secret = |c: char| c.is_ascii_hexdigit() || c == '-';
    let begin = text[..boundary(QUOTED)].trim_end_matches(of_secret);
    let end = text[boundary(text.len() - QUOTED)..].trim_start_matches(of_secret);
    format!("{begin}…{end}")
}

/// serde reports a missing or repeated field with the path of its object: only the text has the name.
fn field_in_text(detail: &str) -> Option<&str> {
    let rest = detail.strip_prefix("missing field `").or_else(|| detail.strip_prefix("duplicate field `"))?;
    rest.split('`').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of an id would not look like one to the server, which keeps ids out of its errors.
    #[test]
    fn a_long_error_has_no_part_of_an_id() {
        const ID: &str = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
        for offset in 0..=ID.len() + 2 {
            let text = "x".repeat(offset) + &format!("{ID}, ").repeat(30) + &"y".repeat(offset);
            let cut = cut(text.clone());
            assert!(cut.len() < text.len());
            let parts = cut.replace(ID, "");
            assert_eq!(parts.find(|c: char| c.is_ascii_hexdigit() || c == '-'), None, "{cut}");
        }
    }
}
