use axum::http::Uri;
use percent_encoding::percent_decode;
use ringfence_service::Consistency;
use ringfence_wire::FieldError;

/// The query parameters of a request.
pub(crate) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Parses the parameters, which must be among `names`. The first unknown or repeated one is an error, so a request can
    /// make this decode at most one for each name.
    pub(crate) fn of(uri: &Uri, names: &[&'static str]) -> Result<Self, FieldError> {
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).ok_or_else(|| not_utf8(name))?;
            let Some(allowed) = names.iter().copied().find(|allowed| *allowed == name) else {
                return Err(FieldError::new(name, "unknown query parameter"));
            };
            if found.iter().any(|(other, _)| *other == allowed) {
                return Err(FieldError::new(name, "query parameter given twice"));
            }
            found.push((allowed, decode(value).ok_or_else(|| not_utf8(allowed))?));
        }
        Ok(Self(found))
    }

    /// For routes without parameters.
    pub(crate) fn none(uri: &Uri) -> Result<(), FieldError> {
        Self::of(uri, &[]).map(drop)
    }

    /// For routes whose only parameter is `consistency`.
    pub(crate) fn consistency_only(uri: &Uri) -> Result<Consistency, FieldError> {
        Self::of(uri, &["consistency"])?.consistency()
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.swap_remove(place).1)
    }

    pub(crate) fn consistency(&mut self) -> Result<Consistency, FieldError> {
        match self.take("consistency").as_deref() {
            None | Some("linearizable") => Ok(Consistency::Linearizable),
            Some("local") => Ok(Consistency::Local),
            Some(_) => Err(FieldError::new("consistency", "must be `linearizable` or `local`")),
        }
    }

    /// A Boolean, `false` by default.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, FieldError> {
        match self.take(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(FieldError::new(name, "must be `true` or `false`")),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    Some(percent_decode(text.as_bytes()).decode_utf8().ok()?.into_owned())
}

fn not_utf8(name: &str) -> FieldError {
    FieldError::new(name, "is not valid UTF-8 after percent-decoding")
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;
    use ringfence_wire::Key;

    use super::*;
    use crate::request::path;

    #[test]
    fn parsing_stops_at_the_first_unknown_or_repeated_parameter() {
        let parse = |text: &str| Query::of(&format!("/?{text}").parse().unwrap(), &["a", "b"]);
        let Query(found) = parse("b=%41+&&a").unwrap();
        assert_eq!(found, [("b", "A ".to_owned()), ("a", String::new())]);
        // `%FF` after the first error is not decoded: it would be another error.
        for (text, field) in [("a=1&c=2&%FF", "c"), ("a=1&%61=2&b=%FF", "a"), ("a=%FF", "a"), ("%FF", "%FF")]
        {
            assert_eq!(parse(text).err().and_then(|error| error.field).as_deref(), Some(field), "{text}");
        }
    }
    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_encoded_is_read_and_whatever_is_not_is_refused(text in "(\\PC|%[0-9A-F]{2}|[+ &=/])*", raw in "[!-~]{0,40}") {
            let encoded = utf8_percent_encode(&text, NON_ALPHANUMERIC);
            let uri = format!("/v1/keys/{encoded}?a={encoded}").parse::<Uri>().unwrap();
            let Query(found) = Query::of(&uri, &["a"]).unwrap();
            prop_assert_eq!(found, [("a", text.clone())]);
            let key = Key::new(&text).ok();
            prop_assert_eq!(path::key(&uri).ok(), key);
            for place in ["/v1/keys/", "/v1/keys?", "/v1/leases/", "/v1/cluster/members/"] {
                let Ok(uri) = format!("{place}{raw}").parse::<Uri>() else { continue };
                let _ = (path::key(&uri), path::lease_id(&uri), path::member(&uri), Query::of(&uri, &["a"]).is_ok());
            }
        }
    }
}
