use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use ringfence_wire::{Problem, ProblemKind, Token};

/// The answer to a refused request, as `application/problem+json`. Nothing was written, unless the problem is
/// `indeterminate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(Box<Problem>);

impl Refused {
    /// 412: the token is below the number kept with the resource.
    pub fn stale(high: Token) -> Self {
        let mut refused = Self::new(
            ProblemKind::StaleToken,
            format!("every token below {high} is dead: the lease has ended, and nothing was done"),
        );
        refused.0.fence = Some(high);
        refused
    }

    pub(super) fn token_required() -> Self {
        Self::new(
            ProblemKind::TokenRequired,
            "this takes the headers Ringfence-Key and Ringfence-Token of a lease",
        )
    }

    pub(super) fn without_key() -> Self {
        Self::invalid("path", "what is asked for has a name that is no key, so that nothing could guard it")
    }

    pub(super) fn invalid(field: &str, detail: impl Into<String>) -> Self {
        let mut refused = Self::new(ProblemKind::InvalidRequest, detail);
        refused.0.field = Some(field.to_owned());
        refused
    }

    pub(super) fn too_large(max_bytes: usize) -> Self {
        Self::new(ProblemKind::TooLarge, format!("a body has at most {max_bytes} bytes"))
    }

    pub(super) fn fence_unknown(why: impl std::fmt::Display) -> Self {
        let detail = format!("the fence of the key could not be asked for, and nothing was done: {why}");
        Self::new(ProblemKind::Unavailable, detail)
    }

    pub(super) fn interrupted() -> Self {
        Self::new(ProblemKind::Indeterminate, "this server was stopped in the middle of the request")
    }

    fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(kind, detail)))
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.0
    }

    /// The response, with any body type that can be made from text.
    pub fn into_response<B: From<String>>(self) -> Response<B> {
        let body = serde_json::to_string(&self.0).expect("every problem can be written as JSON");
        let mut response = Response::new(B::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.0.status).expect("every problem has an HTTP status");
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.0.kind == ProblemKind::Unavailable {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
