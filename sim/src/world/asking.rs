//! Requests of clients that nodes have not answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ringfence_laws::history::Came;
use tokio::sync::oneshot;

/// Answers of nodes, on their way to their clients, by the number of the request. `None`: the connection broke.
pub(super) type Answers = Arc<Mutex<BTreeMap<u64, (oneshot::Sender<Came>, Option<Came>)>>>;

/// A request that a node has not answered. If it is dropped, the connection breaks.
///
/// A runtime that is dropped drops its tasks in an order that nobody fixes, so their ends take effect later, in order.
pub(super) struct Asking {
    pub(super) number: u64,
    pub(super) reply: Option<oneshot::Sender<Came>>,
    pub(super) came: Option<Came>,
    pub(super) answers: Answers,
}

impl Asking {
    pub(super) fn answer(mut self, came: Came) {
        self.came = Some(came);
    }

    /// Waits until the client does.
    pub(super) async fn given_up(&mut self) {
        self.reply.as_mut().expect("it is there until this is dropped").closed().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let reply = self.reply.take().expect("nothing else takes it");
        let answer = (reply, self.came.take());
        self.answers.lock().expect("nothing panics while the answers are locked").insert(self.number, answer);
    }
}
