//! The certificates in the status of a cluster.

use ringfence_client::ClusterStatus;
use ringfence_tls::{Nearness, now, when};
use ringfence_wire::CertificateStatus;

use crate::cli::output::Table;

/// What the node that answers says of its certificates, and those of others that it has seen. Empty without TLS.
pub(super) fn text(status: &ClusterStatus) -> String {
    let now = now();
    let mut table = Table::new(["CERTIFICATE", "USE", "ENDS"]);
    for one in &status.certificates {
        let kind = if one.authority { ", authority" } else { "" };
        table.add([
            one.file.clone(),
            format!("{}{kind}", one.r#use),
            when(begins(one), one.ends_unix_s, now),
        ]);
    }
    let shown = status.members.iter().filter_map(|(id, member)| Some((id, member.certificate_ends_unix_s?)));
    for (id, ends) in shown {
        table.add([format!("of node {id}"), "peers".to_owned(), when(i64::MIN, ends, now)]);
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.text()) }
}

/// What others refuse of what this node uses, and which files it cannot use.
pub(super) fn troubles(status: &ClusterStatus) -> impl Iterator<Item = String> {
    let (id, now) = (status.node_id, now());
    let is_refused = move |one: &&CertificateStatus| {
        let nearness = Nearness::of(begins(one), one.ends_unix_s, now);
        one.needed && matches!(nearness, Nearness::Ended | Nearness::NotYet)
    };
    let certificates = status.certificates.iter().filter(is_refused).map(move |one| {
        let when = when(begins(one), one.ends_unix_s, now);
        format!("node {id} uses {}, and the certificate of {} {when}", one.file, one.subject)
    });
    let files = status.files_refused.iter().map(move |refused| {
        format!(
            "node {id} cannot use files for {} that changed, and uses the old ones: {}",
            refused.r#use, refused.why
        )
    });
    certificates.chain(files)
}

fn begins(one: &CertificateStatus) -> i64 {
    one.begins_unix_s.unwrap_or(i64::MIN)
}
