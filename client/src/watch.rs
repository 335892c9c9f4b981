//! A watch that goes on by itself.
//!
//! The cluster sends events with their revisions as ids. Where the connection ends, or is silent for long, the watch asks
//! another node for what came after the last id that it saw: so nothing is missed and nothing comes
//! twice, unless the cluster does not keep so old events any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_wire::Revision;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout_at};

use crate::backoff::Backoff;
use crate::call::ATTEMPT;
use crate::client::Shared;
use crate::events::Parser;
use crate::exchange::{Answer, Call, Failure, Node, Opened};
use crate::fate::{Fate, PATIENCE, fate};
use crate::{Error, Event};

/// A stream that is silent for so long is broken: the cluster says something every 15 s, if only that it is there.
const SILENCE: Duration = Duration::from_secs(45);

/// A watch of the keys under a prefix, from [`Client::watch`](crate::Client::watch).
#[derive(Debug)]
#[must_use = "a watch asks nothing until its events are asked for"]
pub struct Watch {
    shared: Arc<Shared>,
    prefix: String,
    /// Every event up to here is in `events`, or was given out.
    after: Option<u64>,
    stream: Option<Stream>,
    was_connected: bool,
    /// How many nodes in a row do not keep so old events.
    gone: usize,
    backoff: Backoff,
    events: VecDeque<Event>,
    /// What to say when these are given out.
    trouble: Option<Error>,
}

#[derive(Debug)]
struct Stream {
    node: Arc<Node>,
    opened: Opened,
    parser: Parser,
    /// When the last piece came.
    heard_at: Instant,
}

/// Why there is no stream.
enum NoStream {
    /// There may be one elsewhere, or later.
    Again(String),
    Failed(Error),
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>, prefix: String) -> Self {
        Self {
            shared,
            prefix,
            after: None,
            stream: None,
            was_connected: false,
            gone: 0,
            backoff: Backoff::default(),
            events: VecDeque::new(),
            trouble: None,
        }
    }

    /// Begins after `revision`, such as that of a [listing](crate::Listing::all); without it, with what happens from now on.
    pub fn after(self, revision: Revision) -> Self {
        Self { after: Some(revision.0), ..self }
    }

    /// Up to which revision every event was given out: where another watch could go on. `None` before the first answer.
    pub fn revision(&self) -> Option<Revision> {
        match self.events.front() {
            Some(event) => Some(Revision(event.change.revision.0.saturating_sub(1))),
            None => self.after.map(Revision),
        }
    }

    /// The next event, in the order of revisions. It waits for ever, through failures of nodes and of the whole cluster; only
    /// the first connection has to come about within 5 s ([`Error::Unavailable`]). [`Error::HistoryGone`] is for good: list
    /// anew, and watch from there. If this future is dropped, nothing is missed.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let begun = Instant::now();
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(error) = self.trouble.take() {
                return Err(error);
            }
            if self.stream.is_some() {
                self.read().await;
                continue;
            }
            match self.open().await {
                Ok(()) => {}
                Err(NoStream::Failed(error)) => return Err(error),
                Err(NoStream::Again(why)) if !self.was_connected && begun.elapsed() >= PATIENCE => {
                    return Err(Error::Unavailable { why });
                }
                Err(NoStream::Again(_)) => sleep(self.backoff.next()).await,
            }
        }
    }

    /// Reads a piece of the stream. One that has ended is given up, and the next is that of another node.
    async fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let silent_at = stream.heard_at + SILENCE;
        let piece = timeout_at(silent_at, stream.opened.response.body_mut().frame()).await;
        let Ok(Some(Ok(piece))) = piece else {
            self.shared.endpoints.failed(&stream.node);
            self.stream = None;
            sleep(self.backoff.next()).await;
            return;
        };
        stream.heard_at = Instant::now();
        let Some(bytes) = piece.data_ref() else { return };
        let mut wrong = None;
        let events = &mut self.events;
        let read = stream.parser.read(bytes, |frame| match frame.event() {
            Ok(event) if wrong.is_none() => events.extend(event),
            Ok(_) => {}
            Err(error) => wrong = Some(format!("{}: {error}", frame.event)),
        });
        if let Some(why) = wrong.or_else(|| read.err().map(|_| "an event without an end".to_owned())) {
            self.stream = None;
            self.after = self.events.back().map(|event| event.change.revision.0).or(self.after);
            self.trouble = Some(Error::Unavailable { why: format!("a stream that cannot be read: {why}") });
            return;
        }
        self.after = stream.parser.last_id;
        if !self.events.is_empty() {
            self.backoff.reset();
        }
    }

    async fn open(&mut self) -> Result<(), NoStream> {
        let endpoints = &self.shared.endpoints;
        let node = endpoints.for_watch();
        match node.open(&self.call(), ATTEMPT).await {
            Ok(opened) if opened.response.status() == StatusCode::OK => {
                let parser = Parser::after(self.after);
                self.stream = Some(Stream { node, opened, parser, heard_at: Instant::now() });
                (self.was_connected, self.gone) = (true, 0);
                Ok(())
            }
            Ok(opened) => {
                let answer = node.finish(opened, ATTEMPT).await;
                Err(self.refused(&node, answer))
            }
            Err(failure) => Err(self.refused(&node, Err(failure))),
        }
    }

    /// What an answer means that is no stream.
    fn refused(&mut self, node: &Arc<Node>, answer: Result<Answer, Failure>) -> NoStream {
        let endpoints = &self.shared.endpoints;
        if let Some(detail) = answer.as_ref().ok().and_then(history_gone) {
            endpoints.failed(node);
            self.gone += 1;
            // Another node may keep more.
            return match self.after {
                Some(after) if self.gone >= endpoints.count() => {
                    NoStream::Failed(Error::HistoryGone { after, detail })
                }
                _ => NoStream::Again(detail),
            };
        }
        match fate(answer, |_| Ok(())) {
            Fate::Refused(problem) => NoStream::Failed(Error::Rejected(problem)),
            Fate::NotDone(why) | Fate::Unknown(why) => {
                endpoints.failed(node);
                NoStream::Again(why)
            }
            Fate::Done(()) => NoStream::Again("a success that is no stream".to_owned()),
        }
    }

    /// The position stands in the query, as this client writes the whole URL anew each time.
    fn call(&self) -> Call {
        let prefix = utf8_percent_encode(&self.prefix, NON_ALPHANUMERIC);
        let after = self.after.map(|after| format!("&after={after}")).unwrap_or_default();
        Call::get(format!("/v1/watch?prefix={prefix}{after}"))
    }
}

/// What a node says that does not keep the events that were asked for.
fn history_gone(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Gone {
        r#type: String,
        detail: String,
    }
    let gone: Gone = serde_json::from_slice(&answer.body).ok()?;
    (gone.r#type == "urn:ringfence:problem:history-gone").then_some(gone.detail)
}
