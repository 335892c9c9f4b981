//! The names in a certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// A DNS name in lower case, which may begin with `*.`.
    Dns(String),
    /// A URI, as it stands in the certificate.
    Uri(String),
    /// An IP address.
    Ip(IpAddr),
}

/// The subject alternative names of `certificate`. The subject itself names nobody, and names of other kinds are left out.
/// None if the certificate is not valid X.509.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<Name> {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return Vec::new() };
    let Ok(Some(alternative)) = parsed.subject_alternative_name() else { return Vec::new() };
    alternative.value.general_names.iter().filter_map(name).collect()
}

fn name(name: &GeneralName<'_>) -> Option<Name> {
    match name {
        GeneralName::DNSName(name) => Some(Name::Dns(name.to_ascii_lowercase())),
        GeneralName::URI(uri) => Some(Name::Uri((*uri).to_owned())),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|bytes| Ipv4Addr::from(bytes).into());
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(|bytes| Ipv6Addr::from(bytes).into()))
                .ok()
                .map(Name::Ip)
        }
        _ => None,
    }
}

/// Whether `certificate` is for the host `host`, a DNS name or an IP address without a port.
pub fn covers(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let (Ok(parsed), Ok(host)) = (ParsedCertificate::try_from(certificate), ServerName::try_from(host))
    else {
        return false;
    };
    rustls::client::verify_server_name(&parsed, &host).is_ok()
}
