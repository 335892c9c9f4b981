//! How a watch goes on.

use std::time::Duration;

use ringfence_client::{Client, Error, Revision, Watch, WatchEventName};

use crate::played::node::{Asked, Played, SOON};

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 500\n\n";

/// Two nodes, and a client that does not know which of them leads.
async fn two() -> ([Played; 2], Client) {
    let nodes = [Played::new().await, Played::new().await];
    let client = Client::connect(nodes.iter().map(Played::url)).unwrap();
    (nodes, client)
}

/// Which of them is asked next, and what.
async fn asked([one, two]: &[Played; 2]) -> (usize, Asked) {
    tokio::select! {
        asked = one.asked() => (0, asked),
        asked = two.asked() => (1, asked),
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
async fn a_watch_goes_on_at_the_next_node_after_the_last_whole_event() {
    let (nodes, client) = two().await;
    let mut watch = client.watch("a/ü");
    assert_eq!(watch.revision(), None);
    let whole = event(13);
    let (half, rest) = whole.split_at(whole.len() - 1);
    let play = async {
        let (first, mut asked) = asked(&nodes).await;
        assert_eq!(asked.path, "/v1/watch?prefix=a%2F%C3%BC");
        asked.say(&format!("{STREAM}id: 10\n\n{}: here\n\n{}{half}", event(11), event(12))).await;
        drop(asked);
        let mut asked = nodes[1 - first].asked().await;
        assert_eq!(asked.path, "/v1/watch?prefix=a%2F%C3%BC&after=12");
        asked.say(&format!("{STREAM}id: 12\n\n{half}{rest}")).await;
        asked
    };
    let read = async {
        for revision in [11, 12, 13] {
            assert_eq!(next(&mut watch).await, Ok(revision));
            assert_eq!(watch.revision(), Some(Revision(revision)));
        }
    };
    let (mut asked, ()) = tokio::join!(play, read);
    // Who stops waiting for the next misses nothing.
    asked.say(half).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), watch.next()).await.is_err());
    asked.say(rest).await;
    assert_eq!(next(&mut watch).await, Ok(13));
}

#[tokio::test]
async fn an_id_without_an_event_is_where_a_watch_goes_on() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut watch = client.watch("");
    let play = async {
        node.asked().await.say(&format!("{STREAM}id: 10\n\nevent: cut-off\ndata: {{}}\n\n")).await;
        let mut asked = node.asked().await;
        assert_eq!(asked.path, "/v1/watch?prefix=&after=10");
        asked.say(&format!("{STREAM}{}", event(11))).await;
        asked
    };
    let (_asked, revision) = tokio::join!(play, next(&mut watch));
    assert_eq!(revision, Ok(11));
}

#[tokio::test]
async fn history_is_gone_only_when_no_node_keeps_it() {
    const GONE: &str =
        r#"{"type":"urn:ringfence:problem:history-gone","title":"t","status":410,"detail":"d"}"#;
    let (nodes, client) = two().await;
    let mut watch = client.watch("").after(Revision(7));
    let play = async {
        let (first, one) = asked(&nodes).await;
        one.answer("410 Gone", GONE).await;
        nodes[1 - first].asked().await.say(&format!("{STREAM}{}", event(8))).await;
    };
    let ((), revision) = tokio::join!(play, next(&mut watch));
    assert_eq!(revision, Ok(8));

    let mut watch = client.watch("").after(Revision(7));
    let say = async |node: &Played| node.asked().await.answer("410 Gone", GONE).await;
    let [one, two] = &nodes;
    let ((), (), result) = tokio::join!(say(one), say(two), next(&mut watch));
    assert!(matches!(&result, Err(Error::HistoryGone { after: 7, .. })), "{result:?}");
}

/// Its silence began anew whenever somebody asked for the next event, as a `select!` does each time.
#[tokio::test]
async fn a_silent_stream_is_left_also_by_who_does_not_wait_for_long_at_a_time() {
    const A_MOMENT: Duration = Duration::from_millis(10);
    let (nodes, client) = two().await;
    let mut watch = client.watch("");
    let play = async {
        let (first, mut asked) = asked(&nodes).await;
        asked.say(&format!("{STREAM}{}", event(11))).await;
        (first, asked)
    };
    let ((first, _silent), revision) = tokio::join!(play, next(&mut watch));
    assert_eq!(revision, Ok(11));
    for _ in 0..3 {
        assert!(tokio::time::timeout(A_MOMENT, watch.next()).await.is_err());
        // What is under way in the sockets needs no time: it stands still only for the silence to grow.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(20)).await;
        tokio::time::resume();
    }
    let play = async {
        let mut asked = nodes[1 - first].asked().await;
        assert_eq!(asked.path, "/v1/watch?prefix=&after=11");
        asked.say(&format!("{STREAM}{}", event(12))).await;
        asked
    };
    let (_asked, revision) = tokio::join!(play, next(&mut watch));
    assert_eq!(revision, Ok(12));
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_and_not_asked_for_without_end() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut watch = client.watch("");
    let play = async {
        node.asked()
            .await
            .say(&format!("{STREAM}{}id: 12\nevent: granted\ndata: nonsense\n\n", event(11)))
            .await;
    };
    let ((), result) = tokio::join!(play, next(&mut watch));
    assert_eq!(result, Ok(11));
    let play = async {
        let asked = node.asked().await;
        assert_eq!(asked.path, "/v1/watch?prefix=&after=11");
    };
    let again = async {
        let unreadable = watch.next().await.unwrap_err();
        assert!(matches!(unreadable, Error::Unavailable { .. }), "{unreadable:?}");
        let _ = tokio::time::timeout(Duration::from_millis(200), watch.next()).await;
    };
    tokio::join!(play, again);
}
