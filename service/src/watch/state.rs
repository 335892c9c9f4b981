//! What the streams of watches and the task that drives them share.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::mpsc;
use tokio::task::unconstrained;

use super::contact::{Contact, Moment};
use super::encoder::Encoder;
use super::fanout::Fanout;

/// The most watches that are forgotten in one step.
const LEAVE_AT_ONCE: usize = 256;

pub(super) struct State<E> {
    /// Whether the task runs.
    pub(super) runs: bool,
    /// Which task that is: one whose thread hangs is replaced, and ends when it runs again.
    pub(super) task: u64,
    pub(super) fanout: Fanout<E>,
    pub(super) contact: Contact,
    pub(super) left: mpsc::UnboundedReceiver<u64>,
}

impl<E: Encoder> State<E> {
    /// Whether this `task` goes on: there are watches left, and no other has replaced it.
    pub(super) fn goes_on(&mut self, task: u64) -> bool {
        if self.task != task {
            return false;
        }
        self.runs = self.fanout.count() > 0;
        self.runs
    }

    pub(super) fn has_contact(&self) -> bool {
        self.contact.is_recent(Moment::now())
    }

    /// Whether all that was found is fanned out.
    pub(super) fn note_position(&mut self) -> bool {
        self.contact.reached(self.fanout.position())
    }

    /// Forgets watches that have ended, but not all at once if many have, as after a hang: this has the state meanwhile.
    pub(super) fn forget_left(&mut self) {
        // `try_recv` would park this thread while another is in the middle of sending.
        let mut look = Context::from_waker(Waker::noop());
        for _ in 0..LEAVE_AT_ONCE {
            let Poll::Ready(Some(number)) = pin!(unconstrained(self.left.recv())).poll(&mut look) else {
                break;
            };
            self.fanout.leave(number);
        }
    }

    pub(super) fn end(&mut self) {
        self.fanout.end();
        self.runs = false;
    }

    /// Ends all watches, and forgets a fan-out that may be half changed.
    pub(super) fn start_anew(&mut self) {
        self.end();
        self.fanout = std::mem::take(&mut self.fanout).anew();
    }
}

#[cfg(test)]
mod tests {
    use ringfence_raft::History;
    use ringfence_wire::Revision;

    use super::super::tests::Plain;
    use super::*;
    use crate::caller::Caller;

    /// After a hang it took all that had ended, while other threads waited for the state.
    #[test]
    fn watches_that_have_ended_are_forgotten_some_at_a_time() {
        let (leave, left) = mpsc::unbounded_channel();
        let (fanout, contact) = (Fanout::<Plain>::default(), Contact::new(Moment::now()));
        let mut state = State { runs: true, task: 0, fanout, contact, left };
        for _ in 0..=LEAVE_AT_ONCE {
            let number = state.fanout.enter(Caller::anybody(), "", Revision(0), &History::default());
            leave.send(number).unwrap();
        }
        let mut left = || {
            state.forget_left();
            state.fanout.count()
        };
        assert_eq!([left(), left(), left()], [1, 0, 0]);
    }
}
