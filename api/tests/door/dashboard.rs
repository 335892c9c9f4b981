use std::collections::BTreeSet;
use std::path::Path;

use crate::client::{Connection, Response, request};
use crate::service::Service;

/// Not checked against the document, which describes only the API.
async fn file(service: &Service, target: &str) -> Response {
    let mut connection = Connection::open(service.address).await;
    connection.send(&request("GET", target, &[], b"")).await;
    connection.receive(false).await
}

/// The same by HEAD with `If-None-Match: tag`.
async fn head(service: &Service, target: &str, tag: &str) -> Response {
    let mut connection = Connection::open(service.address).await;
    connection.send(&request("HEAD", target, &[("If-None-Match", tag)], b"")).await;
    connection.receive(true).await
}

#[tokio::test]
async fn the_page_has_a_policy_that_allows_only_this_node() {
    let service = Service::start().await;
    let page = file(&service, "/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    for directive in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.split("; ").any(|other| other == directive), "{directive}: {policy}");
    }
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    service.send("POST", "/", &[], b"").await.problem("method-not-allowed");
    service.get("/dashboard/none.js").await.problem("not-found");
}

#[tokio::test]
async fn every_file_of_the_dashboard_is_served_as_it_is() {
    let service = Service::start().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let target = if name == "index.html" { "/".to_owned() } else { format!("/dashboard/{name}") };
        let answer = file(&service, &target).await;
        assert_eq!(answer.status, 200, "{target}");
        assert!(answer.body == std::fs::read(&path).unwrap(), "{target} is another file");
    }
}

#[tokio::test]
async fn a_cached_file_is_not_sent_again() {
    let service = Service::start().await;
    let mut tags = BTreeSet::new();
    for target in ["/", "/dashboard/main.js", "/dashboard/dashboard.css"] {
        let first = file(&service, target).await;
        assert_eq!(first.header("cache-control"), Some("no-cache"));
        let tag = first.header("etag").unwrap();
        assert!(tags.insert(tag.to_owned()), "two files have the tag {tag}");
        let again = head(&service, target, &format!("\"other\", {tag}")).await;
        assert_eq!((again.status, again.header("etag")), (304, Some(tag)));
        let changed = head(&service, target, "\"other\"").await;
        assert_eq!((changed.status, changed.header("etag")), (200, Some(tag)));
    }
}
