//! The recipes of docs/recipes.md, run against a real cluster. The functions between the rules are the ones it shows.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, Token};
use ringfence_harness::{Cluster, until};
use tokio::time::sleep;

use crate::support::{PROGRAM, SOON};

const RECIPES: &str = include_str!("../../docs/recipes.md");

// ---
/// Returns an error if the lease was lost: then another machine may have run the job at the same time.
async fn job(client: &Client, store: impl AsyncFn(&str, [(&'static str, String); 3])) -> Result<(), Error> {
    let lock =
        client.lock("reports/nightly").wait(Duration::from_secs(10)).hold_at_least(Duration::from_secs(50));
    let lease = lock.acquire().await?;
    let work = async {
        for part in ["sums", "charts"] {
            store(part, lease.headers("reports/nightly")?).await;
        }
        Ok::<_, Error>(())
    };
    // The work is dropped before the lease can end.
    lease.run(work).await??;
    lease.release().await
}
// ---
/// Waits for its turn, and leads until `rule` ends. After a loss, `rule` is dropped, and it queues up again.
async fn campaign(client: &Client, key: &str, rule: impl AsyncFn(Token)) -> Result<(), Error> {
    let (candidate, rule) = (client.lock(key).ttl(Duration::from_secs(10)), &rule);
    candidate
        .lead(|lease| async move {
            rule(lease.token()).await;
            Ok(())
        })
        .await
}
// ---
/// The coordinator: lets the workers begin together, and returns when each has left. After an error, those who waited begin.
async fn round(client: &Client, key: &str, workers: usize) -> Result<(), Error> {
    let gate = client.lock(key).acquire().await?;
    let all_wait = async {
        loop {
            let view = client.key(key, Consistency::Linearizable).await?;
            // A worker that was restarted may still have its old place.
            let names: BTreeSet<_> =
                view.waiters.iter().filter_map(|waiter| Some(waiter.holder.as_ref()?.as_str())).collect();
            if names.len() >= workers {
                return Ok::<_, Error>(());
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    // Ends with an error when the gate is lost.
    gate.run(all_wait).await??;
    gate.release().await?;
    client.lock(key).acquire().await?.release().await
}

/// A worker, whose name no other one has: begins when the gate opens.
async fn work(client: &Client, key: &str, name: &str, part: impl Future<Output = ()>) -> Result<(), Error> {
    let place = client.lock(key).shared().holder(name).acquire().await?;
    place.run(part).await?;
    place.release().await
}
// ---

#[test]
fn the_document_shows_what_is_tested() {
    let tested = include_str!("recipes.rs");
    // The other languages have tests of their own.
    let shown: Vec<_> =
        RECIPES.split("```rust\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    let parts: Vec<_> = tested.split("// ---\n").collect();
    assert_eq!(shown, parts[1..4]);
}

async fn cluster() -> (Cluster, [Client; 2]) {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let client = || Client::connect(cluster.nodes().iter().map(|node| node.url())).unwrap();
    let clients = [client(), client()];
    (cluster, clients)
}

/// Waits until the gate is closed: a worker that comes before begins at once.
async fn closed(client: &Client, key: &str) {
    let held =
        async || (!client.key(key, Consistency::Linearizable).await.ok()?.holders.is_empty()).then_some(());
    until(SOON, "the gate is closed", held).await.unwrap();
}

#[tokio::test]
async fn a_quick_job_runs_on_one_machine_and_one_that_loses_the_lease_ends_with_an_error() {
    let (_cluster, [a, b]) = cluster().await;
    let stored = Mutex::new(Vec::new());
    let store = async |part: &str, headers: [(&'static str, String); 3]| {
        stored.lock().unwrap().push((part.to_owned(), headers[1].1.clone()));
    };
    job(&a, store).await.unwrap();
    let view = b.key("reports/nightly", Consistency::Linearizable).await.unwrap();
    let [held] = view.holders.as_slice() else { panic!("it is kept: {view:?}") };
    let token = held.token.to_string();
    let expected = ["sums", "charts"].map(|part| (part.to_owned(), token.clone()));
    assert_eq!(*stored.lock().unwrap(), expected);

    b.revoke("reports/nightly", held.token).await.unwrap();
    let revoked = AtomicUsize::new(0);
    let loses = async |_: &str, _| {
        let view = b.key("reports/nightly", Consistency::Linearizable).await.unwrap();
        b.revoke("reports/nightly", view.holders[0].token).await.unwrap();
        revoked.fetch_add(1, SeqCst);
        std::future::pending().await
    };
    let ended = job(&a, loses).await;
    assert!(matches!(ended, Err(Error::Lost(_))) && revoked.load(SeqCst) == 1, "{ended:?}");
}

#[tokio::test]
async fn another_client_goes_on_with_a_lease_that_was_left() {
    let (_cluster, [a, client]) = cluster().await;
    let lease = a.lock("imports/42").acquire().await.unwrap();
    let token = lease.token();
    let work = async {
        // As the document shows it.
        let id = lease.into_id();
        let lease = client.adopt(id).await?;
        assert_eq!(lease.token(), token);
        lease.release().await
    };
    work.await.unwrap();
    let rows: Vec<_> = RECIPES.lines().filter(|line| line.starts_with("| Rust | `")).collect();
    let cells: Vec<_> = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    assert_eq!(cells, ["let id = lease.into_id();", "let lease = client.adopt(id).await?;"]);
}

#[tokio::test]
#[ignore = "slow"]
async fn leaders_follow_one_another_with_rising_epochs() {
    let (_cluster, [a, b]) = cluster().await;
    let led = Mutex::new(Vec::new());
    let lead = |name| {
        let led = &led;
        async move |epoch| {
            led.lock().unwrap().push((name, epoch));
            // The fifth leads for a moment, and all others until they lose.
            if led.lock().unwrap().len() < 5 {
                std::future::pending::<()>().await;
            }
        }
    };
    let depose = async {
        for terms in 1..5 {
            let queued = async || {
                let view = a.key("leader", Consistency::Linearizable).await.ok()?;
                (led.lock().unwrap().len() == terms && view.waiters.len() == 1).then_some(view)
            };
            let view = until(SOON, "one leads and one waits", queued).await.unwrap();
            a.revoke("leader", view.holders[0].token).await.unwrap();
        }
        // Each campaign ends only after it has led to the end.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = campaign(&a, "leader", lead("a")) => ended.unwrap(),
        ended = campaign(&b, "leader", lead("b")) => ended.unwrap(),
        () = depose => unreachable!("it never ends"),
    }
    let led = led.into_inner().unwrap();
    assert!(led.len() >= 5 && led.windows(2).all(|pair| pair[0].1 < pair[1].1), "{led:?}");
    assert!(led.windows(2).take(4).all(|pair| pair[0].0 != pair[1].0), "first come, first served: {led:?}");
}

#[tokio::test]
async fn a_round_begins_with_all_and_ends_when_all_have_left() {
    let (_cluster, [a, b]) = cluster().await;
    let (began, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = async |name| {
        let part = async {
            began.fetch_add(1, SeqCst);
            // All are granted in one step, so nobody waits here for one that has not begun.
            let all = async || (began.load(SeqCst) == 2).then_some(());
            until(SOON, "both have begun", all).await.unwrap();
            sleep(Duration::from_millis(300)).await;
            done.fetch_add(1, SeqCst);
        };
        work(&b, "round/1", name, part).await
    };
    // It dies with its lease: nobody renews or releases that.
    let dies = async || {
        let lease = b
            .lock("round/1")
            .shared()
            .holder("dies")
            .ttl(Duration::from_secs(1))
            .no_renew()
            .acquire()
            .await?;
        let token = lease.token();
        lease.into_id();
        Ok::<_, Error>(token)
    };
    let first = async || {
        closed(&a, "round/1").await;
        let early = began.load(SeqCst);
        let (one, two, dead) = tokio::join!(worker("one"), worker("two"), dies());
        assert_eq!(early, 0);
        one.unwrap();
        two.unwrap();
        dead.unwrap()
    };
    let coordinator = async {
        round(&a, "round/1", 3).await.unwrap();
        assert_eq!((began.load(SeqCst), done.load(SeqCst)), (2, 2));
        a.key("round/1", Consistency::Linearizable).await.unwrap().fence
    };
    let (fence, dead) = tokio::join!(coordinator, first());
    assert!(fence > dead, "the dead one's lease has ended");
}

#[tokio::test]
async fn a_coordinator_that_loses_the_gate_ends_with_an_error() {
    let (_cluster, [a, b]) = cluster().await;
    let lose = async {
        let queued = async || {
            let view = a.key("round/2", Consistency::Linearizable).await.ok()?;
            (view.waiters.len() == 1).then_some(view)
        };
        let view = until(SOON, "the worker waits", queued).await.unwrap();
        a.revoke("round/2", view.holders[0].token).await.unwrap();
    };
    let worker = async {
        closed(&a, "round/2").await;
        work(&b, "round/2", "one", async {}).await
    };
    let (round, began, ()) = tokio::join!(round(&a, "round/2", 2), worker, lose);
    assert!(matches!(round, Err(Error::Lost(_))), "{round:?}");
    began.unwrap();
}
