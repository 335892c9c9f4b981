//! Certificates for one test: an authority's, and one that it signed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::process::output;

/// The files, in PEM.
#[derive(Debug)]
pub struct Certificates {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// Creates them in `dir`. The names are written as openssl does: `IP:127.0.0.1,URI:ringfence:node:1`.
    pub fn new(dir: &Path, names: &str) -> Result<Self, Error> {
        let at = |name: &str| dir.join(name);
        let (authority, authority_key) = (at("ca.pem"), at("ca.key"));
        let (certificate, key) = (at("server.pem"), at("server.key"));
        let request = || {
            let mut command = Command::new("openssl");
            command.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
            command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1"]);
            command
        };
        let mut authority_request = request();
        authority_request.args(["-subj", "/CN=ringfence test authority"]);
        authority_request.args(["-addext", "basicConstraints=critical,CA:TRUE"]);
        // Python 3.13 trusts no authority that does not say so.
        authority_request.args(["-addext", "keyUsage=critical,keyCertSign,cRLSign"]);
        authority_request.arg("-keyout").arg(&authority_key).arg("-out").arg(&authority);
        let mut server_request = request();
        server_request.args([
            "-subj",
            "/CN=ringfence test server",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ]);
        server_request.arg("-addext").arg(format!("subjectAltName={names}"));
        server_request.arg("-CA").arg(&authority).arg("-CAkey").arg(&authority_key);
        server_request.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        for command in [&mut authority_request, &mut server_request] {
            output(command, "").map_err(Error::io("openssl failed"))?;
        }
        // The authority signs nothing more.
        fs::remove_file(authority_key).map_err(Error::io("cannot remove the authority's key"))?;
        Ok(Self { authority, certificate, key })
    }

    /// The authority's certificate.
    pub fn authority(&self) -> &Path {
        &self.authority
    }

    /// The certificate that it signed.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The key of that.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// The arguments of nodes that use them among themselves.
    pub fn peer_arguments(&self) -> [String; 3] {
        [("certificate", &self.certificate), ("key", &self.key), ("authority", &self.authority)]
            .map(|(name, file)| format!("--peer-{name}={}", file.display()))
    }

    /// Redis's configuration: TLS on `port`, and nothing else; clients need no certificate.
    pub(crate) fn redis_lines(&self, port: u16) -> [String; 6] {
        [
            "port 0".to_owned(),
            format!("tls-port {port}"),
            format!("tls-cert-file {}", self.certificate.display()),
            format!("tls-key-file {}", self.key.display()),
            format!("tls-ca-cert-file {}", self.authority.display()),
            "tls-auth-clients no".to_owned(),
        ]
    }
}
