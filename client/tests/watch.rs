//! How a watch goes on: against servers that say what the test tells them, and break off where it wants.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use ringfence_client::{Client, Error, Revision, Watch, WatchEventName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(30);
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 500\n\n";

/// A node that is played by the test.
struct Played(TcpListener);

/// A request that it got.
struct Asked {
    path: String,
    stream: TcpStream,
}

impl Played {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    async fn asked(&self) -> Asked {
        let (mut stream, _) = tokio::time::timeout(SOON, self.0.accept()).await.unwrap().unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap().into());
        }
        let path = head.split(' ').nth(1).unwrap().to_owned();
        Asked { path, stream }
    }
}

impl Asked {
    async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
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
    let (one, two) = (Played::new().await, Played::new().await);
    let client = Client::connect([one.url(), two.url()]).unwrap();
    let mut watch = client.watch("a/ü");
    assert_eq!(watch.revision(), None);
    let whole = event(13);
    let (half, rest) = whole.split_at(whole.len() - 1);
    let play = async {
        let mut asked = one.asked().await;
        assert_eq!(asked.path, "/v1/watch?prefix=a%2F%C3%BC");
        asked.say(&format!("{STREAM}id: 10\n\n{}: here\n\n{}{half}", event(11), event(12))).await;
        drop(asked);
        let mut asked = two.asked().await;
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
    let gone = format!("HTTP/1.1 410 Gone\r\ncontent-length: {}\r\n\r\n{GONE}", GONE.len());
    let (one, two) = (Played::new().await, Played::new().await);
    let client = Client::connect([one.url(), two.url()]).unwrap();
    let mut watch = client.watch("").after(Revision(7));
    let play = async {
        one.asked().await.say(&gone).await;
        let mut asked = two.asked().await;
        asked.say(&format!("{STREAM}{}", event(8))).await;
    };
    let ((), revision) = tokio::join!(play, next(&mut watch));
    assert_eq!(revision, Ok(8));

    let mut watch = client.watch("").after(Revision(7));
    let say = async |node: &Played| node.asked().await.say(&gone).await;
    let ((), (), result) = tokio::join!(say(&one), say(&two), next(&mut watch));
    assert!(matches!(&result, Err(Error::HistoryGone { after: 7, .. })), "{result:?}");
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
