//! Certificates for one test: an authority, and a server's certificate that it signed.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// The files, in PEM.
#[derive(Debug)]
pub(crate) struct Certificates {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// Makes them, for servers at `ip`, in `dir`.
    pub(crate) fn make(dir: &Path, ip: IpAddr) -> Result<Self, Error> {
        let at = |name: &str| dir.join(name);
        let (authority, authority_key) = (at("ca.pem"), at("ca.key"));
        let (certificate, key) = (at("server.pem"), at("server.key"));
        let new = || {
            let mut command = Command::new("openssl");
            command.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
            command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1"]);
            command
        };
        run(new()
            .args(["-subj", "/CN=ringfence test authority", "-keyout"])
            .arg(&authority_key)
            .arg("-out")
            .arg(&authority))?;
        run(new()
            .args(["-subj", "/CN=ringfence test server", "-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-addext")
            .arg(format!("subjectAltName=IP:{ip}"))
            .arg("-CA")
            .arg(&authority)
            .arg("-CAkey")
            .arg(&authority_key)
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate))?;
        // The authority signs nothing more.
        fs::remove_file(authority_key).map_err(Error::io("cannot remove the authority's key"))?;
        Ok(Self { authority, certificate, key })
    }

    pub(crate) fn authority(&self) -> &Path {
        &self.authority
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

fn run(command: &mut Command) -> Result<(), Error> {
    let output = command.output().map_err(Error::io("cannot run openssl"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::io("openssl made no certificate")(std::io::Error::other(said)))
}
