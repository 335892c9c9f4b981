use axum::extract::Request;
use axum::http::Method;
use axum::http::header::{HOST, ORIGIN};
use ringfence_wire::ProblemKind;

use crate::problems::Failed;

/// Refuses what a page of another site makes a browser send: any request that may change something, from an `Origin`
/// whose host and port are not those that the request itself was sent to.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Failed> {
    let headers = request.headers();
    if !headers.contains_key(ORIGIN) || matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let is_own = |origin: &str| match (origin.split_once("://"), host) {
        (Some((scheme, from)), Some(host)) => {
            without_default_port(scheme, from).eq_ignore_ascii_case(without_default_port(scheme, host))
        }
        _ => false,
    };
    if headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own)) {
        return Ok(());
    }
    Err(Failed::new(ProblemKind::Forbidden, "the header Origin names another site than Host"))
}

/// Browsers leave the port out where it is the scheme's own; proxies may write it.
fn without_default_port<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}
