//! Nodes among themselves.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::certificates::{Identity, authorities, roots};
use crate::chain::{self, Bounded};
use crate::files::Content;
use crate::watched::{Look, Reload, Watched};
use crate::{Error, Unrelated, provider};

/// The configurations of a node that calls others and is called by them. Both sides have a certificate of one authority.
///
/// The handshake verifies only that: who the other side is follows from the [names](crate::names) in its certificate, which
/// the caller of this crate compares with the node that it expects.
pub struct Peer(Watched<Loaded>);

struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    nodes: Arc<dyn ClientCertVerifier>,
    expires: i64,
}

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
        let unrelated = unrelated.clone();
        let files = vec![certificate, key, authority];
        Watched::load(files, move |contents| load(contents, &unrelated, &is_own)).map(Self)
    }

    /// The configuration for the next connection from a node.
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.current().server)
    }

    /// The configuration for the next connection to a node.
    pub fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.current().client)
    }

    /// Rises whenever new files are in use: then ask again whether they [trust](Self::trusts) those who are connected.
    pub fn version(&self) -> u64 {
        self.0.version()
    }

    /// Whether a node with this chain, its own certificate first, would be let in now.
    pub fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((certificate, others)) = chain.split_first() else { return false };
        self.0.current().nodes.verify_client_cert(certificate, others, UnixTime::now()).is_ok()
    }
}

impl Reload for Peer {
    fn look(&self, at_once: bool) -> Look {
        self.0.look(at_once)
    }

    fn refusal(&self) -> Option<Error> {
        self.0.refusal()
    }

    fn expires(&self) -> Option<i64> {
        Some(self.0.current().expires)
    }
}

fn load(
    contents: &[Content],
    unrelated: &Unrelated,
    is_own: &dyn Fn(&CertificateDer<'_>) -> bool,
) -> Result<Loaded, Error> {
    let [certificate, key, authority] = contents else { unreachable!("`Peer::load` names three files") };
    let identity = Identity::parse(certificate, key)?;
    if !identity.certified.cert.first().is_some_and(is_own) {
        return Err(Error::file(&certificate.file, "is the certificate of another node"));
    }
    chain::check_own(&certificate.file, &identity)?;
    let trusted = authorities(authority)?;
    let roots = Arc::new(roots(authority, &trusted)?);
    let nodes = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
        .build()
        .map_err(|error| Error::file(&authority.file, error.to_string()))?;
    let nodes: Arc<dyn ClientCertVerifier> = Arc::new(Bounded(nodes));
    let resolver = Arc::new(SingleCertAndKey::from(identity.certified));
    let of_tls = "ring has what TLS 1.3 needs";
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect(of_tls)
        .with_client_cert_verifier(Arc::clone(&nodes))
        .with_cert_resolver(Arc::clone(&resolver) as _);
    // A resumed session would bring a certificate that nobody verified again.
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect(of_tls)
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyNode { roots, provider: provider() }))
        .with_client_cert_resolver(resolver);
    client.resumption = Resumption::disabled();
    // The caller knows the other side by its id, which is no name of a host.
    client.enable_sni = false;
    let protocols = vec![b"ringfence-peer".to_vec()];
    (server.alpn_protocols, client.alpn_protocols) = (protocols.clone(), protocols);
    unrelated.take("nodes", &trusted).map_err(|other| {
        Error::file(&authority.file, format!("has something in common with the authority of {other}"))
    })?;
    Ok(Loaded { server: Arc::new(server), client: Arc::new(client), nodes, expires: identity.expires })
}

/// Accepts each server whose certificate the authority signed, whatever its name.
#[derive(Debug)]
struct AnyNode {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
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
        chain::check(certificate, intermediates)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(certificate)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
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
