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

/// The most values in a body. Each costs an allocation or two, and finding the field to blame costs several times as much,
/// so this bounds how long a hostile body takes. A batch within the limits of its fields has fewer.
pub(crate) const MAX_VALUES: usize = 150_000;

/// Reads `body` as a `T`. An empty body is `{}`.
pub fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, FieldError> {
    if body.len() > MAX_VALUES && values(body) > MAX_VALUES {
        let detail = "a body has at most 150,000 values".to_owned();
        return Err(FieldError { field: None, detail });
    }
    let body = if body.trim_ascii().is_empty() { b"{}".as_slice() } else { body };
    // Tracking the path costs about as much as reading, so only a wrong body is read that way.
    serde_json::from_slice(body).or_else(|_| with_path(body))
}

/// An upper bound for the number of values: each opens a list or an object, follows a comma, or is the first in one.
fn values(body: &[u8]) -> usize {
    let (mut values, mut is_text, mut bytes) = (0, false, body.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' if is_text => drop(bytes.next()),
            b',' | b'[' | b'{' if !is_text => values += 1,
            _ => {}
        }
    }
    values
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
        FieldError { field, detail }
    })?;
    deserializer.end().map_err(|error| FieldError { field: None, detail: error.to_string() })?;
    Ok(value)
}

/// serde reports a missing or repeated field with the path of its object: only the text has the name.
fn field_in_text(detail: &str) -> Option<&str> {
    let rest = detail.strip_prefix("missing field `").or_else(|| detail.strip_prefix("duplicate field `"))?;
    rest.split('`').next()
}
