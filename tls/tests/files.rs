//! Configurations of real files, in real handshakes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod files {
    pub(crate) mod authority;
    mod ends;
    pub(crate) mod handshake;
}

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_tls::{
    Certificates, Client, Files, Look, Name, Peer, Refused, Reload, Server, Unrelated, covers, names,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::kx_group::SECP384R1;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

use files::authority::{Authority, Issued, self_signed};
use files::handshake::handshake;

/// The files of one side.
struct Side {
    dir: TempDir,
}

impl Side {
    fn new(issued: &Issued, authority: &str) -> Self {
        let side = Self { dir: tempfile::tempdir().unwrap() };
        side.issue(issued);
        side.write("ca.pem", authority);
        side
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn issue(&self, issued: &Issued) {
        self.write("cert.pem", &issued.certificate);
        self.write("key.pem", &issued.key);
    }

    fn files(&self) -> Files {
        Files {
            certificate: self.path("cert.pem"),
            key: self.path("key.pem"),
            authority: Some(self.path("ca.pem")),
        }
    }

    fn server(&self) -> Server {
        Server::load(self.files(), Certificates::Required, &Unrelated::default()).unwrap()
    }

    fn client(&self) -> Client {
        Client::load(self.files()).unwrap()
    }

    fn peer(&self, unrelated: &Unrelated) -> Result<Peer, ringfence_tls::Error> {
        Peer::load(self.path("cert.pem"), self.path("key.pem"), self.path("ca.pem"), unrelated, |_| true)
    }
}

fn refused(reload: &dyn Reload) -> String {
    match reload.look(true) {
        Look::Refused(error) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_verify_each_other() {
    let authority = Authority::new("one");
    let server = Side::new(&authority.issue(&["dns:node.example"]), &authority.pem()).server();
    let client = Side::new(&authority.issue(&["uri:spiffe://prod/billing"]), &authority.pem()).client();
    let done = handshake(&server.current(), &client.current(), "node.example").unwrap();
    assert_eq!(names(&done.of_client[0]), [Name::Uri("spiffe://prod/billing".to_owned())]);
    assert!(handshake(&server.current(), &client.current(), "other.example").is_err());

    let other = Authority::new("two");
    let stranger = Side::new(&other.issue(&["uri:spiffe://prod/billing"]), &authority.pem()).client();
    assert!(handshake(&server.current(), &stranger.current(), "node.example").is_err());
    let suspicious = Side::new(&authority.issue(&["dns:a"]), &other.pem()).client();
    assert!(handshake(&server.current(), &suspicious.current(), "node.example").is_err());
    let nameless = Side::new(&authority.issue(&[]), &authority.pem());
    let without = Client::with_authority(Some(nameless.path("ca.pem"))).unwrap();
    assert!(handshake(&server.current(), &without.current(), "node.example").is_err());
    let files = Files { authority: None, ..nameless.files() };
    let open = Server::load(files, Certificates::Required, &Unrelated::default()).unwrap();
    assert!(open.trusts(&[]));
}

#[test]
fn a_change_counts_when_two_looks_agree() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let side = Side::new(&old.issue(&["dns:a"]), &format!("{}{}", old.pem(), new.pem()));
    let server = side.server();
    assert_eq!(server.look(false), Look::Same);
    // A file that is being written.
    side.write("ca.pem", &old.pem());
    assert_eq!(server.look(false), Look::Changing);
    side.write("ca.pem", &format!("{}{}", new.pem(), old.pem()));
    assert_eq!(server.look(false), Look::Changing);
    assert_eq!(server.version(), 0);
    assert_eq!(server.look(false), Look::Loaded);
    assert_eq!(server.version(), 1);
    assert_eq!(server.look(false), Look::Same);
    side.write("ca.pem", &old.pem());
    assert_eq!(server.look(true), Look::Loaded);
}

#[test]
fn a_link_that_is_swapped_is_a_change_of_all_files() {
    let authority = Authority::new("one");
    let side = Side::new(&authority.issue(&["dns:a"]), &authority.pem());
    let published = tempfile::tempdir().unwrap();
    let link = published.path().join("..data");
    std::os::unix::fs::symlink(side.dir.path(), &link).unwrap();
    let at = |name: &str| link.join(name);
    let files = Files { certificate: at("cert.pem"), key: at("key.pem"), authority: None };
    let server = Server::load(files, Certificates::Required, &Unrelated::default()).unwrap();
    let next = Side::new(&authority.issue(&["dns:b"]), &authority.pem());
    let swapped = published.path().join("..next");
    std::os::unix::fs::symlink(next.dir.path(), &swapped).unwrap();
    fs::rename(&swapped, &link).unwrap();
    assert_eq!(server.look(false), Look::Changing);
    assert_eq!(server.look(false), Look::Loaded);
    let client = Client::with_authority(Some(side.path("ca.pem"))).unwrap();
    assert!(handshake(&server.current(), &client.current(), "b").is_ok());
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_not_quoted() {
    let authority = Authority::new("one");
    let (issued, other) = (authority.issue(&["dns:a"]), authority.issue(&["dns:a"]));
    let side = Side::new(&issued, &authority.pem());
    let server = side.server();
    let client = side.client();
    let secret = "c2VjcmV0IGxpbmUgb2YgYSBrZXk";
    let leaf = &issued.certificate;
    for (name, content, why) in [
        ("ca.pem", "", "has no certificate in PEM"),
        ("ca.pem", leaf, "certificate 1 is not the certificate of an authority"),
        ("ca.pem", &authority.pem()[..200], "is not whole"),
        ("cert.pem", "", "has no certificate in PEM"),
        (
            "cert.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "is not a valid X.509",
        ),
        ("key.pem", "", "has no private key"),
        ("key.pem", &other.key, "is not the key of"),
        ("key.pem", &format!("-----BEGIN PRIVATE KEY {secret}\n"), "key.pem: is not valid PEM"),
        (
            "key.pem",
            &format!("-----BEGIN PRIVATE KEY-----\n{secret}?\n-----END PRIVATE KEY-----\n"),
            "key.pem: is not valid PEM",
        ),
        ("key.pem", &format!("-----BEGIN PRIVATE KEY-----\n{secret}A\n-----END PRIVATE KEY-----\n"), "kind"),
    ] {
        side.write(name, content);
        let text = refused(&server);
        assert!(text.contains(name) && text.contains(why) && !text.contains(&secret[..9]), "{text}");
        assert_eq!(server.refusal().unwrap().to_string(), text);
        assert_eq!(server.look(false), Look::Same, "it is reported once");
        assert!(handshake(&server.current(), &client.current(), "a").is_ok());
        side.issue(&issued);
        side.write("ca.pem", &authority.pem());
        assert_eq!((server.look(false), server.refusal()), (Look::Same, None));
    }
    fs::remove_file(side.path("key.pem")).unwrap();
    assert!(refused(&server).contains("cannot be read"));
    side.write("key.pem", &"-".repeat(2 << 20));
    assert!(refused(&server).contains("more than"));
    assert_eq!(server.version(), 0);
}

#[test]
fn a_removed_authority_is_out_also_with_an_open_connection_or_an_old_session() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let side = Side::new(&old.issue(&["dns:a"]), &format!("{}{}", old.pem(), new.pem()));
    let server = side.server();
    let client = Side::new(&old.issue(&["uri:x"]), &old.pem()).client();
    let chain = handshake(&server.current(), &client.current(), "a").unwrap().of_client;
    assert!(server.trusts(&chain) && !server.trusts(&[]));
    side.write("ca.pem", &new.pem());
    assert_eq!(server.look(true), Look::Loaded);
    assert!(!server.trusts(&chain) && !server.trusts(&[]));
    assert!(handshake(&server.current(), &client.current(), "a").is_err());
}

/// It took a second to verify a chain of 50 KB that no authority had signed.
#[test]
fn a_chain_that_takes_long_to_verify_is_refused() {
    let authority = Authority::new("one");
    let server = Side::new(&authority.issue(&["dns:a"]), &authority.pem());
    let with = |others: usize, of: &Authority| {
        let mut issued = authority.issue(&["dns:a"]);
        (0..others).for_each(|_| issued.certificate.push_str(&of.pem()));
        Side::new(&issued, &authority.pem())
    };
    let short = with(3, &Authority::new("other"));
    assert!(handshake(&server.server().current(), &short.client().current(), "a").is_ok());
    let many = with(4, &Authority::new("other"));
    let large = with(1, &Authority::new(&"o".repeat(16 << 10)));
    for side in [many, large] {
        let own = server.peer(&Unrelated::default()).unwrap();
        // Its owner learns why. The other side does not say.
        let as_peer = side.peer(&Unrelated::default()).err().unwrap();
        let as_client = Client::load(side.files()).err().unwrap();
        for error in [as_peer.to_string(), as_client.to_string()] {
            assert!(error.contains("cert.pem") && error.contains("at most 3 intermediate"), "{error}");
        }
        let chain: Vec<_> =
            CertificateDer::pem_file_iter(side.path("cert.pem")).unwrap().map(Result::unwrap).collect();
        let mut client = (*short.client().current()).clone();
        let key = PrivateKeyDer::from_pem_file(side.path("key.pem")).unwrap();
        let certified = CertifiedKey::new(chain.clone(), any_supported_type(&key).unwrap());
        client.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        let (mut calling, mut called) = (client.clone(), (*side.server().current()).clone());
        calling.alpn_protocols.clone_from(&own.client(&Refused::default()).alpn_protocols);
        called.alpn_protocols.clone_from(&own.client(&Refused::default()).alpn_protocols);
        for (of_server, of_client) in [
            (server.server().current(), Arc::new(client)),
            (own.server(&Refused::default()), Arc::new(calling)),
            (Arc::new(called), own.client(&Refused::default())),
        ] {
            let error = handshake(&of_server, &of_client, "a").err().expect("the chain is too long");
            assert!(format!("{error:?}").contains("TooLong"), "{error:?}");
        }
        assert!(own.verify(&chain).is_err() && own.verify(&chain[..1]).is_ok());
    }
}

/// A stranger can replay such a hello, and the server computes.
#[test]
fn a_key_exchange_that_takes_long_is_refused() {
    let authority = Authority::new("one");
    let server = Side::new(&authority.issue(&["dns:a"]), &authority.pem());
    let provider = CryptoProvider { kx_groups: vec![SECP384R1], ..default_provider() };
    let client = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let error = handshake(&server.server().current(), &Arc::new(client), "a").err().unwrap();
    assert!(format!("{error:?}").contains("NoKxGroupsInCommon"), "{error:?}");
}

#[test]
fn nodes_know_each_other_by_their_names_not_by_their_hosts() {
    let authority = Authority::new("nodes");
    let node = |names: &[&str]| Side::new(&authority.issue(names), &authority.pem());
    let one = node(&["uri:ringfence:node:1"]).peer(&Unrelated::default()).unwrap();
    let two_side = node(&["dns:*.nodes.example", "ip:10.0.0.2", "dns:Two"]);
    let two = two_side.peer(&Unrelated::default()).unwrap();
    let done = handshake(&two.server(&Refused::default()), &one.client(&Refused::default()), "any").unwrap();
    assert_eq!(names(&done.of_client[0]), [Name::Uri("ringfence:node:1".to_owned())]);
    let of_two = &done.of_server[0];
    let expected = [
        Name::Dns("*.nodes.example".to_owned()),
        Name::Ip("10.0.0.2".parse().unwrap()),
        Name::Dns("two".to_owned()),
    ];
    assert_eq!(names(of_two), expected);
    for host in ["n2.nodes.example", "10.0.0.2", "two"] {
        assert!(covers(of_two, host), "{host}");
    }
    for host in ["nodes.example", "a.b.nodes.example", "10.0.0.3", "", "two:7500", "ringfence test"] {
        assert!(!covers(of_two, host), "{host}");
    }
    // Neither a certificate of the HTTP port nor none at all is enough.
    let client = Client::with_authority(Some(two_side.path("ca.pem"))).unwrap();
    assert!(handshake(&two.server(&Refused::default()), &client.current(), "two").is_err());
    assert!(two.verify(&[]).is_err());
    let stranger = Authority::new("nodes");
    let stranger = Side::new(&stranger.issue(&["uri:ringfence:node:1"]), &authority.pem());
    let stranger = stranger.peer(&Unrelated::default()).unwrap();
    assert!(
        handshake(&two.server(&Refused::default()), &stranger.client(&Refused::default()), "any").is_err()
    );
    assert!(
        handshake(&stranger.server(&Refused::default()), &two.client(&Refused::default()), "any").is_err()
    );
}

#[test]
fn authorities_of_clients_and_nodes_have_nothing_in_common() {
    let (clients, nodes) = (Authority::new("clients"), Authority::new("nodes"));
    let (below_clients, below_nodes) = (clients.intermediate("ci"), nodes.intermediate("ni"));
    let (namesake, renamed) = (Authority::new("clients"), clients.renamed("nodes"));
    let files = |authority: &Authority| Side::new(&authority.issue(&["dns:a"]), &authority.pem());
    for (of_clients, of_nodes, is_apart) in [
        (&clients, &nodes, true),
        (&clients, &namesake, true),
        (&clients, &clients, false),
        (&clients, &renamed, false),
        (&clients, &below_clients, false),
        (&below_nodes, &nodes, false),
        (&below_clients, &below_nodes, true),
    ] {
        let unrelated = Unrelated::default();
        let _server = Server::load(files(of_clients).files(), Certificates::Required, &unrelated).unwrap();
        let peer = files(of_nodes).peer(&unrelated);
        assert_eq!(peer.is_ok(), is_apart);
        if let Err(error) = peer {
            assert!(error.to_string().contains("in common with the authority of clients"), "{error}");
        }
    }
    // The same at a reload, on both sides, until the other side has changed.
    let unrelated = Unrelated::default();
    let (clients_side, peers) = (files(&clients), files(&nodes));
    let server = Server::load(clients_side.files(), Certificates::Required, &unrelated).unwrap();
    let peer = peers.peer(&unrelated).unwrap();
    peers.write("ca.pem", &format!("{}{}", nodes.pem(), below_clients.pem()));
    assert!(refused(&peer).contains("in common"));
    clients_side.write("ca.pem", &below_nodes.pem());
    assert!(refused(&server).contains("in common"));
    clients_side.write("ca.pem", &namesake.pem());
    assert_eq!(server.look(true), Look::Loaded);
    assert_eq!(peer.look(false), Look::Loaded);
}

#[test]
fn a_client_trusts_a_server_that_signed_its_own_certificate() {
    let alone = self_signed("a");
    let side = Side::new(&alone, &alone.certificate);
    let files = Files { authority: None, ..side.files() };
    let server = Server::load(files, Certificates::Required, &Unrelated::default()).unwrap();
    let client = Client::with_authority(Some(side.path("ca.pem"))).unwrap();
    assert!(handshake(&Arc::clone(&server.current()), &client.current(), "a").is_ok());
}
