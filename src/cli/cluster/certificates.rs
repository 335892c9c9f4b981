//! The certificates in the status of a cluster.

use ringfence_client::ClusterStatus;
use ringfence_tls::{now, when};

use crate::cli::output::Table;

/// What the node that answers says of its certificates, and those of others that it has seen. Empty without TLS.
pub(super) fn text(status: &ClusterStatus) -> String {
    let now = now();
    let mut table = Table::new(["CERTIFICATE", "USE", "ENDS"]);
    for one in &status.certificates {
        let kind = if one.authority { ", authority" } else { "" };
        table.add([one.file.clone(), format!("{}{kind}", one.r#use), when(one.ends_unix_s, now)]);
    }
    let shown = status.members.iter().filter_map(|(id, member)| Some((id, member.certificate_ends_unix_s?)));
    for (id, ends) in shown {
        table.add([format!("of node {id}"), "peers".to_owned(), when(ends, now)]);
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.text()) }
}
