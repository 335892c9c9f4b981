//! Whether the leader can be called.
//!
//! A heartbeat shows that the leader can call a follower. What clients ask of a follower goes the other way, over connections that the
//! follower opens. A firewall that lets in nothing but replies breaks that way alone. So a follower calls its leader all the time, and
//! says in its answers to heartbeats if it cannot. A leader that no majority can call gives up ([`fitness`](crate::fitness)).
//!
//! A follower calls on [`Channel::Votes`](super::handshake::Channel::Votes), where the leader answers at once, from memory. Older
//! builds answer, too. They neither say that they cannot call, nor read it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::known::Process;

/// A leader that has answered nothing for so long cannot be called. A slow link and a lost packet take less.
pub(crate) const UNANSWERED: Duration = Duration::from_millis(1_500);
/// The first answer of a new leader may take so much longer: a connection may have to be made.
const FIRST_ANSWER: Duration = Duration::from_millis(1_500);
/// Behind an answer to a heartbeat: this node cannot call the leader.
const CANNOT_CALL: u8 = 1;

/// Which calls were answered, as far as this node knows.
#[derive(Default)]
pub(crate) struct Callable(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// The leader that this node hears, and when it answered last.
    leader: Option<(Process, Instant)>,
    /// The followers that say that they cannot call this node.
    cannot_call: BTreeSet<Process>,
}

impl Callable {
    /// From now on, this node hears this leader.
    pub(super) fn begins(&self, leader: Process) {
        self.lock().leader = Some((leader, Instant::now() + FIRST_ANSWER));
    }

    /// This leader, if it is still the one, has answered.
    pub(super) fn answered(&self, leader: Process) {
        let calls = &mut *self.lock();
        if let Some((_, answered)) = calls.leader.as_mut().filter(|(known, _)| *known == leader) {
            *answered = Instant::now().max(*answered);
        }
    }

    /// Queues what this node has to say behind an answer to a heartbeat of this leader.
    pub(super) fn put(&self, out: &mut BytesMut, leader: Process) {
        let known = self.lock().leader.filter(|(known, _)| *known == leader);
        if known.is_some_and(|(_, answered)| answered.elapsed() > UNANSWERED) {
            out.put_u8(CANNOT_CALL);
        }
    }

    /// Reads what a follower said behind its answer to a heartbeat.
    pub(super) fn note_said(&self, follower: Process, mut said: Bytes) {
        let cannot_call = said.try_get_u8().is_ok_and(|said| said == CANNOT_CALL);
        let calls = &mut *self.lock();
        match cannot_call {
            true => calls.cannot_call.insert(follower),
            false => calls.cannot_call.remove(&follower),
        };
    }

    /// Whether this follower said last that it cannot call this node.
    pub(crate) fn is_uncallable_for(&self, follower: Process) -> bool {
        self.lock().cannot_call.contains(&follower)
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().expect("no panic while the calls are locked")
    }
}
