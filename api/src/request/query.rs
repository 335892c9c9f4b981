use axum::http::Uri;
use percent_encoding::percent_decode;
use ringfence_wire::FieldError;

/// How fresh a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    /// As new as the cluster's state was at some instant of the call.
    Linearizable,
    /// This node's state.
    Local,
}

/// The parameters of a request, each of which its route knows.
pub(crate) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Reads the parameters that a route knows by `names`. The first unknown or repeated one is an error, so that no more
    /// than one for each name are ever decoded, however many were sent.
    pub(crate) fn of(uri: &Uri, names: &[&'static str]) -> Result<Self, FieldError> {
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).ok_or_else(|| not_utf8(name))?;
            let Some(known) = names.iter().copied().find(|known| *known == name) else {
                return Err(FieldError::new(name, "no such parameter here"));
            };
            if found.iter().any(|(other, _)| *other == known) {
                return Err(FieldError::new(name, "stands in the query twice"));
            }
            found.push((known, decode(value).ok_or_else(|| not_utf8(known))?));
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
            Some(_) => Err(FieldError::new("consistency", "is `linearizable` or `local`")),
        }
    }

    /// `false` unless it is there.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, FieldError> {
        match self.take(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(FieldError::new(name, "is `true` or `false`")),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    Some(percent_decode(text.as_bytes()).decode_utf8().ok()?.into_owned())
}

fn not_utf8(name: &str) -> FieldError {
    FieldError::new(name, "percent-encodes what is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_parameters_are_decoded_than_a_route_knows() {
        let parse = |text: &str| Query::of(&format!("/?{text}").parse().unwrap(), &["a", "b"]);
        let Query(found) = parse("b=%41+&&a").unwrap();
        assert_eq!(found, [("b", "A ".to_owned()), ("a", String::new())]);
        // What comes after the first unknown or repeated one is not looked at: `%FF` would be another error.
        for (text, field) in [("a=1&c=2&%FF", "c"), ("a=1&%61=2&b=%FF", "a"), ("a=%FF", "a"), ("%FF", "%FF")]
        {
            assert_eq!(parse(text).err().and_then(|error| error.field).as_deref(), Some(field), "{text}");
        }
    }
}
