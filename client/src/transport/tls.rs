//! TLS to the nodes.

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::HeaderValue;
use ringfence_tls::{Files, Look, Reload};
use ringfence_wire::FieldError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, Error as TlsError};

use crate::Error;

/// How often the files are looked at, if connections are opened all the time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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

impl Debug for Encryption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").finish_non_exhaustive()
    }
}

/// Whether the server refused this client's certificate, or wanted one. It says so after the handshake, when a request may
/// have been sent, but has not read that.
pub(super) fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if let Some(TlsError::AlertReceived(alert)) = io.and_then(|io| io.get_ref()?.downcast_ref()) {
            return matches!(
                alert,
                AlertDescription::NoCertificate
                    | AlertDescription::BadCertificate
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::UnknownCA
                    | AlertDescription::AccessDenied
                    | AlertDescription::DecryptError
                    | AlertDescription::CertificateRequired
            );
        }
        next = error.source();
    }
    false
}
