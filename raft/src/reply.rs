//! Answers on their way from the Raft thread.

use tokio::sync::{mpsc, oneshot};

/// Where an answer goes.
pub(crate) struct Reply<T> {
    to: oneshot::Sender<T>,
    answers: Option<Answers>,
}

/// Answers for one thread. That is woken once for all that pile up, where each reply alone would cost a system call.
pub(crate) type Answers = mpsc::UnboundedSender<Answer>;

/// Completes one request when it is called on the thread that asked.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

impl<T: Send + 'static> Reply<T> {
    /// A reply, and where it arrives: by way of `answers`, if given.
    pub(crate) fn new(answers: Option<Answers>) -> (Self, oneshot::Receiver<T>) {
        let (to, receiver) = oneshot::channel();
        (Self { to, answers }, receiver)
    }

    /// Whether the receiver is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }

    /// Sends the answer from another thread. If the receiver is gone, nobody needs it.
    pub(crate) fn send(self, value: T) {
        let Self { to, answers } = self;
        match answers {
            Some(answers) => drop(answers.send(Box::new(move || drop(to.send(value))))),
            None => drop(to.send(value)),
        }
    }

    /// Sends the answer on the thread that asked: it is there at once.
    pub(crate) fn send_here(self, value: T) {
        drop(self.to.send(value));
    }
}
