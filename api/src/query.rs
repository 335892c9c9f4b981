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

/// The parameters of a request. Each is taken once; what is left over is refused by name.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Result<Self, FieldError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).ok_or_else(|| not_utf8(name))?;
            let value = decode(value).ok_or_else(|| not_utf8(&name))?;
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(FieldError::new(name, "stands in the query twice"));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// For routes without parameters.
    pub(crate) fn none(uri: &Uri) -> Result<(), FieldError> {
        Self::of(uri)?.finish()
    }

    /// For routes whose only parameter is `consistency`.
    pub(crate) fn consistency_only(uri: &Uri) -> Result<Consistency, FieldError> {
        let mut query = Self::of(uri)?;
        let consistency = query.consistency()?;
        query.finish()?;
        Ok(consistency)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(other, _)| other == name)?;
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

    pub(crate) fn finish(self) -> Result<(), FieldError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => Err(FieldError::new(name, "no such parameter here")),
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
