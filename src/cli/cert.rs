//! `ringfence cert`: makes the certificates of a cluster.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::slice;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use tempfile::NamedTempFile;

use crate::cli::output;

/// Clocks of other machines may be behind.
const CLOCKS_DIFFER: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const DAYS: u32 = 365;
/// The certificates of authorities.
const AUTHORITY_DAYS: u32 = 3_650;

/// The authority that clients trust, which also signs certificates of clients.
const AUTHORITY: &str = "authority";
/// The authority that nodes trust among themselves.
const NODE_AUTHORITY: &str = "node-authority";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make two authorities: one for clients and the nodes that they call, and one for nodes among themselves
    Authorities(Authorities),
    /// Make the two certificates of a node
    Node(Node),
    /// Make a certificate of a client
    Client(Client),
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Directory of the authorities and of what they sign
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Authorities {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Node {
    /// The node's id
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    id: u64,
    /// Hosts in the URLs of the node, as clients use them: names or IP addresses
    #[arg(long = "hosts", value_name = "LIST", value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    validity: Validity,
}

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// A name for the client: letters, digits and -._
    #[arg(long, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    validity: Validity,
}

#[derive(Debug, Args)]
struct Validity {
    /// Days until the certificate ends
    #[arg(long, value_name = "N", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    let made = match command {
        Command::Authorities(arguments) => authorities(&arguments.place)?,
        Command::Node(Node { id, hosts, place, validity }) => node(*id, hosts, place, validity.days)?,
        Command::Client(Client { name, place, validity }) => client(name, place, validity.days)?,
    };
    output::print(&made.iter().map(|path| format!("{}\n", path.display())).collect::<String>()).map(drop)
}

/// The certificates of a cluster that somebody tries out.
pub(crate) struct Trial(Place);

impl Trial {
    /// Makes those of nodes with the ids from 1, which clients reach at `host`.
    pub(crate) fn new(dir: PathBuf, nodes: u16, host: &str) -> anyhow::Result<Self> {
        let place = Place { dir, force: true };
        authorities(&place)?;
        for id in 1..=nodes {
            node(id.into(), &[host.to_owned()], &place, DAYS)?;
        }
        Ok(Self(place))
    }

    /// The authority that clients trust.
    pub(crate) fn authority(&self) -> PathBuf {
        self.0.path(AUTHORITY, "pem")
    }

    /// The arguments of a node's `ringfence serve`.
    pub(crate) fn arguments(&self, id: u16) -> Vec<OsString> {
        let (for_clients, for_nodes) = node_files(id.into());
        let files = [
            ("--tls-certificate", self.0.path(&for_clients, "pem")),
            ("--tls-key", self.0.path(&for_clients, "key")),
            ("--peer-certificate", self.0.path(&for_nodes, "pem")),
            ("--peer-key", self.0.path(&for_nodes, "key")),
            ("--peer-authority", self.0.path(NODE_AUTHORITY, "pem")),
        ];
        files.into_iter().flat_map(|(option, file)| [option.into(), file.into()]).collect()
    }
}

fn authorities(place: &Place) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(&place.dir).with_context(|| format!("cannot create {}", place.dir.display()))?;
    let names = [(AUTHORITY, "ringfence"), (NODE_AUTHORITY, "ringfence nodes")];
    place.check(&names.map(|(file, _)| file))?;
    let mut made = Vec::new();
    for (file, name) in names {
        let mut parameters = parameters(name, AUTHORITY_DAYS);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = parameters.self_signed(&key)?;
        made.extend(place.write(file, &certificate.pem(), &key)?);
    }
    Ok(made)
}

fn node(id: u64, hosts: &[String], place: &Place, days: u32) -> anyhow::Result<Vec<PathBuf>> {
    let names = hosts.iter().map(|host| host_name(host)).collect::<anyhow::Result<_>>()?;
    let (for_clients, for_nodes) = node_files(id);
    place.check(&[&for_clients, &for_nodes])?;
    let name = format!("ringfence node {id}");
    let uri = SanType::URI(format!("ringfence:node:{id}").try_into()?);
    let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
    let mut made =
        place.issue(AUTHORITY, &for_clients, leaf(&name, days, names, slice::from_ref(&server)))?;
    made.extend(place.issue(NODE_AUTHORITY, &for_nodes, leaf(&name, days, vec![uri], &[server, client]))?);
    Ok(made)
}

/// The names of a node's files: for clients, and for other nodes.
fn node_files(id: u64) -> (String, String) {
    (format!("node-{id}"), format!("node-{id}-peer"))
}

fn client(name: &str, place: &Place, days: u32) -> anyhow::Result<Vec<PathBuf>> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    ensure!(
        (1..=64).contains(&name.len()) && name.chars().all(is_valid),
        "--name: `{name}` must be 1 to 64 of the characters a-z, A-Z, 0-9 and -._"
    );
    let file = format!("client-{name}");
    place.check(&[&file])?;
    let uri = SanType::URI(format!("ringfence:client:{name}").try_into()?);
    let usage = [ExtendedKeyUsagePurpose::ClientAuth];
    place.issue(AUTHORITY, &file, leaf(&format!("ringfence client {name}"), days, vec![uri], &usage))
}

/// A name or an address, without a port.
fn host_name(host: &str) -> anyhow::Result<SanType> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let is_part = |part: &str| {
        !part.is_empty() && part.len() < 64 && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    ensure!(
        host.len() < 254 && host.split('.').all(is_part),
        "--hosts: `{host}` is neither a host name nor an IP address"
    );
    Ok(SanType::DnsName(host.try_into()?))
}

fn parameters(name: &str, days: u32) -> CertificateParams {
    let now = SystemTime::now();
    let mut parameters = CertificateParams::default();
    parameters.not_before = (now - CLOCKS_DIFFER).into();
    parameters.not_after = (now + DAY * days).into();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

fn leaf(name: &str, days: u32, names: Vec<SanType>, usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut parameters = parameters(name, days);
    parameters.subject_alt_names = names;
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = usages.to_vec();
    parameters.use_authority_key_identifier_extension = true;
    parameters
}

impl Place {
    fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.dir.join(format!("{name}.{extension}"))
    }

    /// Fails if a file exists already: before anything is made, so that not half of it is.
    fn check(&self, names: &[&str]) -> anyhow::Result<()> {
        let mut files = names.iter().flat_map(|name| [self.path(name, "pem"), self.path(name, "key")]);
        if let Some(file) = files.find(|file| !self.force && file.exists()) {
            bail!("{} exists: --force replaces it", file.display());
        }
        Ok(())
    }

    fn issue(
        &self,
        authority: &str,
        name: &str,
        parameters: CertificateParams,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let read = |extension| {
            let path = self.path(authority, extension);
            fs::read_to_string(&path).with_context(|| {
                format!("cannot read {}: `ringfence cert authorities` makes it", path.display())
            })
        };
        // Neither error quotes the key.
        let key = KeyPair::from_pem(&read("key")?)
            .with_context(|| format!("{} is not valid", self.path(authority, "key").display()))?;
        let issuer = Issuer::from_ca_cert_pem(&read("pem")?, key)
            .with_context(|| format!("{} is not valid", self.path(authority, "pem").display()))?;
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &issuer)?;
        self.write(name, &certificate.pem(), &key)
    }

    /// Writes a certificate and its key, which only its owner can read.
    fn write(&self, name: &str, certificate: &str, key: &KeyPair) -> anyhow::Result<Vec<PathBuf>> {
        let files = [
            (self.path(name, "key"), key.serialize_pem(), 0o600),
            (self.path(name, "pem"), certificate.to_owned(), 0o644),
        ];
        for (path, text, mode) in &files {
            let written = || -> anyhow::Result<()> {
                // Its mode is 0600, and nobody sees half of it under its name.
                let mut file = NamedTempFile::new_in(&self.dir)?;
                file.write_all(text.as_bytes())?;
                file.as_file().set_permissions(Permissions::from_mode(*mode))?;
                file.as_file().sync_all()?;
                if self.force {
                    file.persist(path)?
                } else {
                    file.persist_noclobber(path)?
                };
                Ok(())
            };
            written().with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(files.map(|(path, ..)| path).into())
    }
}
