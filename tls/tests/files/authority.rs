//! Authorities and the certificates that they sign.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;

/// When certificates that have ended did so.
pub(crate) const EXPIRED: i64 = 1_577_836_800;

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let issuer = CertifiedIssuer::self_signed(params(name), KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    pub(crate) fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self { issuer: CertifiedIssuer::signed_by(params(name), key, &self.issuer).unwrap() }
    }

    /// Another authority with the key of this one.
    pub(crate) fn renamed(&self, name: &str) -> Self {
        let key = KeyPair::from_pem(&self.issuer.key().serialize_pem()).unwrap();
        Self { issuer: CertifiedIssuer::self_signed(params(name), key).unwrap() }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate with `names`: `dns:…`, `uri:…` or `ip:…`.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.sign(leaf(names))
    }

    /// A certificate that has ended.
    pub(crate) fn issue_expired(&self, names: &[&str]) -> Issued {
        let mut params = leaf(names);
        (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }
}

/// A certificate that no authority signed.
pub(crate) fn self_signed(host: &str) -> Issued {
    let key = KeyPair::generate().unwrap();
    let certificate = leaf(&[&format!("dns:{host}")]).self_signed(&key).unwrap();
    Issued { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn leaf(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "ringfence test");
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = names
        .iter()
        .map(|name| match name.split_once(':').unwrap() {
            ("dns", name) => SanType::DnsName(name.try_into().unwrap()),
            ("uri", name) => SanType::URI(name.try_into().unwrap()),
            (_, name) => SanType::IpAddress(name.parse().unwrap()),
        })
        .collect();
    params
}
