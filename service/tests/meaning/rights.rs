use ringfence_access::Digest;
use ringfence_lease::Value;
use ringfence_service::{Acquired, Caller, CannotDo, Failure, Keys, Proof, Seen, Transaction};
use ringfence_wire::{Key, LeaseId, Ttl};
use tokio::time::Instant;

use crate::node::{Node, granted, request};

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
    let set = |keys: &mut Transaction| Ok(keys.acquire(&own, value.clone(), Ttl::default()).is_ok());
    let acquired = node.service.transact(&holder, &keys([&own]), None, set).await.unwrap();
    let (true, Some(unsent)) = acquired.in_time().unwrap() else { panic!("not acquired") };
    unsent.sent();
    let end = |keys: &mut Transaction| {
        Ok((keys.see(&own) == Ok(Seen::Taken), keys.end(&own), keys.token(&own, &value) == Ok(None)))
    };
    let seen = node.service.transact(&stranger, &keys([&own]), None, end).await.unwrap();
    assert_eq!(seen.in_time().unwrap().0, (true, Err(CannotDo::Taken), true));
    let denied =
        node.service.transact(&holder, &keys([&own, &forbidden]), None, |_| Ok(())).await.unwrap_err();
    assert!(matches!(denied, Failure::Forbidden(_)), "{denied:?}");
    let ended = node.service.transact(&holder, &keys([&own]), None, |keys| Ok(keys.end(&own))).await.unwrap();
    assert_eq!(ended.in_time().unwrap().0, Ok(true));
}

/// A script waits for turns, and was once proposed under rules that were replaced meanwhile.
#[tokio::test]
async fn what_rules_forbid_while_its_steps_run_is_not_done() {
    let node = node().await;
    let (holder, key) = (caller(&node, "holder"), Key::new("a/1").unwrap());
    let digest = Digest::of(b"holder");
    let less = format!("[principals.holder]\ncredentials = [\"{digest}\"]\nallow = []\n");
    let run = |steps: &mut Transaction| {
        node.replace_rules(&less);
        let ttl = Ttl::from_ms(60_000).unwrap();
        Ok(steps.acquire(&key, Value::new(b"").unwrap(), ttl).is_ok())
    };
    let refused = node.service.transact(&holder, &keys([&key]), None, run).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Failure::Forbidden(_)), "{refused:?}");
}
