//! TLS to the nodes.

use std::fmt::{self, Debug, Formatter};
use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, iter};

use hyper::header::HeaderValue;
use ringfence_tls::{Files, InUse, Look, Nearness, Reload, cut, now, refuses_certificate, when};
use ringfence_wire::FieldError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::Error;

/// How often the files are looked at, if connections are opened all the time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a look is waited for before certificates are warned of that may have been replaced.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// The target of log lines about the files of TLS: that they end soon, or cannot be used.
pub const TLS_LOG: &str = module_path!();
/// How often a client warns of certificates of its own that end, in seconds.
const WARNS_EVERY: i64 = 86_400;

/// How to call the nodes over TLS. Files are in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities that sign the nodes' certificates; `None`: those that this system trusts.
    pub authority: Option<PathBuf>,
    /// The client's certificate, if the nodes require one.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate.
    pub key: Option<PathBuf>,
    /// The client's credential, if the nodes have access rules.
    pub credential: Option<Credential>,
}

/// Why one side does not trust the other: the same from one attempt to the next, unlike the words for it, which tell how long ago
/// something was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No authority that this client trusts has signed the node's certificate.
    Authority { all_live: bool },
    /// The node's certificate is for another host.
    Host,
    /// The node's certificate has ended.
    Ended,
    /// The node's certificate is refused for something else.
    OfNode(Discriminant<CertificateError>),
    /// The node requires a certificate.
    NoneOfOwn,
    /// The node refuses this client's certificate.
    Own(AlertDescription),
}

/// A secret that shows the nodes which principal a client is. It is sent to nodes whose certificates are verified, and never
/// over a plain connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(HeaderValue);

impl Credential {
    /// The credential `secret`, as `ringfence access credential` prints it.
    ///
    /// # Errors
    /// It is empty, or has characters that no credential has.
    pub fn new(secret: &str) -> Result<Self, Error> {
        let is_valid = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
        let header = is_valid.then(|| HeaderValue::try_from(format!("Bearer {secret}")).ok()).flatten();
        let why = "must be visible ASCII characters without spaces";
        let mut header = header.ok_or_else(|| Error::invalid("credential", why))?;
        header.set_sensitive(true);
        Ok(Self(header))
    }

    /// The header `Authorization`.
    pub(crate) fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl Debug for Credential {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// The configuration of connections with TLS.
pub(crate) struct Encryption {
    files: Arc<ringfence_tls::Client>,
    pub(super) credential: Option<Credential>,
    looked_at: Mutex<Instant>,
    /// When [`Self::warn_of_ends`] was last due, in seconds since the Unix epoch.
    warned_at: AtomicI64,
}

impl Encryption {
    /// Loads the files. Blocks while it reads them.
    pub(super) fn load(tls: &Tls) -> Result<Self, FieldError> {
        let files = match (&tls.certificate, &tls.key) {
            (Some(certificate), Some(key)) => ringfence_tls::Client::load(Files {
                certificate: certificate.clone(),
                key: key.clone(),
                authority: tls.authority.clone(),
            }),
            (None, None) => ringfence_tls::Client::with_authority(tls.authority.clone()),
            (Some(_), None) => {
                return Err(FieldError::new("tls.key", "is missing: the certificate has a key"));
            }
            (None, Some(_)) => return Err(FieldError::new("tls.certificate", "is missing: there is a key")),
        };
        let files = files.map_err(|error| FieldError::new("tls", error.to_string()))?;
        Ok(Self {
            files: Arc::new(files),
            credential: tls.credential.clone(),
            looked_at: Mutex::new(Instant::now()),
            warned_at: AtomicI64::new(i64::MIN),
        })
    }

    /// Shakes hands with the server `host`, and verifies that it is that host.
    pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &str,
    ) -> io::Result<TlsStream<S>> {
        self.look().await;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.files.current()).connect(name, stream).await
    }

    /// Warns once a day, beside the call, of certificates of this side that end within 30 days, or have ended. A connection may last for
    /// longer.
    pub(super) fn warn_of_ends(self: &Arc<Self>) {
        let (now, last) = (now(), self.warned_at.load(Ordering::Relaxed));
        let is_due = last > now || now.saturating_sub(last) >= WARNS_EVERY;
        if is_due && self.warned_at.swap(now, Ordering::Relaxed) == last {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                // They may have been replaced since the last connection. A disk may hang.
                let _ = timeout(LOOK_TIMEOUT, this.look()).await;
                this.warn_of(now);
            });
        }
    }

    fn warn_of(&self, now: i64) {
        let needed = self.files.in_use().into_iter().filter(|one| one.is_needed);
        for InUse { file, subject, is_authority, begins, ends, .. } in needed {
            let whose = if is_authority { "the last authority that it trusts" } else { "its certificate" };
            if Nearness::of(begins, ends, now) != Nearness::Far {
                let (file, when) = (file.display(), when(begins, ends, now));
                tracing::warn!(%file, subject, "this client goes on only with other files: {whose} {when}");
            }
        }
    }

    /// ` (FILE, ended on …)`: this client's certificate, and when it ends.
    fn own(&self) -> Option<(bool, String)> {
        let (own, now) = (self.files.in_use().into_iter().find(|own| !own.is_authority)?, now());
        Some((own.is_live(now), format!(" ({}, {})", own.file.display(), own.when(now))))
    }

    /// What to add to how a connection has ended: that this client's certificate had ended, or not begun. Of that the other side may
    /// say nothing, or what it says may be lost with the connection.
    pub(super) fn own_end(&self) -> String {
        let own = self.own().filter(|(is_live, _)| !is_live);
        own.map_or_else(String::new, |(_, own)| format!(": this client's certificate is not valid{own}"))
    }

    /// Loads files that have changed. If they cannot be used, the old ones stay in use.
    async fn look(&self) {
        let is_due = {
            let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = looked_at.elapsed() >= LOOK_INTERVAL;
            if is_due {
                *looked_at = Instant::now();
            }
            is_due
        };
        if is_due {
            let files = Arc::clone(&self.files);
            let looked = ringfence_aside::run("tls-files", move || {
                let before = files.refusal();
                if let Look::Refused(error) = files.look(true)
                    && before.as_ref() != Some(&error)
                {
                    tracing::warn!(%error, "TLS files that changed cannot be used: the old ones stay in use");
                }
            });
            if let Err(error) = looked.await {
                tracing::debug!(%error, "cannot look at the TLS files: the old ones stay in use");
            }
        }
    }
}

impl Encryption {
    /// Why another handshake with the same files fails as well, if it does: one side refuses the certificate of the other.
    pub(super) fn refused(&self, error: &(dyn std::error::Error + 'static)) -> Option<(Cause, String)> {
        let Some(TlsError::InvalidCertificate(why)) = of_tls(error) else {
            return self.refused_by_server(error);
        };
        Some(match why {
            // The latter if another authority has the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                let now = now();
                let not_live =
                    self.files.in_use().into_iter().find(|one| one.is_authority && !one.is_live(now));
                let all_live = not_live.is_none();
                let not_live = not_live
                    .map(|one| format!(" ({}: {} {})", one.file.display(), one.subject, one.when(now)));
                let why = format!(
                    "none of the authorities that this client trusts has signed the node's certificate{}. \
                     --authority, RINGFENCE_AUTHORITY or `Tls::authority` names the file of the right one",
                    not_live.unwrap_or_default()
                );
                (Cause::Authority { all_live }, why)
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                let why = cut(why.to_string());
                (Cause::Host, format!("the node's certificate is not for the host of this URL: {why}"))
            }
            CertificateError::ExpiredContext { not_after, .. } => {
                let ends = i64::try_from(not_after.as_secs()).unwrap_or(i64::MAX);
                (Cause::Ended, format!("the node's certificate {}", when(i64::MIN, ends, now())))
            }
            why => {
                let said = cut(why.to_string());
                (Cause::OfNode(discriminant(why)), format!("the node's certificate is refused: {said}"))
            }
        })
    }

    /// Why the server refuses this client, if it refuses its certificate, or wants one.
    pub(super) fn refused_by_server(
        &self,
        error: &(dyn std::error::Error + 'static),
    ) -> Option<(Cause, String)> {
        let Some(TlsError::AlertReceived(alert)) = of_tls(error) else { return None };
        match alert {
            AlertDescription::NoCertificate | AlertDescription::CertificateRequired => {
                let why = "the node requires a certificate: --certificate, RINGFENCE_CERTIFICATE or `Tls::certificate` names its file";
                Some((Cause::NoneOfOwn, why.to_owned()))
            }
            alert if refuses_certificate(*alert) => {
                let own = self.own().map_or_else(String::new, |(_, own)| own);
                let why = format!("the node refuses this client's certificate{own}: {alert:?}");
                Some((Cause::Own(*alert), why))
            }
            _ => None,
        }
    }
}

impl Debug for Encryption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").finish_non_exhaustive()
    }
}

/// What rustls says in `error`, or in what caused it.
fn of_tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a TlsError> {
    iter::successors(Some(error), |error| error.source()).find_map(|error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|inner| inner.downcast_ref()).or(error.downcast_ref())
    })
}
