//! One request of one caller: its order, its cost and its time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_access::KeyRight;
use ringfence_lease::Value;
use ringfence_service::{Ending, Failure, Keys, Proof, Report, Right, Service, Transaction, Visit};
use ringfence_wire::{Key, Ttl};
use tokio::time::{Instant, advance, pause};

use crate::node::Node;

const ACQUIRE: Right = Right::OnKeys(KeyRight::Acquire);

fn anonymous(may: &str) -> String {
    format!("[anonymous]\nallow = [{{ keys = \"*\", may = [{may}] }}]\nlimits = {{ requests-per-s = 5 }}\n")
}

fn admit(visit: &mut Visit<impl Report>, right: Right) -> Result<(), Failure> {
    visit.admit(Proof::default(), None, right)
}

/// Over RESP, such requests were once counted nowhere.
#[tokio::test]
async fn a_request_that_is_denied_counts_and_who_sends_too_many_is_held_back() {
    // As a request for a key, over HTTP and over RESP.
    for right in [Right::OnKeys(KeyRight::Read), ACQUIRE, Right::AnyOf(&[KeyRight::Acquire, KeyRight::Read])]
    {
        let node = Node::start_with(Some(&anonymous("\"validate\""))).await;
        pause();
        let (began, rests) = (Instant::now(), AtomicU64::new(0));
        let (mut denied, mut limited) = (0, 0);
        for _ in 0..40 {
            let mut visit = Visit::new(Arc::clone(&node.service));
            let ending = match admit(&mut visit, right).unwrap_err() {
                Failure::Unauthenticated(_) => Ending::Denied,
                Failure::RateLimited(_) => Ending::Limited,
                other => panic!("{other:?}"),
            };
            denied += u64::from(ending == Ending::Denied);
            limited += u64::from(ending == Ending::Limited);
            let rest = || {
                rests.fetch_add(1, Ordering::Relaxed);
            };
            visit.ended(ending, rest).await;
        }
        let waited = began.elapsed().as_millis() / 200;
        assert_eq!((denied, limited, rests.into_inner(), waited), (22, 18, 18, 18), "{right:?}");
        tokio::time::resume();
    }
}

/// Once, a right that was taken away while the body arrived still counted.
#[tokio::test]
async fn a_request_is_checked_again_by_the_rules_of_when_it_has_arrived() {
    let node = Node::start_with(Some(&anonymous("\"acquire\""))).await;
    let mut visit = Visit::new(Arc::clone(&node.service));
    admit(&mut visit, ACQUIRE).unwrap();
    visit.check_again().unwrap();
    node.replace_rules(&anonymous("\"validate\""));
    assert!(matches!(visit.check_again(), Err(Failure::Unauthenticated(_))));
}

/// Once, the refusal was kept, and told when the request began.
#[tokio::test]
async fn a_request_that_waited_is_admitted_by_the_rules_and_limits_of_when_it_begins() {
    let node = Node::start_with(Some(&anonymous("\"validate\""))).await;
    pause();
    let mut denied = Visit::new(Arc::clone(&node.service));
    assert!(matches!(admit(&mut denied, ACQUIRE), Err(Failure::Unauthenticated(_))));
    let mut others: Vec<_> = (0..4).map(|_| Visit::new(Arc::clone(&node.service))).collect();
    assert!(others.iter_mut().all(|visit| admit(visit, Right::Identity).is_ok()));
    let mut limited = Visit::new(Arc::clone(&node.service));
    assert!(matches!(admit(&mut limited, Right::Identity), Err(Failure::RateLimited(_))));
    for visit in [&mut denied, &mut limited] {
        visit.waits();
    }
    node.replace_rules(&anonymous("\"acquire\""));
    advance(Duration::from_millis(200)).await;
    for (visit, cost) in [(&mut denied, 1), (&mut limited, 0)] {
        visit.begins();
        assert_eq!(visit.cost(), cost);
        admit(visit, ACQUIRE).unwrap();
        assert_eq!(visit.cost(), 1, "it was counted once");
    }
    node.replace_rules(&anonymous("\"validate\""));
    assert!(matches!(admit(&mut denied, ACQUIRE), Err(Failure::Unauthenticated(_))), "and refused anew");
}

/// Remembers how long its requests took.
struct Timed(Arc<Service>, Arc<Mutex<Vec<Duration>>>);

impl Report for Timed {
    fn service(&self) -> &Service {
        &self.0
    }

    fn measure(&self, took: Duration) {
        self.1.lock().unwrap().push(took);
    }
}

#[tokio::test]
async fn the_time_of_a_request_is_that_of_its_work() {
    let node = Node::start().await;
    pause();
    let times = Arc::<Mutex<Vec<Duration>>>::default();
    let visit = || Visit::new(Timed(Arc::clone(&node.service), Arc::clone(&times)));
    let (mut first, mut second, mut never) = (visit(), visit(), visit());
    second.waits();
    never.waits();
    advance(Duration::from_secs(5)).await;
    second.begins();
    first.done();
    advance(Duration::from_secs(2)).await;
    first.answered(Ending::Answered);
    second.answered(Ending::Answered);
    drop(never);
    drop(visit());
    let took: Vec<_> = times.lock().unwrap().iter().map(Duration::as_secs).collect();
    assert_eq!(took, [5, 2, 0], "one whose work never began has no time");
}

fn set_all<'a>(keys: &'a [Key]) -> impl FnMut(&mut Transaction) -> Result<(), ()> + Send + 'a {
    move |copy| {
        let acquire = |key| copy.acquire(key, Value::new(b"mine").unwrap(), Ttl::default()).unwrap();
        keys.iter().for_each(acquire);
        Ok(())
    }
}

#[tokio::test]
async fn what_a_request_costs_adds_up() {
    let node = Node::start().await;
    let mut visit = Visit::new(Arc::clone(&node.service));
    admit(&mut visit, ACQUIRE).unwrap();
    // More than a body can have is passed over.
    visit.arrived(16 << 20).unwrap();
    assert_eq!(visit.cost(), 1 + 256);
    // A script was compiled, and changes several keys.
    visit.add(10).unwrap();
    let keys: Vec<Key> = (0..5).map(|key| Key::new(&format!("a/{key}")).unwrap()).collect();
    let named = Keys::new(keys.clone()).unwrap();
    let set = node.service.transact(&mut visit, &named, None, &mut set_all(&keys)).await.unwrap();
    set.in_time().unwrap().1.into_iter().for_each(|unsent| unsent.sent());
    assert_eq!(visit.cost(), 1 + 256 + 10 + 4, "the first change was counted with the request");
}

/// Its bytes do not stand in the way of a request, but in that of others. What it does once more, as often as others change its keys, has
/// to be allowed like any request.
#[tokio::test]
async fn a_request_owes_for_its_bytes_and_for_one_work() {
    let node = Node::start_with(Some(&anonymous("\"acquire\""))).await;
    pause();
    let [mut first, mut second] = [(), ()].map(|()| Visit::new(Arc::clone(&node.service)));
    assert!([&mut first, &mut second].map(|visit| admit(visit, ACQUIRE)).iter().all(Result::is_ok));
    first.arrived(100 * 4_096).unwrap();
    first.add(10).unwrap();
    for visit in [&mut first, &mut second] {
        assert!(matches!(visit.add(1), Err(Failure::RateLimited(_))));
    }
    assert_eq!((first.cost(), second.cost()), (1 + 100 + 10, 1));
}
