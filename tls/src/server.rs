//! The side that is called over HTTP.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;

use crate::certificates::{Identity, authorities};
use crate::chain::Bounded;
use crate::files::Content;
use crate::in_use::of_own;
use crate::trusted::Trusted;
use crate::watched::{Watched, no_worse};
use crate::{Error, Files, InUse, Unrelated, provider};

/// Whether clients without a certificate are let in where an authority signs those of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// Clients must have a certificate.
    Required,
    /// Clients may connect without a certificate, and send a credential instead.
    Optional,
}

/// The configuration of a server of HTTP/1.1. With an authority, certificates of clients must be signed by it.
pub type Server = Watched<Loaded>;

/// What a [`Server`] makes of its files.
pub struct Loaded {
    config: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Server {
    /// Loads the files. Their authority is the clients', in `unrelated`.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load(files: Files, of_clients: Certificates, unrelated: &Unrelated) -> Result<Self, Error> {
        let unrelated = unrelated.clone();
        let files = [files.certificate, files.key].into_iter().chain(files.authority).collect();
        Self::new(files, move |contents, old| load(contents, of_clients, &unrelated, old))
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded().config)
    }

    /// Whether a client with this chain, its own certificate first, would be let in now.
    pub fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let verify = |clients: &Arc<dyn ClientCertVerifier>| {
            let Some((certificate, others)) = chain.split_first() else { return false };
            clients.verify_client_cert(certificate, others, UnixTime::now()).is_ok()
        };
        self.loaded().clients.as_ref().is_none_or(verify)
    }
}

fn load(
    contents: &[Content],
    of_clients: Certificates,
    unrelated: &Unrelated,
    old: &[InUse],
) -> Result<(Loaded, Vec<InUse>), Error> {
    let [certificate, key, authority @ ..] = contents else { unreachable!("`Server::load` names two files") };
    let Identity { certified, file } = Identity::parse(certificate, key)?;
    let mut in_use = of_own(&file, &certified.cert, None);
    let trusted = match authority {
        [authority] => Some(Trusted::new(authority, authorities(authority)?)?),
        _ => None,
    };
    in_use.extend(trusted.iter().flat_map(|trusted| trusted.in_use.clone()));
    let mut clients: Option<Arc<dyn ClientCertVerifier>> = None;
    if let Some(trusted) = &trusted {
        clients = Some(Arc::new(Bounded::new(trusted, of_clients == Certificates::Optional)?));
    }
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has what all versions of TLS need");
    let mut config = match &clients {
        Some(verifier) => config.with_client_cert_verifier(Arc::clone(verifier)),
        None => config.with_no_client_auth(),
    }
    .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if clients.is_some() {
        // A resumed session would bring a certificate that nobody verified again.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    no_worse(&in_use, old)?;
    // Last: only what comes into use counts.
    if let Some(trusted) = &trusted {
        unrelated.take("clients", &trusted.file, &trusted.all)?;
    }
    Ok((Loaded { config: Arc::new(config), clients }, in_use))
}
