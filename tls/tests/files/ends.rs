//! What ends, or has not begun.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ringfence_tls::{Look, Nearness, Refused, Reload, Unrelated, expires, expires_after, now};
use rustls::pki_types::CertificateDer;

use super::authority::{self, Authority};
use super::handshake::handshake;
use crate::{Side, refused};

const YEAR: i64 = 365 * 86_400;

#[test]
fn a_certificate_that_has_ended_is_not_trusted() {
    let authority = Authority::new("one");
    let side = Side::new(&authority.issue(&["dns:a"]), &authority.pem());
    let (server, peer) = (side.server(), side.peer(&Unrelated::default()).unwrap());
    let expired = authority.issue_expired(&["uri:x"]);
    let expired_side = Side::new(&expired, &authority.pem());
    let chain: [CertificateDer<'static>; 1] = [expired.der.clone()];
    assert!(!server.trusts(&chain) && peer.verify(&chain).is_err());
    assert!(handshake(&server.current(), &expired_side.client().current(), "a").is_err());
    let expired_peer = expired_side.peer(&Unrelated::default()).unwrap();
    let (of_caller, of_called) = (Refused::default(), Refused::default());
    assert!(handshake(&peer.server(&of_caller), &expired_peer.client(&of_called), "a").is_err());
    let told = |refused: &Refused| peer.explain(refused, io::ErrorKind::Other.into()).to_string();
    let said = told(&of_caller);
    assert!(said.contains("(x)") && said.contains("ended on 2020-01-01 00:00 UTC, "), "{said}");
    assert!(handshake(&expired_peer.server(&of_caller), &peer.client(&of_called), "a").is_err());
    assert_eq!(told(&of_called), said);
    // What the other side is told tells it what is wrong with its own files.
    let alert = io::Error::other(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateExpired));
    let said = expired_peer.explain(&Refused::default(), alert).to_string();
    for part in ["refuses this side's certificate", "cert.pem", "ended on 2020-01-01"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let in_use = expired_side.server().in_use();
    let ends: Vec<_> = in_use.iter().map(|one| (one.is_authority, one.ends == authority::EXPIRED)).collect();
    assert_eq!(ends, [(false, true), (true, false)], "{in_use:?}");
    // One that nobody needs ends nothing, and is no reason to verify the chain again.
    let chain = [authority.issue(&["uri:x"]).der.clone(), expired.der.clone()];
    assert!(server.trusts(&chain));
    assert_eq!(expires(&chain), Some(authority::EXPIRED));
    assert!(expires_after(&chain, authority::EXPIRED) > Some(authority::EXPIRED));
}

/// Looks until that finds `awaited`.
fn look(reload: &dyn Reload, awaited: &Look) {
    let begun = Instant::now();
    while reload.look(false) != *awaited {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", reload.refusal());
        sleep(Duration::from_millis(50));
    }
}

/// It was trusted for ever.
#[test]
fn an_authority_that_ends_is_trusted_no_more_whatever_its_file_is_then() {
    let (next, ends) = (Authority::new("next"), now() + 5);
    let old = Authority::lasting("old", now() - YEAR, ends);
    let side = Side::new(&old.issue(&["dns:a"]), &(old.pem() + &next.pem()));
    let (server, client, peer) = (side.server(), side.client(), side.peer(&Unrelated::default()).unwrap());
    let shake = || handshake(&server.current(), &client.current(), "a");
    let meet = || {
        let (called, calling) = (Refused::default(), Refused::default());
        let shaken = handshake(&peer.server(&called), &peer.client(&calling), "a");
        shaken.map_err(|_| {
            [called, calling].map(|one| peer.explain(&one, io::ErrorKind::Other.into()).to_string())
        })
    };
    let side_by_side = Side::new(&next.issue(&["dns:a"]), &(old.pem() + &next.pem()));
    let unchanged = side_by_side.server();
    let before = [shake().is_ok(), meet().is_ok()];
    assert!(before == [true; 2] || now() > ends);
    let chain = [old.issue(&["dns:a"]).der];
    let met = peer.in_use();
    assert_eq!(
        (met[0].is_needed, met[0].ends),
        (true, ends),
        "its own is refused then, though it lasts longer"
    );

    // A change that is refused does not keep it in use.
    side.write("ca.pem", "none");
    while now() <= ends {
        sleep(Duration::from_millis(50));
    }
    for reload in [&server as &dyn Reload, &client, &peer] {
        assert!(refused(reload).contains("no certificate"));
    }
    look(&unchanged, &Look::Aged);
    assert_eq!(unchanged.look(false), Look::Same);
    assert!(unchanged.version() == 1 && !unchanged.trusts(&chain));
    assert!(server.version() > 0 && !server.trusts(&chain) && peer.verify(&chain).is_err());
    assert!(shake().is_err());
    let said = meet().err().unwrap().concat();
    assert!(said.contains("ca.pem, CN=old, that ended on"), "{said}");
    side.write("ca.pem", &(old.pem() + &next.pem()));
    side.issue(&next.issue(&["dns:a"]));
    for reload in [&server as &dyn Reload, &client, &peer] {
        look(reload, &Look::Loaded);
    }
    assert!(shake().is_ok() && meet().is_ok());
}

#[test]
fn nobody_is_trusted_if_all_authorities_have_ended_or_not_begun() {
    let (past, future) = (authority::EXPIRED, now() + YEAR);
    for authority in
        [Authority::lasting("a", past - YEAR, past), Authority::lasting("a", future, future + YEAR)]
    {
        let side = Side::new(&authority.issue(&["dns:a"]), &authority.pem());
        let live = Authority::new("live");
        let trusting = Side::new(&live.issue(&["dns:a"]), &authority.pem());
        let other = Side::new(&authority.issue(&["dns:a"]), &live.pem());
        for (server, client) in [(&side, &side), (&trusting, &other), (&other, &trusting)] {
            assert!(handshake(&server.server().current(), &client.client().current(), "a").is_err());
        }
        let peer = side.peer(&Unrelated::default()).unwrap();
        assert!(
            handshake(&peer.server(&Refused::default()), &peer.client(&Refused::default()), "a").is_err()
        );
        assert!(!side.server().trusts(&[authority.issue(&["dns:a"]).der]));
        // The same is refused if it would replace one that is live.
        side.issue(&live.issue(&["dns:a"]));
        side.write("ca.pem", &live.pem());
        let unrelated = Unrelated::default();
        let (server, client, peer) = (side.server(), side.client(), side.peer(&unrelated).unwrap());
        side.write("ca.pem", &authority.pem());
        for reload in [&server as &dyn Reload, &client, &peer] {
            let said = refused(reload);
            assert!(said.contains("ca.pem: the certificate of CN=a "), "{said}");
        }
        assert!(handshake(&server.current(), &client.current(), "a").is_ok());
        side.write("ca.pem", &(authority.pem() + &live.pem()));
        assert_eq!(client.look(true), Look::Loaded);
    }
}

/// It replaced the one that worked, and nothing said so.
#[test]
fn a_certificate_that_has_not_begun_waits_while_the_one_in_use_is_valid() {
    let authority = Authority::new("one");
    let side = Side::new(&authority.issue(&["dns:a"]), &authority.pem());
    let (server, client, peer) = (side.server(), side.client(), side.peer(&Unrelated::default()).unwrap());
    let all = [&server as &dyn Reload, &client, &peer];
    let in_vain = |says: &str| {
        for reload in all {
            let said = refused(reload);
            assert!(said.contains("cert.pem: the certificate of ") && said.contains(says), "{said}");
            assert_eq!(
                (reload.look(false), reload.in_use()[0].nearness(now())),
                (Look::Same, reload.in_use()[0].nearness(now()))
            );
        }
        assert!(handshake(&server.current(), &client.current(), "a").is_ok());
    };
    side.issue(&authority.issue_lasting(&["dns:a"], now() + YEAR, now() + 2 * YEAR));
    in_vain("begins on");
    side.issue(&authority.issue_expired(&["dns:a"]));
    in_vain("ended on");
    let begins = now() + 5;
    side.issue(&authority.issue_lasting(&["dns:a"], begins, begins + YEAR));
    for reload in all {
        look(reload, &Look::Loaded);
        assert!(now() >= begins);
    }
    assert!(handshake(&server.current(), &client.current(), "a").is_ok());
    // A start takes it: nothing works that it could replace. The same if what it replaces has ended.
    let (past, future) = (authority::EXPIRED, now() + YEAR);
    side.issue(&authority.issue_lasting(&["dns:a"], past - YEAR, past));
    let server = side.server();
    side.issue(&authority.issue_lasting(&["dns:a"], future, future + YEAR));
    assert_eq!(server.look(true), Look::Loaded);
    assert_eq!(server.in_use()[0].nearness(now()), Nearness::NotYet);
}

/// Of a file, one was said to be refused that nobody needed.
#[test]
fn only_what_is_needed_ends_something() {
    let (authority, past) = (Authority::new("one"), authority::EXPIRED);
    let left_over = Authority::lasting("two", past - YEAR, past);
    let mut issued = authority.issue(&["dns:a"]);
    issued.certificate += &left_over.pem();
    let side = Side::new(&issued, &(left_over.pem() + &authority.pem()));
    let needed = |reload: &dyn Reload| -> Vec<_> {
        reload
            .in_use()
            .into_iter()
            .filter(|one| one.is_needed)
            .map(|one| (one.is_authority, one.ends > now()))
            .collect()
    };
    assert_eq!(needed(&side.server()), [(false, true), (true, true)]);
    assert_eq!(needed(&side.peer(&Unrelated::default()).unwrap()), [(false, true), (true, true)]);
    // Of several that are live, the one that ends last.
    let [soon, late] = [1, 2].map(|years| Authority::lasting("live", past, now() + years * YEAR));
    for order in [[&soon, &late], [&late, &soon]] {
        side.write("ca.pem", &order.map(Authority::pem).concat());
        let in_use = side.server().in_use();
        let needed: Vec<_> = in_use.iter().filter(|one| one.is_authority && one.is_needed).collect();
        assert!(matches!(needed[..], [one] if one.ends > now() + YEAR), "{in_use:?}");
    }
}

/// Whoever made up a certificate was said to have one of an authority.
#[test]
fn a_certificate_that_nobody_signed_is_not_said_to_be_anybodys() {
    let (authority, stranger) = (Authority::new("one"), Authority::new("one"));
    let peer = Side::new(&authority.issue(&["dns:a"]), &authority.pem()).peer(&Unrelated::default()).unwrap();
    let long = ["a", "b", "c"].map(|name| format!("uri:{}", name.repeat(1_000)));
    for (issued, says) in [
        (stranger.issue(&long.each_ref().map(String::as_str)), "says it is of"),
        (stranger.issue_expired(&["uri:ringfence:node:2"]), "says it is of"),
        (stranger.issue(&["uri:ringfence:node:2"]), "says it is of"),
        (authority.issue_for_others(2_000), "is refused"),
        (authority.issue_expired(&["uri:ringfence:node:2"]), "ended on"),
        (authority.issue_lasting(&["uri:ringfence:node:2"], now() + YEAR, now() + 2 * YEAR), "begins on"),
    ] {
        let said = peer.verify(&[issued.der]).err().unwrap();
        assert!(said.contains(says) && said.chars().count() <= 301, "{said}");
    }
    // What ends first need not be its own, and need not be needed.
    let (ended, left_over) = (authority.expired_intermediate("i"), Authority::lasting("old", 0, YEAR));
    let names = ["uri:ringfence:node:2"];
    for (chain, says) in [
        ([ended.issue(&names).der, ended.der()], "CN=i ended on"),
        ([authority.issue_expired(&names).der, left_over.der()], "node:2) ended on"),
    ] {
        let said = peer.verify(&chain).err().unwrap();
        assert!(said.contains(says), "{said}");
    }
}

/// With an authority of the same name, a side says that a signature is wrong.
#[test]
fn a_refusal_by_an_authority_of_the_same_name_is_explained() {
    let (one, other) = (Authority::new("one"), Authority::new("one"));
    let called = Side::new(&one.issue(&["dns:a"]), &one.pem()).peer(&Unrelated::default()).unwrap();
    let calling =
        Side::new(&other.issue(&["dns:a"]), &(other.pem() + &one.pem())).peer(&Unrelated::default()).unwrap();
    let (of_called, of_calling) = (Refused::default(), Refused::default());
    let alert = handshake(&called.server(&of_called), &calling.client(&of_calling), "a").err().unwrap();
    assert!(
        matches!(alert, rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature)),
        "{alert:?}"
    );
    let alert = io::Error::other(rustls::Error::AlertReceived(rustls::AlertDescription::DecryptError));
    let said = calling.explain(&of_calling, alert).to_string();
    for part in ["refuses this side's certificate", "its signature is wrong", "cert.pem"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
