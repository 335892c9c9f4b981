//! The calls of operators and tools.

use ringfence_client::wire::{BatchAcquire, BatchBody, BatchRelease, Check, Metadata, Mode, Ttl, WantedKey};
use ringfence_client::{Consistency, Error, Key, LeaseId, Operation, Token, VerdictName};
use ringfence_harness::until;

use super::{LONG, SOON, client_of, cluster, is_free};

#[tokio::test]
async fn a_listing_has_every_key_once_over_its_pages() {
    let (_cluster, client) = cluster().await;
    let keys: Vec<String> = (0..25).map(|number| format!("list/{number:02}")).collect();
    let lease = client.lock_all(&keys).acquire().await.unwrap();
    let _other = client.lock("other").acquire().await.unwrap();
    let mut listing = client.list("list/").page_size(10);
    let (mut sizes, mut seen) = (Vec::new(), Vec::new());
    while let Some(page) = listing.next_page().await.unwrap() {
        sizes.push(page.keys.len());
        seen.extend(page.keys.into_iter().map(|view| view.key.as_str().to_owned()));
    }
    assert_eq!((sizes, &seen), (vec![10, 10, 5], &keys));
    let all = client.list("").page_size(7).consistency(Consistency::Local).all().await.unwrap();
    assert_eq!(all.keys.len(), 26);
    assert!(all.revision.0 >= lease.token().0);
    let refused = client.list("").page_size(0).all().await.unwrap_err();
    assert!(matches!(refused, Error::Rejected(problem) if problem.field.as_deref() == Some("limit")));
}

#[tokio::test]
async fn tokens_are_validated_one_by_one_and_many_at_once() {
    let (_cluster, client) = cluster().await;
    let stale = client.lock("ä/ö ü").acquire().await.unwrap();
    let dead = stale.token();
    stale.release().await.unwrap();
    let lease = client.lock("ä/ö ü").acquire().await.unwrap();
    for (consistency, live) in
        [(Consistency::Linearizable, VerdictName::Live), (Consistency::Local, VerdictName::Unknown)]
    {
        let verdict = async |token| client.validate("ä/ö ü", token, consistency).await.unwrap();
        assert_eq!(verdict(lease.token()).await.verdict, live);
        let key = Key::new("ä/ö ü").unwrap();
        let checks: Vec<Check> =
            (0..1_500).map(|_| Check { key: key.clone(), token: lease.token() }).collect();
        let verdicts = client.validate_many(&checks, consistency).await.unwrap();
        assert_eq!(verdicts.len(), 1_500);
        assert!(verdicts.iter().all(|verdict| verdict.verdict == live));
    }
    let view = client.key("ä/ö ü", Consistency::Linearizable).await.unwrap();
    assert_eq!(view.holders[0].token, lease.token(), "the key is escaped in the path, too");
    let verdict = client.validate("ä/ö ü", dead, Consistency::Linearizable).await.unwrap();
    assert_eq!((verdict.verdict, verdict.fence), (VerdictName::Stale, lease.token()));
}

#[tokio::test]
async fn a_batch_is_answered_one_by_one() {
    let (_cluster, client) = cluster().await;
    let _held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    let acquire = |key: &str| {
        Operation::Acquire(BatchAcquire {
            lease_id: LeaseId::random(),
            keys: vec![WantedKey { key: Key::new(key).unwrap(), mode: Mode::Exclusive }],
            ttl_ms: Ttl::default(),
            keep_place: false,
            holder: None,
            metadata: Metadata::default(),
        })
    };
    let release = Operation::Release(BatchRelease { lease_id: LeaseId::random() });
    let results = client.batch(vec![acquire("free"), acquire("held"), release]).await.unwrap();
    assert_eq!(results.iter().map(|result| result.status).collect::<Vec<_>>(), [201, 409, 204]);
    assert!(matches!(&results[0].body, Some(BatchBody::Grant(_))));
}

#[tokio::test]
async fn a_token_that_is_not_live_cannot_be_revoked() {
    let (_cluster, client) = cluster().await;
    let lease = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let refused = client.revoke("a", Token(lease.token().0 + 1)).await.unwrap_err();
    assert!(matches!(refused, Error::Rejected(problem) if problem.status == 409));
    client.revoke("a", lease.token()).await.unwrap();
    is_free(&client, "a").await;
    lease.into_id();
}

#[tokio::test]
async fn operators_change_the_members_and_the_leader() {
    let (cluster, client) = cluster().await;
    let status = client.cluster().await.unwrap();
    assert_eq!(status.members.len(), 3);
    let leader = status.leader.unwrap();
    let next = status.members.keys().copied().find(|id| *id != leader).unwrap();
    client.transfer_leadership(Some(next)).await.unwrap();
    let moved = async || (client.cluster().await.ok()?.leader == Some(next)).then_some(());
    until(SOON, "the other leads", moved).await.unwrap();
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    client.remove_member(leader).await.unwrap();
    client.force_remove_member(leader).await.unwrap();
    let removed = async || (client.cluster().await.ok()?.members.len() == 2).then_some(());
    until(SOON, "two are left", removed).await.unwrap();
    let refused = client.transfer_leadership(Some(9)).await.unwrap_err();
    assert!(matches!(refused, Error::Rejected(_)), "{refused:?}");
    // The client is still configured with the removed node.
    let lease = client_of(&cluster).lock("b").wait(SOON).acquire().await.unwrap();
    lease.release().await.unwrap();
}
