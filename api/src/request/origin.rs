//! Checks the host that a request names and the site that it comes from.
//!
//! A site can point its own name at a node after its page was loaded (DNS rebinding). Page and node then have the same
//! origin, and the page could read every response. But `Host` still has the site's name. So, except by `/livez`, which tells any
//! caller whether the node lives, a browser is answered only if `Host` is an IP address, which no DNS server answers for,
//! `localhost`, or a name of this cluster: the host of a URL that a member advertises, of a member's peer address, or one that
//! the operator lists. Under another name, no response says who leads.
//!
//! Other programs load no pages, and may reach a node by the name of a proxy or service. They must use these names only if
//! the operator lists some. A browser is recognized by headers that a page can change but not omit; if a browser lets pages
//! change all of them, only a list helps.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN, REFERER, USER_AGENT};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ringfence_service::Failure;
use ringfence_wire::{ClusterStatus, FieldError, ProblemKind};

use crate::problems::Failed;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses a request for another host, and a request that may change something from an `Origin` other than its `Host`.
/// `hosts` are the names that the operator lists; `is_of_a_member` is asked for others.
pub(crate) fn check<B>(
    request: &Request<B>,
    hosts: &[String],
    is_of_a_member: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failed> {
    let headers = request.headers();
    let host = only_host(headers)?;
    if !hosts.is_empty() || is_of_a_browser(headers) {
        // A request to a proxy has an absolute URL.
        let named = request.uri().authority().cloned();
        let is_unnamed = named.is_none() && host.is_none() && !is_of_a_browser(headers);
        let named = named.or_else(|| host.and_then(|host| host.parse::<Authority>().ok()));
        // HTTP/1.0 health checks name no host.
        let is_known = match named {
            Some(named) => is_known(named.host(), hosts) || is_of_a_member(named.host())?,
            None => is_unnamed,
        };
        if !is_known {
            let detail = "the request names a host that is not a name of this node: use an IP address or a name that a \
                          node advertises, or start the nodes with --hosts or --advertise-http";
            return Err(Failed::new(ProblemKind::Misdirected, detail));
        }
    }
    if request.method().is_safe() {
        return Ok(());
    }
    if !headers.contains_key(ORIGIN) {
        let is_own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
        return match headers.get_all(SEC_FETCH_SITE).iter().all(is_own) {
            true => Ok(()),
            false => Err(Failed::new(ProblemKind::Forbidden, "the header Sec-Fetch-Site names another site")),
        };
    }
    let is_own = |origin: &str| match (origin.split_once("://"), host) {
        (Some((scheme, from)), Some(host)) => {
            without_default_port(scheme, from).eq_ignore_ascii_case(without_default_port(scheme, host))
        }
        _ => false,
    };
    if headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own)) {
        return Ok(());
    }
    Err(Failed::new(ProblemKind::Forbidden, "the header Origin does not match the header Host"))
}

/// Two `Host` headers are ambiguous: a proxy may have checked the other one.
fn only_host(headers: &HeaderMap) -> Result<Option<&str>, FieldError> {
    let mut all = headers.get_all(HOST).iter();
    let host = all.next().map(HeaderValue::to_str);
    match (host, all.next()) {
        (None, _) => Ok(None),
        (Some(Ok(host)), None) => Ok(Some(host)),
        _ => Err(FieldError::new("Host", "must be one host, with or without a port")),
    }
}

fn is_of_a_browser(headers: &HeaderMap) -> bool {
    let has = |name, is: fn(&str) -> bool| {
        headers.get_all(name).iter().any(|value: &HeaderValue| value.to_str().map_or(true, is))
    };
    [ORIGIN, REFERER, SEC_FETCH_SITE].iter().any(|name| headers.contains_key(name))
        // `fetch` in Node.js sends `*`.
        || has(ACCEPT_LANGUAGE, |value| value != "*")
        || has(USER_AGENT, |value| value.contains("Mozilla/"))
}

fn is_known(host: &str, hosts: &[String]) -> bool {
    is_address(host) || hosts.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(host))
}

/// Browsers omit the scheme's default port; proxies may add it.
fn without_default_port<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Whether `host` is not resolved by DNS.
fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

/// Whether `host` is a name of a member.
pub(crate) fn is_of_a_member(host: &str, cluster: &ClusterStatus) -> bool {
    let is = |name: &str| name.eq_ignore_ascii_case(host);
    cluster.members.values().any(|member| {
        let url = member.url.as_ref().and_then(|url| url.parse::<Uri>().ok());
        url.and_then(|url| url.into_parts().authority).is_some_and(|own| is(own.host()))
            || member.peer.rsplit_once(':').is_some_and(|(name, _)| is(name))
    })
}
