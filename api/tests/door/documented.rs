//! The routes that a node serves, compared with the OpenAPI document.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::document::DOCUMENT;
use crate::service::Service;

#[tokio::test]
async fn every_path_has_the_documented_methods_and_no_other() {
    let service = Service::start().await;
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        let response = service.send("TRACE", path, &[], b"").await;
        response.problem("method-not-allowed");
        let allowed: BTreeSet<_> = response.header("allow").unwrap().split(',').map(str::to_owned).collect();
        let methods = item.as_object().unwrap().keys().filter(|name| *name != "parameters");
        let mut documented: BTreeSet<_> = methods.map(|method| method.to_uppercase()).collect();
        if documented.contains("GET") {
            documented.insert("HEAD".to_owned());
        }
        assert_eq!(allowed, documented, "{path}");
    }
}

#[tokio::test]
async fn the_document_is_served_with_the_version_of_the_program() {
    let service = Service::start().await;
    let mut served: Value = service.get("/openapi.json").await.expect(200);
    assert_eq!(served["info"]["version"], env!("CARGO_PKG_VERSION"));
    served["info"]["version"] = DOCUMENT["info"]["version"].clone();
    assert_eq!(served, *DOCUMENT);
}
