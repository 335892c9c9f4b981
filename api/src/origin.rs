use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{Method, Uri};
use ringfence_wire::{ClusterStatus, ProblemKind};

use crate::problems::Failed;

/// Refuses what a page of another site makes a browser send: any request that may change something, from an `Origin`
/// whose host and port are not those that the request itself was sent to.
///
/// It is not enough that they are the same: whoever serves a page may let its name lead to a node afterwards (DNS
/// rebinding). So the host has to be an address, which no name service answers for, or `localhost`, or that of a URL that a
/// member advertises; `cluster` is asked for those.
pub(crate) fn check<B>(request: &Request<B>, cluster: impl Fn() -> ClusterStatus) -> Result<(), Failed> {
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
    if !headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own)) {
        return Err(Failed::new(ProblemKind::Forbidden, "the header Origin names another site than Host"));
    }
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    if host.is_some_and(|host| is_address(host.host()) || is_advertised(host.host(), &cluster())) {
        return Ok(());
    }
    Err(Failed::new(
        ProblemKind::Forbidden,
        "the header Origin names a host that is neither an IP address nor that of a URL which a node advertises: \
         open the page by one of these, or start a node with --advertise-http",
    ))
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

fn is_advertised(host: &str, cluster: &ClusterStatus) -> bool {
    let urls = cluster.members.values().filter_map(|member| member.url.as_ref()?.parse::<Uri>().ok());
    urls.filter_map(|url| url.into_parts().authority).any(|own| own.host().eq_ignore_ascii_case(host))
}
