//! The fate of a request.

use serde_json::{Value, json};
use tokio::sync::watch;

/// What a [`Front`](super::Front) does with one request.
pub struct Act {
    /// Whether the node gets it.
    pub(super) is_forwarded: bool,
    /// Waits for this before it goes on: after the node has answered, if it gets the request.
    pub(super) gate: Option<Gate>,
    pub(super) then: Then,
}

/// What the client is told.
pub(super) enum Then {
    /// What the node said.
    Answer,
    /// What the node said, changed.
    Edit(Box<dyn FnOnce(&mut Reply) + Send>),
    /// This.
    Reply(Reply),
    /// The beginning of what the node said, then the end of the connection.
    Half,
    /// The end of the connection.
    Close,
    /// Nothing, while the connection stays open.
    Hang,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// More headers than the length.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// A JSON body.
    pub fn json(status: u16, body: &Value) -> Self {
        Self { status, headers: Vec::new(), body: body.to_string().into_bytes() }
    }

    /// A body of something else than a node: a proxy, a portal.
    pub fn html(status: u16) -> Self {
        let headers = vec![("content-type".to_owned(), "text/html".to_owned())];
        Self { status, headers, body: b"<html><body>the proxy has spoken</body></html>".to_vec() }
    }

    /// A problem, as a node describes it.
    pub fn problem(status: u16, name: &str, more: Value) -> Self {
        let mut body = json!({"type": format!("urn:ringfence:problem:{name}"), "title": name, "status": status, "detail": format!("{name}, as played")});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        Self::json(status, &body)
    }

    /// The same with one more header.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Changes the body, if it is JSON.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        if let Ok(mut body) = serde_json::from_slice(&self.body) {
            change(&mut body);
            self.body = body.to_string().into_bytes();
        }
    }
}

impl Act {
    fn new(is_forwarded: bool, then: Then) -> Self {
        Self { is_forwarded, gate: None, then }
    }

    /// The node gets it, and the client what the node says.
    pub fn pass() -> Self {
        Self::new(true, Then::Answer)
    }

    /// The client gets this. The node gets nothing.
    pub fn reply(reply: Reply) -> Self {
        Self::new(false, Then::Reply(reply))
    }

    /// The node gets it, and the client this.
    pub fn instead(reply: Reply) -> Self {
        Self::new(true, Then::Reply(reply))
    }

    /// The node gets it, and the client what the node says, changed.
    pub fn edit(change: impl FnOnce(&mut Reply) + Send + 'static) -> Self {
        Self::new(true, Then::Edit(Box::new(change)))
    }

    /// The node gets it, and the client the end of the connection.
    pub fn lose_answer() -> Self {
        Self::new(true, Then::Close)
    }

    /// The node gets it, and the client the beginning of what it says.
    pub fn half() -> Self {
        Self::new(true, Then::Half)
    }

    /// The node gets nothing, nor does the client.
    pub fn hang() -> Self {
        Self::new(false, Then::Hang)
    }

    /// The node gets nothing, and the client the end of the connection.
    pub fn close() -> Self {
        Self::new(false, Then::Close)
    }

    /// What the client gets comes once the gate is open.
    pub fn after(self, gate: &Gate) -> Self {
        Self { gate: Some(gate.clone()), ..self }
    }
}

/// Holds up what waits for it until it is opened.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Gate {
    /// Lets everything pass from now on.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was.
    pub fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    pub(super) async fn opened(&self) {
        // The sender is here, so this ends only when it is open.
        let _ = self.0.subscribe().wait_for(|is_open| *is_open).await;
    }
}
