//! The dashboard: static files compiled into the program.
//!
//! The dashboard is an ordinary client of the API, so the paths of its files are not in the description of the API. The
//! content security policy of each file allows only scripts and styles from this node, and requests to this node: a key
//! that looks like markup stays text.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use ringfence_http::takes_no_memory;

use crate::door::Request;

/// The `route` label of all its files.
pub(crate) const ROUTE: &str = "dashboard";

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the dashboard.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

/// One row for each file in `api/dashboard/`.
macro_rules! files {
    ($($path:literal, $name:literal, $content_type:expr;)*) => {
        pub(crate) const FILES: &[File] = &[$(File {
            path: $path,
            content_type: $content_type,
            content: include_str!(concat!("../../dashboard/", $name)),
        },)*];
    };
}

files! {
    "/", "index.html", "text/html; charset=utf-8";
    "/dashboard/icon.svg", "icon.svg", "image/svg+xml";
    "/dashboard/dashboard.css", "dashboard.css", "text/css; charset=utf-8";
    "/dashboard/access.js", "access.js", JAVASCRIPT;
    "/dashboard/api.js", "api.js", JAVASCRIPT;
    "/dashboard/bar.js", "bar.js", JAVASCRIPT;
    "/dashboard/cluster.js", "cluster.js", JAVASCRIPT;
    "/dashboard/dom.js", "dom.js", JAVASCRIPT;
    "/dashboard/figures.js", "figures.js", JAVASCRIPT;
    "/dashboard/key.js", "key.js", JAVASCRIPT;
    "/dashboard/key_list.js", "key_list.js", JAVASCRIPT;
    "/dashboard/key_table.js", "key_table.js", JAVASCRIPT;
    "/dashboard/locks.js", "locks.js", JAVASCRIPT;
    "/dashboard/main.js", "main.js", JAVASCRIPT;
    "/dashboard/mirror.js", "mirror.js", JAVASCRIPT;
    "/dashboard/node.js", "node.js", JAVASCRIPT;
    "/dashboard/revoke.js", "revoke.js", JAVASCRIPT;
    "/dashboard/selection.js", "selection.js", JAVASCRIPT;
    "/dashboard/sign_in.js", "sign_in.js", JAVASCRIPT;
    "/dashboard/text.js", "text.js", JAVASCRIPT;
    "/dashboard/watch.js", "watch.js", JAVASCRIPT;
}

/// Answers with `file`, or 304 if the browser has this version.
pub(crate) fn get(file: File, request: &Request) -> Response {
    let tag = file.tag();
    let asked = request.headers().get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_cached = asked.flat_map(|tags| tags.split(',')).any(|one| one.trim() == tag);
    let (status, content) = match is_cached {
        true => (StatusCode::NOT_MODIFIED, Bytes::new()),
        false => (StatusCode::OK, Bytes::from_static(file.content.as_bytes())),
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(file.content_type)),
        (ETAG, HeaderValue::try_from(tag).expect("a tag is valid header text")),
        // After an upgrade a page must not mix files of two versions.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    takes_no_memory((status, headers, content).into_response())
}

impl File {
    /// An entity tag: a hash of the content.
    fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.content.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}
