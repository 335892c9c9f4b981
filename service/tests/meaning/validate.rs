use ringfence_service::Consistency;
use ringfence_wire::{AcquireRequest, Check, Key, LeaseId, Mode, Token, Verdict, VerdictName, WantedKey};

use crate::node::{Node, granted, request};

async fn verdict(node: &Node, token: Token, consistency: Consistency) -> Verdict {
    let check = Check { key: Key::new("a").unwrap(), token };
    node.service.validate(&node.caller, &[check], consistency).await.unwrap()[0]
}

#[tokio::test]
async fn a_linearizable_verdict_is_live_or_stale_or_of_a_token_that_may_be_granted_yet() {
    let node = Node::start().await;
    let grant = node.hold("a").await;
    let live = verdict(&node, grant.token, Consistency::Linearizable).await;
    assert_eq!(live, Verdict { verdict: VerdictName::Live, fence: grant.token });

    node.release(grant.lease_id).await;
    let stale = verdict(&node, grant.token, Consistency::Linearizable).await;
    assert_eq!(stale.verdict, VerdictName::Stale);
    assert!(stale.fence > grant.token, "every token so far is below the fence");
    // Once it was `stale`, which is for good, and then it was granted.
    let next = verdict(&node, stale.fence, Consistency::Linearizable).await;
    assert_eq!(next.verdict, VerdictName::Unknown);
    assert_eq!(node.hold("a").await.token, stale.fence);
    let live = verdict(&node, stale.fence, Consistency::Linearizable).await;
    assert_eq!(live.verdict, VerdictName::Live);
}

#[tokio::test]
async fn a_local_verdict_is_never_live() {
    let node = Node::start().await;
    let Token(token) = node.hold("a").await.token;
    for (asked, expected) in
        [(token - 1, VerdictName::Stale), (token, VerdictName::Unknown), (token + 1, VerdictName::Unknown)]
    {
        let said = verdict(&node, Token(asked), Consistency::Local).await;
        assert_eq!(said, Verdict { verdict: expected, fence: Token(token) }, "{asked}");
    }
}

#[tokio::test]
async fn a_local_verdict_is_stale_above_the_fence_if_this_node_saw_the_end() {
    let node = Node::start().await;
    let keys = vec![WantedKey { key: Key::new("a").unwrap(), mode: Mode::Shared { limit: None } }];
    let shared = AcquireRequest { keys, ..request("a") };
    let first = granted(node.acquire(LeaseId::random(), shared.clone()).await);
    let second = granted(node.acquire(LeaseId::random(), shared).await);
    node.release(second.lease_id).await;
    let said = verdict(&node, second.token, Consistency::Local).await;
    assert_eq!(said, Verdict { verdict: VerdictName::Stale, fence: first.token });
}
