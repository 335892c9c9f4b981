//! When the certificates of a node end. They do so by themselves, and then the other side refuses them: so the log says it from 30
//! days before, once a day, metrics always, and `GET /v1/cluster` to whoever looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use ringfence_tls::{InUse, Nearness, Peer, Reload, now};
use ringfence_wire::{CertificateStatus, ClusterStatus, FilesRefused};

use crate::measure::CERTIFICATE_EXPIRES_SECONDS;

/// What files are for, in logs, metrics and answers.
pub(crate) const CLIENTS: &str = "clients";
pub(crate) const PEERS: &str = "peers";
pub(crate) const REDIS: &str = "redis";

/// How often the same is said again.
const AGAIN: Duration = Duration::from_secs(86_400);

/// Files, each with its use.
pub(crate) type Files = Vec<(&'static str, Arc<dyn Reload>)>;

/// What was said of certificates, and when.
#[derive(Default)]
pub(crate) struct Ends(BTreeMap<(&'static str, InUse), (Nearness, Instant)>);

impl Ends {
    /// Logs which certificates of `files` end soon or have ended, unless that was logged within a day. Sets the metrics.
    pub(crate) fn tell(&mut self, files: &Files) {
        let now = now();
        let mut told = BTreeMap::new();
        for (r#use, one) in all(files) {
            let nearness = one.nearness(now);
            let key = (r#use, one);
            let last = self.0.remove(&key).filter(|(last, at)| *last == nearness && at.elapsed() < AGAIN);
            told.entry(key).or_insert_with_key(|(_, one)| {
                last.unwrap_or_else(|| {
                    say(r#use, one, nearness, now);
                    (nearness, Instant::now())
                })
            });
        }
        self.0 = told;
        for (r#use, one) in self.0.keys().filter(|(_, one)| one.is_needed) {
            CERTIFICATE_EXPIRES_SECONDS.of(label(r#use, one)).set(one.ends as f64);
        }
    }
}

fn all(files: &Files) -> impl Iterator<Item = (&'static str, InUse)> {
    files.iter().flat_map(|(r#use, files)| files.in_use().into_iter().map(|one| (*r#use, one)))
}

fn label(r#use: &'static str, one: &InUse) -> &'static str {
    match (r#use, one.is_authority) {
        (CLIENTS, true) => "client-authority",
        (PEERS, true) => "peer-authority",
        (REDIS, true) => "redis-authority",
        (own, _) => own,
    }
}

fn say(r#use: &str, one: &InUse, nearness: Nearness, now: i64) {
    let (file, subject, when) = (one.file.display(), &one.subject, one.when(now));
    match (nearness, one.is_needed, one.is_authority) {
        (Nearness::Far, ..) => {}
        (Nearness::Soon, true, false) => {
            tracing::warn!(r#use, %file, subject, "a certificate of this node {when}: replace it before");
        }
        (Nearness::Soon, true, true) => tracing::warn!(
            r#use, %file, subject, "an authority {when}: replace it before, and what it has signed"
        ),
        (Nearness::NotYet, true, false) => {
            tracing::error!(r#use, %file, subject, "a certificate of this node {when}: others refuse it before");
        }
        (Nearness::Ended, true, false) => {
            tracing::error!(r#use, %file, subject, "a certificate of this node {when}: others refuse it. Replace it");
        }
        (Nearness::NotYet, true, true) => tracing::error!(
            r#use, %file, subject, "an authority {when}, and no other of its file is valid: what it has signed is refused before"
        ),
        (Nearness::Ended, true, true) => tracing::error!(
            r#use, %file, subject, "an authority {when}, and no other of its file is valid: what it has signed is refused. Replace it"
        ),
        (_, false, false) => tracing::warn!(
            r#use, %file, subject,
            "a certificate behind that of this node {when}. Take it out of the file if nobody needs it, or replace both"
        ),
        (_, false, true) => tracing::warn!(
            r#use, %file, subject, "one of several authorities {when}. Take it out of the file, or replace it"
        ),
    }
}

/// An error if a certificate is not valid now, or no authority of a file is.
pub(crate) fn check(files: &Files) -> anyhow::Result<()> {
    let now = now();
    match all(files).find(|(_, one)| one.is_needed && !one.is_live(now)) {
        Some((_, one)) => {
            bail!("{}: the certificate of {} {}", one.file.display(), one.subject, one.when(now))
        }
        None => Ok(()),
    }
}

/// Adds to what a node says of the cluster its own certificates, which files it cannot use, and when those end that `peer` was shown.
pub(crate) fn show(files: &Files, peer: Option<&Peer>, status: &mut ClusterStatus) {
    let shown = |(r#use, one): (&'static str, InUse)| CertificateStatus {
        r#use: r#use.to_owned(),
        file: one.file.display().to_string(),
        subject: one.subject,
        authority: one.is_authority,
        needed: one.is_needed,
        begins_unix_s: Some(one.begins),
        ends_unix_s: one.ends,
    };
    status.certificates = all(files).map(shown).collect();
    let refused = |(r#use, files): &(&'static str, Arc<dyn Reload>)| {
        Some(FilesRefused { r#use: (*r#use).to_owned(), why: files.refusal()?.to_string() })
    };
    status.files_refused = files.iter().filter_map(refused).collect();
    for (id, member) in &mut status.members {
        member.certificate_ends_unix_s = peer.and_then(|peer| peer.met(*id));
    }
}
