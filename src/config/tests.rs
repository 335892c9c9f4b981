use clap::{Args, FromArgMatches};

use super::*;

fn options() -> Options {
    Options { id: Some(2), data: Some("d".into()), ..Options::default() }
}

fn error(options: Options) -> String {
    format!("{:#}", Config::from_options(options).unwrap_err())
}

#[test]
fn a_lone_node_needs_an_id_and_a_directory() {
    let config = Config::from_options(options()).unwrap();
    assert_eq!(config.peers, BTreeMap::from([(2, "127.0.0.1:7500".to_owned())]));
    assert_eq!(config.url("127.0.0.1:9".parse().unwrap()), "http://127.0.0.1:9");
    assert!(error(Options { id: None, ..options() }).contains("--id"));
    assert!(error(Options { data: None, ..options() }).contains("--data"));
}

#[test]
fn an_invalid_list_of_peers_is_named() {
    let peers = |list: &str| Options { peers: Some(list.to_owned()), ..options() };
    assert_eq!(Config::from_options(peers("1=a:1, 2=b:2")).unwrap().peers.len(), 2);
    assert!(error(peers("1=a:1")).contains("does not list this node"));
    let peer = "10.0.0.2:7500".parse().ok();
    let joining = Options { join: Some(true), peer, insecure: Some(true), ..peers("1=a:1") };
    assert!(Config::from_options(joining).is_ok());
    assert!(error(peers("2=b:2,2=c:3")).contains("twice"));
    for empty in ["", " ", ",", " , "] {
        assert!(error(peers(empty)).contains("--peers is empty"), "{empty:?}");
        assert!(error(Options { join: Some(true), ..peers(empty) }).contains("--peers is empty"));
        let hosts = Some(empty.to_owned());
        assert!(error(Options { hosts, ..options() }).contains("--hosts is empty"), "{empty:?}");
    }
    for wrong in ["2", "b:2", "2=b", "2=:1", "2=b:99999", "2=0.0.0.0:1", "x=b:1", "0=b:1"] {
        assert!(error(peers(wrong)).contains(wrong), "{wrong}");
    }
}

/// The membership would record an address that no other node can use.
#[test]
fn an_address_that_other_nodes_cannot_reach_is_refused() {
    let peers = |list: &str| Options { peers: Some(list.to_owned()), ..options() };
    assert!(Config::from_options(peers("1=db1:1,2=db2:1")).is_ok());
    assert!(Config::from_options(peers("1=127.0.0.1:1,2=localhost:1")).is_ok());
    assert!(error(peers("1=db1:1,2=127.0.0.1:1")).contains("--peers mixes"));
    let advertised = Some("[::]:1".to_owned());
    assert!(error(Options { advertise_peer: advertised, ..options() }).contains("--advertise-peer"));
}

/// The others would be a second cluster, above the same backup.
#[test]
fn a_replacement_is_not_founded_by_a_node_alone_by_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup.json");
    let cluster = "5c0f3c60-4f0e-4d0b-9a53-0f8f0c1b7e55";
    let text = format!(r#"{{"format":1,"cluster_id":"{cluster}","first_revision":5,"revision":7}}"#);
    std::fs::write(&path, text).unwrap();
    let restoring = || Options { restore: Some(path.clone()), ..options() };
    assert!(error(restoring()).contains("--restore requires --peers"));
    assert!(Config::from_options(Options { peers: Some("2=b:2".to_owned()), ..restoring() }).is_ok());
}

#[test]
fn an_unspecified_address_is_advertised_as_the_peer_host() {
    let config = Config::from_options(Options { peers: Some("2=db2:7500".into()), ..options() }).unwrap();
    assert_eq!(config.url("0.0.0.0:7400".parse().unwrap()), "http://db2:7400");
}

#[test]
fn flags_take_precedence_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.toml");
    let merged = |text: &str| -> anyhow::Result<Options> {
        std::fs::write(&path, text)?;
        let flags = Options::augment_args(clap::Command::new("serve"));
        let mut options = options::file(Some(&path))?;
        options.update_from_arg_matches(&flags.get_matches_from(["serve", "--id=2", "--data=d"]))?;
        Ok(options)
    };
    let read = merged("id = 7\nhttp = \"127.0.0.1:1\"\nlog-format = \"json\"\n").unwrap();
    assert_eq!((read.id, read.http.map(|http| http.port())), (Some(2), Some(1)));
    let read = merged(
        "redis = \"redis://db\"\n[mirror]\nmode = \"before-answer\"\ntimeout = \"250ms\"\n\
             take-over = \"00000000-0000-4000-8000-000000000001\"\n",
    );
    let mirror = Config::from_options(read.unwrap()).unwrap().mirror.unwrap();
    assert_eq!((mirror.url.as_str(), mirror.timeout), ("redis://db", Duration::from_millis(250)));
    assert_eq!(mirror.mode, ringfence_mirror::MirrorMode::BeforeAnswer);
    assert_eq!(mirror.take_over.map(|id| id.as_u128() & 0xff), Some(1));
    assert!(format!("{:#}", merged("idd = 7\n").unwrap_err()).contains("idd"));
    let refused = format!("{:#}", merged("id = 7\nredis = redis://:secret@db\n").unwrap_err());
    assert!(refused.contains("line 2") && !refused.contains("secret"), "{refused}");
}

#[test]
fn other_machines_reach_no_port_that_anybody_may_use() {
    let listening = |http: &str, peer: &str| Options {
        http: Some(http.parse().unwrap()),
        peer: Some(peer.parse().unwrap()),
        ..options()
    };
    let access = Some("access.toml".into());
    let file = |name: &str| Some(PathBuf::from(name));
    let tls = || TlsOptions { certificate: file("c"), key: file("k"), ..TlsOptions::default() };
    let peer_tls =
        |plain| PeerTlsOptions { certificate: file("c"), key: file("k"), authority: file("a"), plain };
    for local in ["127.0.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(Config::from_options(listening(local, local)).is_ok(), "{local}");
    }
    for remote in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1]:1"] {
        let (http, peer) = (|| listening(remote, "127.0.0.1:2"), || listening("127.0.0.1:1", remote));
        assert!(error(http()).contains("--http"), "{remote}");
        assert!(error(Options { tls: tls(), ..http() }).contains("--http"), "{remote}");
        assert!(error(Options { access: access.clone(), ..http() }).contains("--http"), "{remote}");
        assert!(Config::from_options(Options { tls: tls(), access: access.clone(), ..http() }).is_ok());
        let resp = || Options { resp: Some(remote.parse().unwrap()), ..options() };
        assert!(error(resp()).contains("--resp"), "{remote}");
        assert!(error(Options { tls: tls(), ..resp() }).contains("--resp"), "{remote}");
        assert!(error(Options { access: access.clone(), ..resp() }).contains("--resp"), "{remote}");
        assert!(Config::from_options(Options { tls: tls(), access: access.clone(), ..resp() }).is_ok());
        assert!(error(peer()).contains("--peer"), "{remote}");
        let changing = Options { peer_tls: peer_tls(Some(Plain::Accept)), ..peer() };
        assert!(error(changing).contains("--peer-plain"), "{remote}");
        assert!(Config::from_options(Options { peer_tls: peer_tls(None), ..peer() }).is_ok());
        let insecure = |options| {
            Config::from_options(Options { insecure: Some(true), ..options }).unwrap().insecure.unwrap()
        };
        assert_eq!(insecure(listening(remote, remote)), ["--http", "--peer"]);
        assert_eq!(insecure(Options { resp: resp().resp, ..peer() }), ["--resp", "--peer"]);
        assert!(insecure(Options { tls: tls(), access: access.clone(), ..resp() }).is_empty());
    }
}

#[test]
fn invalid_settings_are_named() {
    let mirror = MirrorOptions { prefix: Some("p".to_owned()), ..MirrorOptions::default() };
    assert!(error(Options { mirror, ..options() }).contains("--redis"));
    assert!(error(Options { first_revision: Some(0), ..options() }).contains("--first-revision"));
    for threads in [0, 65] {
        assert!(error(Options { http_threads: Some(threads), ..options() }).contains("--http-threads"));
    }
}

/// Nothing but this ties the words of the help to the code.
#[test]
fn each_default_in_the_help_is_the_one_that_applies() {
    let command = Options::augment_args(clap::Command::new("serve"));
    let config = |more: Option<String>| {
        let base = "serve --id=2 --data=d --redis=redis://db --tls-certificate=c --tls-key=k \
                    --peer-certificate=c --peer-key=k --peer-authority=a";
        let given = base.split_whitespace().map(str::to_owned).chain(more);
        let mut options = Options::default();
        options.update_from_arg_matches(&command.clone().try_get_matches_from(given).unwrap()).unwrap();
        format!("{:?}", Config::from_options(options).unwrap())
    };
    let mut compared = Vec::new();
    for argument in command.get_arguments() {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let Some((_, default)) = help.split_once("[default: ") else { continue };
        let value = default.trim_end_matches(']').split(", ").next().unwrap();
        let name = argument.get_long().unwrap();
        // A default of several words is a rule. What is logged is no part of the configuration.
        if !value.contains(' ') && !name.starts_with("log") {
            assert_eq!(config(Some(format!("--{name}={value}"))), config(None), "--{name}");
            compared.push(name.to_owned());
        }
    }
    let expected = "http peer snapshot-after-bytes slow-request plain peer-plain mirror-mode mirror-timeout \
                    mirror-prefix mirror-retention mirror-sweep-keys-per-s";
    assert_eq!(compared.join(" "), expected);
}
