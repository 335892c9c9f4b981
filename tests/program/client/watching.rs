//! Watches: after a list nothing is missed, whichever node dies.

use ringfence_client::{Error, Event, Revision, WatchEventName};
use tokio::time::timeout;

use super::{LONG, SOON, cluster};

#[tokio::test]
async fn a_watch_after_a_list_delivers_every_change_once_even_if_its_node_is_killed() {
    let (cluster, client) = cluster().await;
    client.lock("w/before").acquire().await.unwrap().release().await.unwrap();
    let listed = client.list("w/").all().await.unwrap();
    assert!(listed.keys.is_empty());
    let mut watch = client.watch("w/").after(listed.revision);
    let first = client.lock("w/a").and("other").ttl(LONG).holder("me").acquire().await.unwrap();
    let Event { kind, change: event } = timeout(SOON, watch.next()).await.unwrap().unwrap();
    assert_eq!((kind, event.token), (WatchEventName::Granted, Some(first.token())));
    assert_eq!(event.keys.len(), 1, "only what is under the prefix");
    assert_eq!(event.keys[0].fence, first.token());
    let leader = cluster.leader().await.unwrap();
    leader.kill().unwrap();
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let lease = client.lock("w/b").wait(SOON).acquire().await.unwrap();
        tokens.push(lease.token());
        lease.release().await.unwrap();
    }
    let (mut granted, mut last) = (Vec::new(), event.revision);
    while granted.len() < tokens.len() {
        let Event { kind, change: event } = timeout(SOON, watch.next()).await.unwrap().unwrap();
        assert!(event.revision > last);
        last = event.revision;
        if kind == WatchEventName::Granted {
            granted.extend(event.token);
        }
    }
    assert_eq!(granted, tokens);
    let gone = client.watch("").after(Revision(last.0 + 1_000)).next().await.unwrap_err();
    assert!(matches!(gone, Error::HistoryGone { .. }), "{gone:?}");
}
