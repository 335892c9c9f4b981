//! The side that calls over HTTP.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use crate::certificates::{Identity, certificates};
use crate::chain;
use crate::files::Content;
use crate::in_use::{is_live, of_own};
use crate::trusted::Trusted;
use crate::watched::{Watched, no_worse};
use crate::{Error, Files, InUse, now, provider};

/// The configuration of a client of HTTP/1.1, which verifies the server's certificate and host.
pub type Client = Watched<ClientConfig>;

impl Client {
    /// A client with a certificate. Without an authority it trusts those of the system.
    ///
    /// # Errors
    /// A file cannot be used, or the system has no authorities.
    pub fn load(files: Files) -> Result<Self, Error> {
        let own = vec![files.certificate, files.key];
        Self::of(files.authority, own)
    }

    /// A client without a certificate. Without an authority it trusts those of the system.
    ///
    /// # Errors
    /// The file cannot be used, or the system has no authorities.
    pub fn with_authority(authority: Option<PathBuf>) -> Result<Self, Error> {
        Self::of(authority, Vec::new())
    }

    fn of(authority: Option<PathBuf>, own: Vec<PathBuf>) -> Result<Self, Error> {
        let has_authority = authority.is_some();
        let files = authority.into_iter().chain(own).collect();
        Self::new(files, move |contents, old| load(contents, has_authority, old))
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<ClientConfig> {
        self.loaded()
    }
}

fn load(
    contents: &[Content],
    has_authority: bool,
    old: &[InUse],
) -> Result<(ClientConfig, Vec<InUse>), Error> {
    let (authority, own) = contents.split_at(usize::from(has_authority));
    let mut in_use = Vec::new();
    let roots = match authority {
        // A server may sign its own certificate, so these need not be certificates of authorities.
        [authority] => {
            let trusted = Trusted::new(authority, certificates(authority)?)?;
            in_use = trusted.in_use;
            trusted.roots
        }
        _ => Arc::new(system_roots()?),
    };
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has what all versions of TLS need")
        .with_root_certificates(roots);
    let mut config = match own {
        [certificate, key] => {
            let identity = Identity::parse(certificate, key)?;
            chain::check_own(&identity)?;
            in_use.extend(of_own(&identity.file, &identity.certified.cert, None));
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified)))
        }
        _ => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    no_worse(&in_use, old)?;
    Ok((config, in_use))
}

fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let (all, now) = (rustls_native_certs::load_native_certs().certs, now());
    let live = all.into_iter().filter(|authority| is_live(authority, now));
    let (added, _) = roots.add_parsable_certificates(live);
    if added == 0 { Err(Error::NoSystemAuthorities) } else { Ok(roots) }
}
