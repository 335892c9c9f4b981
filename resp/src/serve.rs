use std::sync::Arc;

use bytes::Bytes;
use ringfence_http::{Answer, Begun, Connection, Dialog, Remote};
use ringfence_service::Service;

use crate::door::Door;
use crate::frame::{Frame, Malformed};
use crate::session::{Read, Session};

/// The port of a node for clients that speak the Redis protocol.
#[derive(Clone)]
pub struct Resp(Arc<Door>);

impl Resp {
    /// Answers clients by `service`.
    pub fn new(service: Arc<Service>) -> Self {
        Self(Arc::new(Door::new(service)))
    }

    /// The server's side of a new connection from `remote`.
    pub fn dialog(&self, remote: Arc<Remote>) -> impl Dialog + use<> {
        Conversation { frame: Frame::default(), session: Session::new(Arc::clone(&self.0), remote) }
    }
}

struct Conversation {
    frame: Frame,
    session: Session,
}

impl Dialog for Conversation {
    type Alone = Read;

    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Bytes> {
        self.frame.advance(received).map_err(|malformed| match malformed {
            Malformed::Http => Bytes::new(),
            malformed => format!("-ERR {malformed}\r\n").into(),
        })
    }

    fn begin(
        &mut self,
        request: Bytes,
        connection: &Arc<Connection>,
    ) -> Begun<impl Future<Output = Answer> + Send + 'static, Read> {
        self.session.begin(request, connection)
    }

    async fn answer_alone(&mut self, read: Read, connection: &Arc<Connection>) -> Answer {
        self.session.answer(read, connection).await
    }
}
