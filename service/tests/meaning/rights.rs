use ringfence_access::Digest;
use ringfence_lease::{Sieve, Value};
use ringfence_service::{Acquired, Caller, CannotDo, Consistency, Failure, Keys, Proof, Seen, Transaction};
use ringfence_wire::{Key, LeaseId, Ttl};
use tokio::time::Instant;

use crate::node::{Node, granted, request, request_of};

/// A node with three principals, each with its name as its credential.
async fn node() -> Node {
    let principal = |name: &str, may: &str| {
        let digest = Digest::of(name.as_bytes());
        format!(
            "[principals.{name}]\ncredentials = [\"{digest}\"]\nallow = [{{ keys = \"a/\", may = [{may}] }}]\n"
        )
    };
    let rules = [
        principal("holder", "\"acquire\""),
        principal("reader", "\"acquire\", \"read\""),
        principal("stranger", "\"acquire\""),
    ];
    Node::start_with(Some(&rules.concat())).await
}

fn caller(node: &Node, name: &str) -> Caller {
    let proof = Proof { credential: Some(Digest::of(name.as_bytes())), ..Proof::default() };
    node.service.caller(proof).unwrap()
}

fn keys<const N: usize>(keys: [&Key; N]) -> Keys {
    Keys::new(keys.map(Key::clone).into()).unwrap()
}

async fn acquire(node: &Node, name: &str, lease_id: LeaseId, key: &str) -> Result<Acquired, Failure> {
    let caller = caller(node, name);
    node.service.acquire(&caller, lease_id, request(key), Instant::now(), || ()).await.answered().0
}

#[tokio::test]
async fn only_who_may_read_a_key_learns_who_holds_it() {
    let node = node().await;
    granted(acquire(&node, "holder", LeaseId::random(), "a/1").await);
    let seen = acquire(&node, "reader", LeaseId::random(), "a/1").await.unwrap_err();
    let Failure::Held { holders: Some(holders), by_waiters: false, .. } = seen else { panic!("{seen:?}") };
    let names: Vec<_> = holders.iter().map(|holder| holder.by.as_ref().map(|by| by.as_str())).collect();
    assert_eq!(names, [Some("holder")]);
    let refused = acquire(&node, "stranger", LeaseId::random(), "a/1").await.unwrap_err();
    assert_eq!(refused, Failure::Held { holders: None, by_waiters: false, waiters: 0 });
}

/// Revoking a lease on one key ends it on all its keys.
#[tokio::test]
async fn a_key_shows_which_other_keys_its_lease_has_of_those_that_the_caller_may_read() {
    let node = node().await;
    let all: Vec<_> = ["b/1".to_owned()].into_iter().chain((0..10).map(|n| format!("a/{n}"))).collect();
    let rules = [("all", "*"), ("reader", "a/")].map(|(name, keys)| {
        let digest = Digest::of(name.as_bytes());
        format!("[principals.{name}]\ncredentials = [\"{digest}\"]\nallow = [{{ keys = \"{keys}\", may = [\"acquire\", \"read\"] }}]\n")
    });
    node.replace_rules(&rules.concat());
    let request = request_of(all.iter().map(String::as_str));
    let holder = caller(&node, "all");
    granted(
        node.service.acquire(&holder, LeaseId::random(), request, Instant::now(), || ()).await.answered().0,
    );
    let key = Key::new("a/1").unwrap();
    for (name, expected) in
        [("all", "b/1 a/0 a/2 a/3 a/4 a/5 a/6 a/7"), ("reader", "a/0 a/2 a/3 a/4 a/5 a/6 a/7 a/8")]
    {
        let caller = caller(&node, name);
        let view =
            node.service.key(&caller, caller.allow_key(&key).unwrap(), Consistency::Linearizable).await;
        let holder = &view.unwrap().holders[0];
        let shown: Vec<_> = holder.other_keys.iter().map(Key::as_str).collect();
        assert_eq!((shown.join(" ").as_str(), holder.more_keys), (expected, 2));
    }
    let other = Key::new("b/1").unwrap();
    let view =
        node.service.key(&holder, holder.allow_key(&other).unwrap(), Consistency::Local).await.unwrap();
    assert_eq!((view.holders[0].other_keys.len(), view.holders[0].more_keys), (8, 2));
}

/// A search that finds nothing has a short answer, but takes as long as one that finds much.
#[tokio::test]
async fn what_a_search_passes_over_counts_against_the_limits() {
    let node = node().await;
    let rules = [("all", ""), ("searcher", "limits = { requests-per-s = 1 }")].map(|(name, limits)| {
        let digest = Digest::of(name.as_bytes());
        format!(
            "[principals.{name}]\ncredentials = [\"{digest}\"]\nallow = [{{ keys = \"*\", may = [\"acquire\", \"read\"] }}]\n{limits}\n"
        )
    });
    node.replace_rules(&rules.concat());
    let all = caller(&node, "all");
    for lease in 0..6 {
        let keys: Vec<_> = (0..64).map(|n| format!("{lease}/{n}")).collect();
        let request = request_of(keys.iter().map(String::as_str));
        granted(
            node.service.acquire(&all, LeaseId::random(), request, Instant::now(), || ()).await.answered().0,
        );
    }
    let searcher = caller(&node, "searcher");
    let search = async || {
        let sieve = Sieve { text: "no such", is_contended: false };
        let prefix = searcher.allow_under("").unwrap();
        node.service.keys(&searcher, prefix, sieve, None, 100, Consistency::Local).await
    };
    assert_eq!(search().await.unwrap().keys, []);
    // On a busy machine, the used part of the limit may be free again.
    for _ in 0..100 {
        if let Err(failure) = search().await {
            assert!(matches!(failure, Failure::RateLimited(_)), "{failure:?}");
            return;
        }
    }
    panic!("no search was refused");
}

#[tokio::test]
async fn a_lease_id_of_another_principal_is_unknown_and_a_key_without_a_right_forbidden() {
    let node = node().await;
    let grant = granted(acquire(&node, "holder", LeaseId::random(), "a/1").await);
    let stranger = caller(&node, "stranger");
    let renewed = node.service.renew(&stranger, grant.lease_id, None).await;
    assert_eq!(renewed.unwrap_err(), Failure::Unknown);
    node.service.release(&stranger, grant.lease_id).await.unwrap();
    node.service.renew(&caller(&node, "holder"), grant.lease_id, None).await.unwrap();

    let denied = acquire(&node, "holder", LeaseId::random(), "b").await.unwrap_err();
    assert!(matches!(denied, Failure::Forbidden(_)), "{denied:?}");
    let unknown = Proof { credential: Some(Digest::of(b"nobody")), ..Proof::default() };
    assert!(matches!(node.service.caller(unknown), Err(Failure::Unauthenticated(_))));
}

#[tokio::test]
async fn a_transaction_needs_the_right_on_its_keys_and_changes_no_lease_of_others() {
    let node = node().await;
    let (holder, stranger) = (caller(&node, "holder"), caller(&node, "stranger"));
    let (own, forbidden) = (Key::new("a/1").unwrap(), Key::new("b").unwrap());
    let value = Value::new(b"the same").unwrap();
    let mut set = |keys: &mut Transaction| Ok(keys.acquire(&own, value.clone(), Ttl::default()).is_ok());
    let acquired =
        node.service.transact(&mut node.visit_of(&holder), &keys([&own]), None, &mut set).await.unwrap();
    let (true, Some(unsent)) = acquired.in_time().unwrap() else { panic!("not acquired") };
    unsent.sent();
    let mut end = |keys: &mut Transaction| {
        Ok((keys.see(&own) == Ok(Seen::Taken), keys.end(&own), keys.token(&own, &value) == Ok(None)))
    };
    let seen =
        node.service.transact(&mut node.visit_of(&stranger), &keys([&own]), None, &mut end).await.unwrap();
    assert_eq!(seen.in_time().unwrap().0, (true, Err(CannotDo::Taken), true));
    let denied = node
        .service
        .transact(&mut node.visit_of(&holder), &keys([&own, &forbidden]), None, &mut |_: &mut Transaction| {
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(matches!(denied, Failure::Forbidden(_)), "{denied:?}");
    let ended = node
        .service
        .transact(&mut node.visit_of(&holder), &keys([&own]), None, &mut |keys: &mut Transaction| {
            Ok(keys.end(&own))
        })
        .await
        .unwrap();
    assert_eq!(ended.in_time().unwrap().0, Ok(true));
}

/// A script waits for turns. Once, its commands were proposed although the access rules had been replaced meanwhile.
#[tokio::test]
async fn what_rules_forbid_while_its_steps_run_is_not_done() {
    let node = node().await;
    let (holder, key) = (caller(&node, "holder"), Key::new("a/1").unwrap());
    let digest = Digest::of(b"holder");
    let less = format!("[principals.holder]\ncredentials = [\"{digest}\"]\nallow = []\n");
    let mut run = |steps: &mut Transaction| {
        node.replace_rules(&less);
        let ttl = Ttl::from_ms(60_000).unwrap();
        Ok(steps.acquire(&key, Value::new(b"").unwrap(), ttl).is_ok())
    };
    let refused = node
        .service
        .transact(&mut node.visit_of(&holder), &keys([&key]), None, &mut run)
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, Failure::Forbidden(_)), "{refused:?}");
}
