//! Nodes among themselves.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use crate::certificates::{Identity, authorities, expires};
use crate::chain::{self, Bounded, Noting};
use crate::files::Content;
use crate::in_use::of_own;
use crate::trusted::Trusted;
use crate::watched::{Reload, Watched, no_worse};
use crate::{Error, InUse, Refused, Unrelated, provider};

/// What nodes speak over TLS, for ALPN.
const PROTOCOL: &[u8] = b"ringfence-peer";

/// The configurations of a node that calls others and is called by them. Both sides have a certificate of one authority.
///
/// The handshake verifies only that: who the other side is follows from the [names](crate::names) in its certificate, which
/// the caller of this crate compares with the node that it expects.
pub type Peer = Watched<Loaded>;

/// What a [`Peer`] makes of its files.
pub struct Loaded {
    resolver: Arc<SingleCertAndKey>,
    nodes: Bounded,
    trusted: Arc<Trusted>,
    met: Met,
}

/// When the certificates end that nodes have shown, whichever files were in use.
#[derive(Clone, Default)]
struct Met(Arc<Mutex<BTreeMap<u64, i64>>>);

impl Peer {
    /// Loads the files. The authority is the nodes', in `unrelated`. `is_own` tells whether a certificate is this node's: others
    /// would refuse it with any other.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load(
        certificate: PathBuf,
        key: PathBuf,
        authority: PathBuf,
        unrelated: &Unrelated,
        is_own: impl Fn(&CertificateDer<'_>) -> bool + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (unrelated, met) = (unrelated.clone(), Met::default());
        let files = vec![certificate, key, authority];
        Self::new(files, move |contents, old| load(contents, &unrelated, &is_own, &met, old))
    }

    /// The configuration for one connection from a node. If it is refused, `refused` knows why.
    pub fn server(&self, refused: &Refused) -> Arc<ServerConfig> {
        Arc::new(self.loaded().server(refused))
    }

    /// The configuration for one connection to a node. If it is refused, `refused` knows why.
    pub fn client(&self, refused: &Refused) -> Arc<ClientConfig> {
        Arc::new(self.loaded().client(refused))
    }

    /// Whether a node with this chain, its own certificate first, would be let in now.
    ///
    /// # Errors
    /// Why not.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let refused = Refused::default();
        let (certificate, others) = chain.split_first().ok_or("there is no certificate")?;
        let verified = self.loaded().nodes(&refused).verify_client_cert(certificate, others, UnixTime::now());
        verified.map(drop).map_err(|error| refused.why().map_or_else(|| error.to_string(), str::to_owned))
    }

    /// `error` of a connection, in words that tell whose certificate was refused, and why.
    pub fn explain(&self, refused: &Refused, error: io::Error) -> io::Error {
        refused.explain(error, &self.in_use())
    }

    /// Notes that the node `id` has shown this chain.
    pub fn meet(&self, id: u64, chain: &[CertificateDer<'_>]) {
        let Some(ends) = expires(chain) else { return };
        self.loaded().met.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, ends);
    }

    /// When the certificate ends that the node `id` has shown last, in seconds since the Unix epoch. `None` if it has shown
    /// none.
    pub fn met(&self, id: u64) -> Option<i64> {
        self.loaded().met.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }
}

fn load(
    contents: &[Content],
    unrelated: &Unrelated,
    is_own: &dyn Fn(&CertificateDer<'_>) -> bool,
    met: &Met,
    old: &[InUse],
) -> Result<(Loaded, Vec<InUse>), Error> {
    let [certificate, key, authority] = contents else { unreachable!("`Peer::load` names three files") };
    let identity = Identity::parse(certificate, key)?;
    if !identity.certified.cert.first().is_some_and(is_own) {
        return Err(Error::file(&certificate.file, "is the certificate of another node"));
    }
    chain::check_own(&identity)?;
    let Identity { certified, file } = identity;
    let trusted = Arc::new(Trusted::new(authority, authorities(authority)?)?);
    let mut in_use = of_own(&file, &certified.cert, trusted.refuses_after(&certified.cert));
    in_use.extend(trusted.in_use.clone());
    let nodes = Bounded::new(&trusted, false)?;
    let resolver = Arc::new(SingleCertAndKey::from(certified));
    no_worse(&in_use, old)?;
    // Last: only what comes into use counts.
    unrelated.take("nodes", &trusted.file, &trusted.all)?;
    Ok((Loaded { resolver, nodes, trusted, met: met.clone() }, in_use))
}

const OF_TLS: &str = "ring has what TLS 1.3 needs";

/// Each connection has configurations of its own, whose verifiers note why they refuse it. That takes far less time than the
/// handshake.
impl Loaded {
    fn noting(&self, refused: &Refused) -> Noting {
        Noting { refused: refused.clone(), trusted: Arc::clone(&self.trusted) }
    }

    fn nodes(&self, refused: &Refused) -> Arc<dyn ClientCertVerifier> {
        Arc::new(self.nodes.noting(self.noting(refused)))
    }

    fn server(&self, refused: &Refused) -> ServerConfig {
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect(OF_TLS)
            .with_client_cert_verifier(self.nodes(refused))
            .with_cert_resolver(Arc::clone(&self.resolver) as _);
        // A resumed session would bring a certificate that nobody verified again.
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server
    }

    fn client(&self, refused: &Refused) -> ClientConfig {
        let (provider, noting) = (provider(), self.noting(refused));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect(OF_TLS)
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyNode { provider, noting }))
            .with_client_cert_resolver(Arc::clone(&self.resolver) as _);
        client.resumption = Resumption::disabled();
        // The caller knows the other side by its id, which is no name of a host.
        client.enable_sni = false;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client
    }
}

/// Accepts each server whose certificate the authority signed, whatever its name.
#[derive(Debug)]
struct AnyNode {
    provider: Arc<CryptoProvider>,
    noting: Noting,
}

impl AnyNode {
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        chain::check(certificate, intermediates)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(certificate)?,
            &self.noting.trusted.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for AnyNode {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |at| self.verify(certificate, intermediates, at);
        self.noting.note(verify, certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::SupportedVersionsExtensionRequired.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}
