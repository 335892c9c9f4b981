//! Requests of several steps.

use std::sync::Arc;
use std::time::Duration;

use ringfence_lease::{Found, Value};
use ringfence_service::{CannotDo, Failure, Keys, Options, Seen, Service, Transacted, Transaction, Visit};
use ringfence_wire::{Key, Token, Ttl};
use tokio::sync::watch;

use crate::node::{Node, eventually};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn value(text: &str) -> Value {
    Value::new(text.as_bytes()).unwrap()
}

fn ttl() -> Ttl {
    Ttl::from_ms(60_000).unwrap()
}

impl Node {
    async fn transact<R: Send>(
        &self,
        keys: &[&str],
        mut run: impl FnMut(&mut Transaction) -> Result<R, R> + Send,
    ) -> Result<Transacted<R>, Failure> {
        let keys = Keys::new(keys.iter().map(|name| key(name)).collect()).unwrap();
        self.service.transact(&mut self.visit(), &keys, None, &mut run).await
    }

    /// Acquires the key with a value, if it is free. Returns whether it was.
    async fn set(&self, name: &str, text: &str) -> bool {
        let set = |keys: &mut Transaction| Ok(keys.acquire(&key(name), value(text), ttl()).is_ok());
        sent(self.transact(&[name], set).await)
    }

    async fn token(&self, name: &str, text: &str) -> Option<Token> {
        let token = |keys: &mut Transaction| Ok(keys.token(&key(name), &value(text)).unwrap());
        sent(self.transact(&[name], token).await)
    }

    /// Ends the lease on the key if it has this value. Returns whether it had.
    async fn end_if(&self, name: &str, text: &str) -> bool {
        let end = |keys: &mut Transaction| {
            Ok(keys.see(&key(name)) == Ok(Seen::Own(&value(text))) && keys.end(&key(name)).unwrap())
        };
        sent(self.transact(&[name], end).await)
    }
}

/// The result, after it was sent to the client.
fn sent<R>(transacted: Result<Transacted<R>, Failure>) -> R {
    let (result, unsent) = transacted.unwrap().in_time().unwrap();
    unsent.into_iter().for_each(|unsent| unsent.sent());
    result
}

#[tokio::test]
async fn what_is_set_is_a_lease_with_a_value_until_it_is_ended() {
    let node = Node::start().await;
    assert!(node.set("a", "mine").await && !node.set("a", "other").await);
    let first = node.token("a", "mine").await.unwrap();
    assert!(node.token("a", "other").await.is_none());
    assert!(node.handle.view(|table| table.is_live(&key("a"), first)));
    assert!(!node.end_if("a", "other").await && node.end_if("a", "mine").await);
    assert!(!node.end_if("a", "mine").await && node.token("a", "mine").await.is_none());
    assert!(node.set("a", "other").await && node.token("a", "other").await.unwrap() > first);
}

#[tokio::test]
async fn what_is_ended_and_acquired_in_one_step_has_a_new_token() {
    let node = Node::start().await;
    assert!(node.set("a", "mine").await);
    let first = node.token("a", "mine").await.unwrap();
    let replace = |keys: &mut Transaction| {
        assert!(keys.end(&key("a")).unwrap());
        assert_eq!(keys.see(&key("a")), Ok(Seen::Free));
        keys.acquire(&key("a"), value("mine"), ttl()).unwrap();
        assert_eq!(keys.token(&key("a"), &value("mine")), Ok(None));
        assert_eq!(keys.see(&key("a")), Ok(Seen::Own(&value("mine"))));
        Ok(())
    };
    sent(node.transact(&["a"], replace).await);
    assert!(node.token("a", "mine").await.unwrap() > first);
}

#[tokio::test]
async fn a_lease_ends_sooner_or_later_than_before() {
    let node = Node::start().await;
    assert!(node.set("a", "mine").await);
    let left = |ttl_ms: u32| {
        move |keys: &mut Transaction| {
            assert!(keys.expire(&key("a"), Ttl::from_ms(ttl_ms).unwrap()).unwrap());
            Ok(keys.time_left_ms(&key("a")).unwrap().unwrap())
        }
    };
    let read = |keys: &mut Transaction| Ok(keys.time_left_ms(&key("a")).unwrap().unwrap());
    for ttl_ms in [600_000, 5_000] {
        assert_eq!(sent(node.transact(&["a"], left(ttl_ms)).await), u64::from(ttl_ms));
        assert!((1..=ttl_ms.into()).contains(&sent(node.transact(&["a"], read).await)));
    }
    assert!(!sent(node.transact(&["b"], |keys| Ok(keys.expire(&key("b"), ttl()).unwrap())).await));
}

/// Of two clients that see a key free, one acquires it.
#[tokio::test]
async fn of_many_requests_for_a_key_one_gets_it() {
    let node = Arc::new(Node::start().await);
    let tries: Vec<_> = (0..32)
        .map(|number| {
            let node = Arc::clone(&node);
            tokio::spawn(async move { node.set("a", &number.to_string()).await })
        })
        .collect();
    let mut granted = 0;
    for one in tries {
        granted += usize::from(one.await.unwrap());
    }
    assert_eq!(granted, 1);
}

#[tokio::test]
async fn all_keys_are_acquired_or_none() {
    let node = Node::start().await;
    let all = ["a", "b", "c"];
    let set = |keys: &mut Transaction| {
        let each = |name: &&str| keys.acquire(&key(name), value("mine"), ttl());
        all.iter().try_for_each(each).map_err(Err).map(Ok)
    };
    assert!(node.set("b", "other").await);
    assert_eq!(sent(node.transact(&all, set).await), Err(CannotDo::Held));
    assert_eq!((node.token("a", "mine").await, node.token("c", "mine").await), (None, None));
    assert!(node.end_if("b", "other").await);
    assert_eq!(sent(node.transact(&all, set).await), Ok(()));
    let mut tokens = Vec::new();
    for name in all {
        tokens.push(node.token(name, "mine").await.unwrap());
    }
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "a lease of its own each");
}

#[tokio::test]
async fn what_others_hold_is_only_seen_to_be_taken() {
    let node = Node::start().await;
    node.hold("a").await;
    let look = |keys: &mut Transaction| {
        let (see, end) = (keys.see(&key("a")) == Ok(Seen::Taken), keys.end(&key("a")));
        Ok((see, end, keys.expire(&key("a"), ttl()), keys.acquire(&key("a"), value("v"), ttl())))
    };
    let taken = CannotDo::Taken;
    assert_eq!(sent(node.transact(&["a"], look).await), (true, Err(taken), Err(taken), Err(taken)));
    let left = |keys: &mut Transaction| Ok(keys.time_left_ms(&key("a")).unwrap());
    assert!(sent(node.transact(&["a"], left).await).unwrap() > 0);
}

#[tokio::test]
async fn an_error_or_a_key_that_was_not_named_changes_nothing() {
    let node = Node::start().await;
    let set = |keys: &mut Transaction| {
        keys.acquire(&key("a"), value("v"), ttl()).unwrap();
        Err(keys.see(&key("b")).unwrap_err())
    };
    let revision = || node.handle.view(|table| table.revision());
    let before = revision();
    assert_eq!(sent(node.transact(&["a"], set).await), CannotDo::NotNamed);
    assert_eq!(revision(), before);
}

#[tokio::test]
async fn a_grant_that_the_client_is_not_sent_is_taken_back() {
    let node = Node::start().await;
    let set = |keys: &mut Transaction| {
        let each = |name: &&str| keys.acquire(&key(name), value("v"), ttl());
        ["a", "b"].iter().try_for_each(each).map_err(|_| ())
    };
    assert!(node.set("kept", "v").await);
    drop(node.transact(&["a", "b"], set).await.unwrap());
    let live = || node.handle.view(|table| table.live());
    eventually("they are taken back", || live() == 1).await;
    assert!(node.token("kept", "v").await.is_some());
}

#[tokio::test]
async fn a_key_that_somebody_waits_for_cannot_be_replaced_in_one_step() {
    let node = Node::start().await;
    assert!(node.set("a", "v").await);
    node.queue("a").await;
    let replace = |keys: &mut Transaction| {
        keys.end(&key("a")).unwrap();
        keys.acquire(&key("a"), value("w"), ttl()).map_err(|_| ())
    };
    let failure = node.transact(&["a"], replace).await.unwrap_err();
    assert!(matches!(failure, Failure::Held { by_waiters: true, .. }), "{failure:?}");
    assert!(node.end_if("a", "v").await && node.token("a", "v").await.is_none());
}

/// A client whose connection broke may ask for the token before the grant is taken back. Then it keeps the grant.
#[tokio::test]
async fn a_grant_whose_token_was_told_stays() {
    let node = Node::start().await;
    let set =
        |name| move |keys: &mut Transaction| keys.acquire(&key(name), value("v"), ttl()).map_err(|_| ());
    let told = node.transact(&["told"], set("told")).await.unwrap();
    let token = node.token("told", "v").await.unwrap();
    drop(told);
    // This grant is taken back after the time at which the other would be.
    drop(node.transact(&["a"], set("a")).await.unwrap());
    let live = || node.handle.view(|table| table.live());
    eventually("the other is taken back", || live() == 1).await;
    assert_eq!(node.token("told", "v").await, Some(token));
}

/// The client counts the time of its lock from the answer.
#[tokio::test]
async fn a_lock_that_may_have_ended_is_not_acknowledged() {
    let node = Node::start().await;
    let (short, pause) = (Ttl::from_ms(100).unwrap(), Duration::from_millis(100));
    assert!(node.set("b", "v").await);
    let late = node.transact(&["a"], |keys| {
        std::thread::sleep(pause);
        Ok(keys.acquire(&key("a"), value("v"), short).is_ok())
    });
    assert!(matches!(late.await.unwrap().in_time(), Err(Failure::Indeterminate)));
    // Others are answered before it.
    let late = node.transact(&["b"], |keys| Ok(keys.expire(&key("b"), short).is_ok())).await.unwrap();
    tokio::time::sleep(pause).await;
    assert!(matches!(late.in_time(), Err(Failure::Indeterminate)));
    // So does a lock whose time was told.
    assert!(node.set("c", "v").await);
    drop(
        node.transact(&["c"], |keys| Ok(keys.expire(&key("c"), Ttl::from_ms(2_000).unwrap()).is_ok()))
            .await
            .unwrap(),
    );
    let told = node.transact(&["c"], |keys| Ok(keys.time_left_ms(&key("c")).unwrap())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(told.in_time(), Err(Failure::Indeterminate)));
}

#[tokio::test]
async fn the_time_of_a_lock_that_is_due_is_told() {
    let node = Node::start().await;
    let (a, short) = (key("a"), Ttl::from_ms(100).unwrap());
    let left = || node.transact(&["a"], |keys| Ok(keys.time_left_ms(&key("a")).unwrap()));
    let mut due = 0;
    while due < 5 {
        sent(node.transact(&["a"], |keys| Ok(keys.acquire(&a, value("v"), short).is_ok())).await);
        while let Some(left_ms) = sent(left().await) {
            due += usize::from(left_ms == 0);
        }
    }
}

/// Fencing once cost one more entry for each lock. Nobody takes back a lease that its client knows of.
#[tokio::test]
async fn only_the_node_that_has_sent_a_grant_tells_its_token_without_an_entry() {
    let node = Node::start().await;
    let is_untold = |name: &str| {
        let found = node.handle.view(|table| table.found(None, &key(name), 0));
        matches!(found, Found::Own { is_untold: true, .. })
    };
    assert!(node.set("a", "mine").await && node.set("b", "mine").await);
    let token = node.token("a", "mine").await.unwrap();
    assert!(is_untold("a") && is_untold("b"), "no entry has kept it");
    // Another node, or the next start of this one.
    let other = Options {
        access: None,
        mirror_timeout: None,
        draining: watch::channel(false).1,
        blocked: watch::channel(false).1,
        first_attachment: 1 << 40,
        slow_request: Duration::MAX,
    };
    let other = Arc::new(Service::new(node.handle.clone(), other));
    let mut ask = |keys: &mut Transaction| Ok(keys.token(&key("a"), &value("mine")).unwrap());
    let keys = Keys::new(vec![key("a")]).unwrap();
    let mut visit = Visit::of(Arc::clone(&other), node.caller.clone());
    assert_eq!(sent(other.transact(&mut visit, &keys, None, &mut ask).await), Some(token));
    assert!(!is_untold("a") && is_untold("b"));
    // A grant that was not sent is kept, as it would be taken back.
    let set = |keys: &mut Transaction| Ok(keys.acquire(&key("c"), value("mine"), ttl()).is_ok());
    let unsent = node.transact(&["c"], set).await.unwrap();
    assert!(node.token("c", "mine").await.is_some() && !is_untold("c"));
    drop(unsent);
}
