//! How a watch goes on after failures.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_client::{Client, Error, Revision, Watch, WatchEventName};

use crate::scripted::node::{Received, SOON, ScriptedNode};

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 500\n\n";

const GONE: &str = r#"{"type":"urn:ringfence:problem:history-gone","title":"t","status":410,"detail":"d"}"#;

/// Two nodes, and a client that does not know the leader.
async fn two() -> ([ScriptedNode; 2], Client) {
    let nodes = [ScriptedNode::new().await, ScriptedNode::new().await];
    let client = Client::connect(nodes.iter().map(ScriptedNode::url)).unwrap();
    (nodes, client)
}

/// Which of them receives the next request, and the request.
async fn receive([one, two]: &[ScriptedNode; 2]) -> (usize, Received) {
    tokio::select! {
        request = one.receive() => (0, request),
        request = two.receive() => (1, request),
    }
}

fn event(revision: u64) -> String {
    let data = format!(
        r#"{{"revision":{revision},"keys":[{{"key":"a","mode":"exclusive","limit":null,"fence":{revision}}}],"token":{revision},"holder":null,"reason":null}}"#
    );
    format!("id: {revision}\nevent: granted\ndata: {data}\n\n")
}

async fn next(watch: &mut Watch) -> Result<u64, Error> {
    let event = tokio::time::timeout(SOON, watch.next()).await.unwrap()?;
    assert_eq!(event.kind, WatchEventName::Granted);
    Ok(event.change.revision.0)
}

#[tokio::test]
async fn a_watch_goes_on_at_another_node_after_the_last_whole_event() {
    let (nodes, client) = two().await;
    let mut watch = client.watch("a/ü");
    assert_eq!(watch.revision(), None);
    let whole = event(13);
    let (half, rest) = whole.split_at(whole.len() - 1);
    let script = async {
        let (first, mut request) = receive(&nodes).await;
        assert_eq!(request.path, "/v1/watch?prefix=a%2F%C3%BC");
        request.write(&format!("{STREAM}id: 10\n\n{}: here\n\n{}{half}", event(11), event(12))).await;
        drop(request);
        let mut request = nodes[1 - first].receive().await;
        assert_eq!(request.path, "/v1/watch?prefix=a%2F%C3%BC&after=12");
        request.write(&format!("{STREAM}id: 12\n\n{half}{rest}")).await;
        request
    };
    let read = async {
        for revision in [11, 12, 13] {
            assert_eq!(next(&mut watch).await, Ok(revision));
            assert_eq!(watch.revision(), Some(Revision(revision)));
        }
    };
    let (mut request, ()) = tokio::join!(script, read);
    // Dropping the future loses nothing.
    request.write(half).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), watch.next()).await.is_err());
    request.write(rest).await;
    assert_eq!(next(&mut watch).await, Ok(13));
}

#[tokio::test]
async fn a_watch_goes_on_after_an_id_without_an_event() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut watch = client.watch("");
    let script = async {
        node.receive().await.write(&format!("{STREAM}id: 10\n\nevent: cut-off\ndata: {{}}\n\n")).await;
        let mut request = node.receive().await;
        assert_eq!(request.path, "/v1/watch?prefix=&after=10");
        request.write(&format!("{STREAM}{}", event(11))).await;
        request
    };
    let (_open, revision) = tokio::join!(script, next(&mut watch));
    assert_eq!(revision, Ok(11));
}

#[tokio::test]
async fn history_is_gone_only_if_no_node_keeps_it() {
    let (nodes, client) = two().await;
    let mut watch = client.watch("").after(Revision(7));
    let script = async {
        let (first, one) = receive(&nodes).await;
        one.respond("410 Gone", GONE).await;
        nodes[1 - first].receive().await.write(&format!("{STREAM}{}", event(8))).await;
    };
    let ((), revision) = tokio::join!(script, next(&mut watch));
    assert_eq!(revision, Ok(8));

    let mut watch = client.watch("").after(Revision(7));
    let gone = async |node: &ScriptedNode| node.receive().await.respond("410 Gone", GONE).await;
    let [one, two] = &nodes;
    let ((), (), result) = tokio::join!(gone(one), gone(two), next(&mut watch));
    assert!(matches!(&result, Err(Error::HistoryGone { after: 7, .. })), "{result:?}");
}

#[tokio::test]
async fn a_watch_goes_on_at_another_node_if_one_has_too_many() {
    const FULL: &str = r#"{"type":"urn:ringfence:problem:overloaded","title":"t","status":429,"detail":"d"}"#;
    let (nodes, client) = two().await;
    let mut watch = client.watch("").after(Revision(7));
    let script = async {
        let (first, one) = receive(&nodes).await;
        let other = &nodes[1 - first];
        one.respond("410 Gone", GONE).await;
        other.receive().await.respond("429 Too Many Requests", FULL).await;
        // The same node once more: that the history is gone there is no news.
        nodes[first].receive().await.respond("410 Gone", GONE).await;
        other.receive().await.write(&format!("{STREAM}{}", event(8))).await;
    };
    let ((), revision) = tokio::join!(script, next(&mut watch));
    assert_eq!(revision, Ok(8));
}

/// The silence once began anew with each call of `next`, as in a `select!` loop.
#[tokio::test]
async fn a_silent_stream_is_left_even_if_each_wait_for_an_event_is_short() {
    const A_MOMENT: Duration = Duration::from_millis(10);
    let (nodes, client) = two().await;
    let mut watch = client.watch("");
    let script = async {
        let (first, mut request) = receive(&nodes).await;
        request.write(&format!("{STREAM}{}", event(11))).await;
        (first, request)
    };
    let ((first, _silent), revision) = tokio::join!(script, next(&mut watch));
    assert_eq!(revision, Ok(11));
    for _ in 0..3 {
        assert!(tokio::time::timeout(A_MOMENT, watch.next()).await.is_err());
        // Time is paused only to jump: sockets need it running.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(20)).await;
        tokio::time::resume();
    }
    let script = async {
        let mut request = nodes[1 - first].receive().await;
        assert_eq!(request.path, "/v1/watch?prefix=&after=11");
        request.write(&format!("{STREAM}{}", event(12))).await;
        request
    };
    let (_open, revision) = tokio::join!(script, next(&mut watch));
    assert_eq!(revision, Ok(12));
}

#[tokio::test]
async fn an_unreadable_event_is_an_error_and_not_requested_in_a_loop() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut watch = client.watch("");
    let script = async {
        node.receive()
            .await
            .write(&format!("{STREAM}{}id: 12\nevent: granted\ndata: nonsense\n\n", event(11)))
            .await;
    };
    let ((), result) = tokio::join!(script, next(&mut watch));
    assert_eq!(result, Ok(11));
    let script = async {
        let request = node.receive().await;
        assert_eq!(request.path, "/v1/watch?prefix=&after=11");
    };
    let again = async {
        let unreadable = watch.next().await.unwrap_err();
        assert!(matches!(unreadable, Error::Unavailable { .. }), "{unreadable:?}");
        let _ = tokio::time::timeout(Duration::from_millis(200), watch.next()).await;
    };
    tokio::join!(script, again);
}

/// It once tried again in silence, for ever, at a node that was removed from its cluster.
#[tokio::test]
async fn a_watch_tells_each_reason_once_why_it_gets_nothing() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let told = Arc::<Mutex<Vec<String>>>::default();
    let tells = Arc::clone(&told);
    let mut watch = client.watch("a").telling(move |why| tells.lock().unwrap().push(why.to_owned()));
    let unavailable = |why: &str| {
        format!(r#"{{"type":"urn:ringfence:problem:unavailable","title":"t","status":503,"detail":"{why}"}}"#)
    };
    let script = async {
        for last in [1, 2] {
            let mut request = node.receive().await;
            request.write(&format!("{STREAM}{}", event(last))).await;
            drop(request);
            for why in ["removed", "removed", "stopping", "removed"] {
                node.receive().await.respond("503 Service Unavailable", &unavailable(why)).await;
            }
        }
        let mut request = node.receive().await;
        request.write(&format!("{STREAM}{}", event(3))).await;
        request
    };
    let read = async {
        for revision in 1..=3 {
            assert_eq!(next(&mut watch).await, Ok(revision));
        }
    };
    tokio::join!(script, read);
    let reasons = ["removed", "stopping", "removed", "stopping"].map(str::to_owned);
    // A busy machine may find other reasons, too.
    let told = told.lock().unwrap();
    let told: Vec<_> = told.iter().filter(|why| reasons.contains(why)).cloned().collect();
    assert_eq!(told, reasons);
}
