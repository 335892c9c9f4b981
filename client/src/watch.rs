//! A watch that survives the failure of nodes.
//!
//! The cluster sends events with their revisions as ids. If the connection ends, or is silent for long, the watch asks
//! another node for the events after the last id. So nothing is missed or delivered twice, unless the cluster no longer
//! keeps events that old.

mod sse;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Bytes;
use ringfence_tls::cut;
use ringfence_wire::{CLUSTER_HEADER, ProblemKind, Revision, WatchEvent, WatchEventName};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};

use self::sse::{Frame, Parser};
use crate::Error;
use crate::attempts::{ATTEMPT_TIMEOUT, RETRY_FOR};
use crate::backoff::Backoff;
use crate::cluster::Cluster;
use crate::outcome::Outcome;
use crate::transport::{Cause, Distrust, Failure, Node, Request, Streaming, encode};

/// A stream is broken after this silence: a node with contact to a leader sends something every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// A change of a lease, as far as it concerns the watched keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// What happened.
    pub kind: WatchEventName,
    /// To which lease, and which of its keys have the watched prefix.
    #[serde(flatten)]
    pub change: WatchEvent,
}

/// A watch of the keys under a prefix, from [`Client::watch`](crate::Client::watch).
#[derive(Debug)]
#[must_use = "a watch requests nothing until its events are read"]
pub struct Watch {
    cluster: Arc<Cluster>,
    prefix: String,
    /// Every event up to here is in `events`, or was delivered.
    after: Option<u64>,
    stream: Option<Stream>,
    was_connected: bool,
    distrust: Distrust,
    /// How many nodes in a row no longer keep the events to go on from.
    gone: usize,
    backoff: Backoff,
    events: VecDeque<Event>,
    /// What to report after these events.
    error: Option<Error>,
    trouble: Trouble,
}

/// Is told why no node can be watched.
type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// Tells why a watch gets nothing, while it tries again.
#[derive(Default)]
struct Trouble {
    tell: Option<Tell>,
    /// Since it was connected last.
    told: Vec<Reason>,
}

/// What makes two reasons one, whatever their words say of times and revisions, which are others at each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    /// This server and the client do not trust each other.
    Untrusted(String, Cause),
    /// This server no longer keeps the events to go on from.
    Gone(String),
    /// In constant words.
    Said(String),
}

/// A reason, and its words.
type Why = (Reason, String);

/// The most reasons that are told. More would be one in many words.
const MAX_TOLD: usize = 16;

impl Trouble {
    fn note(&mut self, (reason, why): Why) {
        if let Some(tell) = &self.tell
            && self.told.len() < MAX_TOLD
            && !self.told.contains(&reason)
        {
            self.told.push(reason);
            tell(&why);
        }
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trouble").field(&self.told).finish()
    }
}

#[derive(Debug)]
struct Stream {
    node: Arc<Node>,
    streaming: Streaming,
    parser: Parser,
    heard_at: Instant,
}

impl Watch {
    pub(crate) fn new(cluster: Arc<Cluster>, prefix: String) -> Self {
        Self {
            cluster,
            prefix,
            after: None,
            stream: None,
            was_connected: false,
            distrust: Distrust::new(),
            gone: 0,
            backoff: Backoff::default(),
            events: VecDeque::new(),
            error: None,
            trouble: Trouble::default(),
        }
    }

    /// Begins after `revision`, such as that of a [listing](crate::Listing::all). By default it begins now.
    pub fn after(self, revision: Revision) -> Self {
        Self { after: Some(revision.0), ..self }
    }

    /// Has `tell` told why no node can be watched, each reason once until one can be. Without it, a watch that has begun tries again in
    /// silence, for ever.
    pub fn telling(mut self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.trouble.tell = Some(Box::new(tell));
        self
    }

    /// The revision up to which every event was delivered: another watch can go on from there. `None` before the first
    /// response.
    pub fn revision(&self) -> Option<Revision> {
        match self.events.front() {
            Some(event) => Some(Revision(event.change.revision.0.saturating_sub(1))),
            None => self.after.map(Revision),
        }
    }

    /// The next event, in the order of revisions. It waits for ever, through failures of nodes and of the whole cluster; only
    /// the first connection has to succeed within 5 s ([`Error::Unavailable`]). [`Error::HistoryGone`] is final: list again,
    /// and watch from there. Once the client is closed, it fails with [`Error::Closed`].
    /// Dropping this future loses nothing.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let cluster = Arc::clone(&self.cluster);
        cluster.while_open(self.awaited()).await
    }

    async fn awaited(&mut self) -> Result<Event, Error> {
        if !self.was_connected {
            self.cluster.nodes.resolve().await;
        }
        let begun = Instant::now();
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            if self.stream.is_some() {
                self.read().await;
                continue;
            }
            match self.connect().await? {
                None => {}
                Some(why)
                    if !self.was_connected
                        && (begun.elapsed() >= RETRY_FOR || self.distrust.is_of_all(&self.cluster.nodes)) =>
                {
                    return Err(Error::Unavailable { why: why.1 });
                }
                Some(why) => {
                    self.trouble.note(why);
                    sleep(self.backoff.next()).await;
                }
            }
        }
    }

    /// Reads a piece of the stream. If it has ended, the watch goes on at another node.
    async fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let silent_at = stream.heard_at + SILENCE;
        let piece = timeout_at(silent_at, stream.streaming.response.body_mut().frame()).await;
        let Ok(Some(Ok(piece))) = piece else {
            self.cluster.nodes.failed(&stream.node, None);
            self.stream = None;
            sleep(self.backoff.next()).await;
            return;
        };
        stream.heard_at = Instant::now();
        let Some(bytes) = piece.data_ref() else { return };
        if let Err(why) = self.parse(bytes) {
            self.stream = None;
            self.after = self.events.back().map(|event| event.change.revision.0).or(self.after);
            self.error = Some(Error::Unavailable { why: format!("an unreadable stream: {}", cut(why)) });
        } else if !self.events.is_empty() {
            self.backoff.reset();
        }
    }

    fn parse(&mut self, bytes: &Bytes) -> Result<(), String> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        for frame in stream.parser.read(bytes)? {
            let event = event(&frame).map_err(|error| format!("{}: {error}", frame.event))?;
            self.events.extend(event);
        }
        self.after = stream.parser.last_id;
        Ok(())
    }

    /// Connects to a node. Returns why it could not for now, or an error that is final.
    async fn connect(&mut self) -> Result<Option<Why>, Error> {
        let nodes = &self.cluster.nodes;
        let (node, asked) = (nodes.for_watch(), Instant::now());
        let opened = self.open(&node).await;
        self.distrust.note(&node, &opened);
        let response = match opened {
            Ok(streaming) if streaming.response.status() == StatusCode::OK => {
                let parser = Parser::after(self.after);
                self.stream = Some(Stream { node, streaming, parser, heard_at: Instant::now() });
                (self.was_connected, self.gone) = (true, 0);
                self.trouble.told.clear();
                return Ok(None);
            }
            Ok(streaming) => node.server.finish(streaming, ATTEMPT_TIMEOUT).await,
            Err(failure) => Err(failure),
        };
        let silent_since = response.is_err().then_some(asked);
        let cause = if let Err(Failure::Untrusted(cause, _)) = &response { Some(*cause) } else { None };
        let server = || node.server.to_string();
        let said = |why: String| {
            let reason = cause.map(|cause| Reason::Untrusted(server(), cause));
            Ok(Some((reason.unwrap_or_else(|| Reason::Said(why.clone())), why)))
        };
        match Outcome::of(response, |_| Ok(())) {
            Outcome::Refused(problem) if problem.kind == ProblemKind::HistoryGone => {
                nodes.failed(&node, None);
                self.gone += 1;
                match self.after {
                    Some(after) if self.gone >= nodes.count() => {
                        Err(Error::HistoryGone { after, detail: problem.detail })
                    }
                    // Another node may keep more.
                    _ => Ok(Some((Reason::Gone(server()), problem.detail))),
                }
            }
            // Another node may have room for one more watch. This one may keep the events.
            Outcome::Limited(problem, _) => {
                nodes.failed(&node, None);
                self.gone = 0;
                said(problem.detail)
            }
            Outcome::Refused(problem) => Err(Error::Rejected(problem)),
            Outcome::NotDone(why) | Outcome::Ambiguous(why) => {
                nodes.failed(&node, silent_since);
                said(why)
            }
            Outcome::Done(()) => said("a success that is no stream".to_owned()),
        }
    }

    /// Opens the stream at `node`, of which it is known then to which cluster it belongs.
    async fn open(&self, node: &Arc<Node>) -> Result<Streaming, Failure> {
        let nodes = &self.cluster.nodes;
        if !nodes.is_met(node) {
            nodes.meet(node).await?;
        }
        let streaming = node.server.open(&self.request(), ATTEMPT_TIMEOUT).await?;
        let cluster = streaming.response.headers().get(CLUSTER_HEADER);
        let is_done = streaming.response.status() == StatusCode::OK;
        let is_own = nodes.check_cluster(node, cluster, is_done);
        is_own.map(|()| streaming).map_err(Failure::NotSent)
    }

    /// The position is in the query: unlike a browser, this client writes a new URL each time.
    fn request(&self) -> Request {
        let after = self.after.map(|after| format!("&after={after}")).unwrap_or_default();
        Request::get(format!("/v1/watch?prefix={}{after}", encode(&self.prefix)))
    }
}

/// The change that a frame reports; `None` if it is of another kind.
fn event(frame: &Frame) -> serde_json::Result<Option<Event>> {
    let Some(kind) = WatchEventName::ALL.iter().find(|name| name.as_str() == frame.event) else {
        return Ok(None);
    };
    Ok(Some(Event { kind: *kind, change: serde_json::from_str(&frame.data)? }))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ringfence_wire::{EndReason, Token};
    use tokio_rustls::rustls::AlertDescription;

    use super::*;

    /// `ringfence watch` printed each of them: a certificate that ended 3 seconds ago, 4 seconds ago, …
    #[test]
    fn a_reason_is_told_once_whatever_its_words_say_of_times() {
        let told = Arc::<Mutex<Vec<String>>>::default();
        let tells = Arc::clone(&told);
        let tell: Tell = Box::new(move |why| tells.lock().unwrap().push(why.to_owned()));
        let mut trouble = Trouble { tell: Some(tell), ..Trouble::default() };
        let untrusted = |server: &str| Reason::Untrusted(server.to_owned(), Cause::Ended);
        let own = |alert| Reason::Untrusted("a".to_owned(), Cause::Own(alert));
        let said = |why: &str| Reason::Said(why.to_owned());
        for (reason, why) in [
            (untrusted("a"), "3 s ago"),
            (untrusted("a"), "4 s ago"),
            (untrusted("b"), "4 s ago"),
            (Reason::Gone("a".to_owned()), "after 7"),
            (Reason::Gone("a".to_owned()), "after 8"),
            (said("stopping"), "stopping"),
            (untrusted("a"), "5 s ago"),
            (own(AlertDescription::CertificateExpired), "ended 6 s ago"),
            (own(AlertDescription::UnknownCA), "unknown"),
            (own(AlertDescription::CertificateExpired), "ended 7 s ago"),
        ] {
            trouble.note((reason, why.to_owned()));
        }
        let once = ["3 s ago", "4 s ago", "after 7", "stopping", "ended 6 s ago", "unknown"];
        assert_eq!(*told.lock().unwrap(), once);
    }

    #[test]
    fn a_change_names_its_keys_and_an_unknown_kind_is_ignored() {
        let read =
            |event: &str, data: &str| super::event(&Frame { event: event.to_owned(), data: data.to_owned() });
        let data = r#"{"revision":7,"keys":[{"key":"a/b","mode":"shared","limit":3,"fence":5}],
            "token":6,"holder":"me","reason":"abandoned","more":1}"#;
        let Event { kind, change } = read("released", data).unwrap().unwrap();
        assert_eq!(
            (kind, change.revision, change.token),
            (WatchEventName::Released, Revision(7), Some(Token(6)))
        );
        assert_eq!((change.keys[0].key.as_str(), change.keys[0].fence), ("a/b", Token(5)));
        assert_eq!(change.reason, Some(EndReason::Abandoned));
        let waits = r#"{"revision":8,"keys":[{"key":"a","mode":"exclusive","limit":null,"fence":5}],
            "token":null,"holder":null,"reason":null}"#;
        assert_eq!(read("queued", waits).unwrap().unwrap().change.token, None);
        assert_eq!(read("cut-off", "{}").unwrap(), None);
        assert!(read("granted", "{}").is_err());
    }
}
