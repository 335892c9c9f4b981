//! Authorities and the certificates that they sign.

use std::time::Duration;

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
        Self::of(params(name))
    }

    /// One that begins and ends at these times, in seconds since the Unix epoch.
    pub(crate) fn lasting(name: &str, begins: i64, ends: i64) -> Self {
        let mut params = params(name);
        last(&mut params, begins, ends);
        Self::of(params)
    }

    fn of(params: CertificateParams) -> Self {
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    pub(crate) fn intermediate(&self, name: &str) -> Self {
        self.sign_another(params(name))
    }

    /// An intermediate one that has ended.
    pub(crate) fn expired_intermediate(&self, name: &str) -> Self {
        let mut params = params(name);
        last(&mut params, EXPIRED - 86_400, EXPIRED);
        self.sign_another(params)
    }

    fn sign_another(&self, params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        Self { issuer: CertifiedIssuer::signed_by(params, key, &self.issuer).unwrap() }
    }

    /// Another authority with the key of this one.
    pub(crate) fn renamed(&self, name: &str) -> Self {
        let key = KeyPair::from_pem(&self.issuer.key().serialize_pem()).unwrap();
        Self { issuer: CertifiedIssuer::self_signed(params(name), key).unwrap() }
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
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
        self.issue_lasting(names, EXPIRED - 86_400, EXPIRED)
    }

    /// A certificate that begins and ends at these times.
    pub(crate) fn issue_lasting(&self, names: &[&str], begins: i64, ends: i64) -> Issued {
        let mut params = leaf(names);
        last(&mut params, begins, ends);
        self.sign(params)
    }

    /// A certificate for a purpose of which there are `others` beside.
    pub(crate) fn issue_for_others(&self, others: u64) -> Issued {
        let mut params = leaf(&[]);
        params.extended_key_usages =
            (0..others).map(|other| ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 4, 1, other])).collect();
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

fn last(params: &mut CertificateParams, begins: i64, ends: i64) {
    let [begins, ends] = [begins, ends].map(|at| Duration::from_secs(at.try_into().unwrap()));
    let epoch = date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + begins, epoch + ends);
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
