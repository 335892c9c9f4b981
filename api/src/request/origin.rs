//! Which host a request names, and which site it comes from.
//!
//! The site that serves a page can point its name at a node afterwards (DNS rebinding). Then the page and the node have one
//! origin, and the page can read all that the node answers. `Host` still has the site's name. So a browser is answered
//! only where that is an address, which no name service answers for, or `localhost`, or a name that this cluster goes by: of
//! a URL that a member advertises, of a member's peer address, or one that the operator lists.
//!
//! Programs do not load pages, and reach a node by whatever name leads there, of a proxy or of a service. They are held to
//! these names only where the operator lists some. What tells a browser is a header that a page can change, but not leave
//! out; where a browser lets a page change all of them, only a list helps.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN, REFERER, USER_AGENT};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ringfence_wire::{ClusterStatus, FieldError, ProblemKind};

use crate::problems::Failed;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses what is meant for another host; and any request that may change something, from an `Origin` whose host and port
/// are not those that the request itself was sent to. `hosts` are those that the operator lists; `cluster` is asked for the
/// names of its members.
pub(crate) fn check<B>(
    request: &Request<B>,
    hosts: &[String],
    cluster: impl Fn() -> ClusterStatus,
) -> Result<(), Failed> {
    let headers = request.headers();
    let host = only_host(headers)?;
    if !hosts.is_empty() || is_of_a_browser(headers) {
        // A proxy may be asked by a whole URL.
        let named = request.uri().authority().cloned();
        let is_unnamed = named.is_none() && host.is_none() && !is_of_a_browser(headers);
        let named = named.or_else(|| host.and_then(|host| host.parse::<Authority>().ok()));
        // Checks of health by HTTP/1.0 name no host.
        if !is_unnamed && !named.is_some_and(|named| is_known(named.host(), hosts, &cluster)) {
            let detail = "this node does not go by the host that the request names: ask it by an IP address or the name that \
                          a node advertises, or start the nodes with --hosts or --advertise-http";
            return Err(Failed::new(ProblemKind::Misdirected, detail));
        }
    }
    if !headers.contains_key(ORIGIN) || request.method().is_safe() {
        return Ok(());
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
    Err(Failed::new(ProblemKind::Forbidden, "the header Origin names another site than Host"))
}

/// Of two hosts nobody knows which is meant, and a proxy may have looked at the other.
fn only_host(headers: &HeaderMap) -> Result<Option<&str>, FieldError> {
    let mut all = headers.get_all(HOST).iter();
    let host = all.next().map(HeaderValue::to_str);
    match (host, all.next()) {
        (None, _) => Ok(None),
        (Some(Ok(host)), None) => Ok(Some(host)),
        _ => Err(FieldError::new("Host", "is one host, with or without a port")),
    }
}

fn is_of_a_browser(headers: &HeaderMap) -> bool {
    let has = |name, is: fn(&str) -> bool| {
        headers.get_all(name).iter().any(|value: &HeaderValue| value.to_str().map_or(true, is))
    };
    [ORIGIN, REFERER, SEC_FETCH_SITE].iter().any(|name| headers.contains_key(name))
        // The fetch of programs in JavaScript sends `*`.
        || has(ACCEPT_LANGUAGE, |value| value != "*")
        || has(USER_AGENT, |value| value.contains("Mozilla/"))
}

fn is_known(host: &str, hosts: &[String], cluster: &impl Fn() -> ClusterStatus) -> bool {
    is_address(host)
        || hosts.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(host))
        || is_of_a_member(host, &cluster())
}

/// Browsers leave the port out where it is the scheme's own; proxies may write it.
fn without_default_port<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Whether `host` leads nowhere but to where it says.
fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

fn is_of_a_member(host: &str, cluster: &ClusterStatus) -> bool {
    let is = |name: &str| name.eq_ignore_ascii_case(host);
    cluster.members.values().any(|member| {
        let url = member.url.as_ref().and_then(|url| url.parse::<Uri>().ok());
        url.and_then(|url| url.into_parts().authority).is_some_and(|own| is(own.host()))
            || member.peer.rsplit_once(':').is_some_and(|(name, _)| is(name))
    })
}
