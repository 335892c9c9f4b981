//! When the certificates of a node end. They do so by themselves, and then the other side refuses them: so the log says it from 30
//! days before, once a day, metrics always, and `GET /v1/cluster` to whoever looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use ringfence_tls::{InUse, Nearness, Peer, Reload, now, when};
use ringfence_wire::{CertificateStatus, ClusterStatus};

use crate::measure::CERTIFICATE_EXPIRES_SECONDS;

/// What files are for, in logs, metrics and answers.
pub(crate) const CLIENTS: &str = "clients";
pub(crate) const PEERS: &str = "peers";

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
            let nearness = Nearness::of(one.ends, now);
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
        let mut first: BTreeMap<&'static str, i64> = BTreeMap::new();
        for (r#use, one) in self.0.keys() {
            let ends = first.entry(label(r#use, one)).or_insert(one.ends);
            *ends = one.ends.min(*ends);
        }
        for (label, ends) in first {
            CERTIFICATE_EXPIRES_SECONDS.of(label).set(ends as f64);
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
        (own, _) => own,
    }
}

fn say(r#use: &str, one: &InUse, nearness: Nearness, now: i64) {
    let (file, subject, when) = (one.file.display(), &one.subject, when(one.ends, now));
    match (nearness, one.is_authority) {
        (Nearness::Far, _) => {}
        (Nearness::Soon, false) => {
            tracing::warn!(r#use, %file, subject, "a certificate of this node {when}: replace it before");
        }
        (Nearness::Soon, true) => tracing::warn!(
            r#use, %file, subject, "an authority {when}: replace it before, and what it has signed"
        ),
        (Nearness::Ended, false) => {
            tracing::error!(r#use, %file, subject, "a certificate of this node {when}: others refuse it. Replace it");
        }
        (Nearness::Ended, true) => tracing::error!(
            r#use, %file, subject, "an authority {when}: what it has signed is refused. Take it out of the file, or replace it"
        ),
    }
}

/// An error if a certificate has ended, or all authorities of a file have.
pub(crate) fn check(files: &Files) -> anyhow::Result<()> {
    let now = now();
    let all: Vec<_> = all(files).map(|(_, one)| one).collect();
    let is_live = |one: &InUse| Nearness::of(one.ends, now) != Nearness::Ended;
    for one in all.iter().filter(|one| !is_live(one)) {
        let has_another = one.is_authority
            && all.iter().any(|other| other.is_authority && other.file == one.file && is_live(other));
        if !has_another {
            bail!("{}: the certificate of {} {}", one.file.display(), one.subject, when(one.ends, now));
        }
    }
    Ok(())
}

/// Adds to what a node says of the cluster its own certificates, and when those end that `peer` was shown.
pub(crate) fn show(files: &Files, peer: Option<&Peer>, status: &mut ClusterStatus) {
    let shown = |(r#use, one): (&'static str, InUse)| CertificateStatus {
        r#use: r#use.to_owned(),
        file: one.file.display().to_string(),
        subject: one.subject,
        authority: one.is_authority,
        ends_unix_s: one.ends,
    };
    status.certificates = all(files).map(shown).collect();
    for (id, member) in &mut status.members {
        member.certificate_ends_unix_s = peer.and_then(|peer| peer.met(*id));
    }
}
