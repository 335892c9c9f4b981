//! The connections of a node: how many there may be, what each is about, and when one is closed.
//!
//! ```text
//!         ┌────────────────── flushed ◀───── answered ◀──┐
//!         ▼                                              │ the body of the answer ended
//!  ───▶ idle ──▶ head ──▶ working ─────────────────▶ answering
//!   accepted  │ first byte │ whole head        a head and a body
//! ```
//! An idle one, and one whose head is not whole, owes nothing: where there is no room for a new one, the one that has
//! been so for longest makes it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::budget::Budget;
use crate::measure::{Closed, connections_closed_total};

/// How long a connection may be silent: no next request begins, or nothing more of an answer could be sent, because its
/// client does not read.
pub(super) const SILENCE: Duration = Duration::from_secs(75);
/// How many connections that are to make room may be open still when the next comes.
pub(crate) const MOST_CLOSING: usize = 16;
/// How long the head of a request may take, from its first byte.
pub(super) const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of unfinished request bodies, and of large answers that are being sent.
const MOST_ARRIVING: usize = 64 << 20;
const MOST_LEAVING: usize = 64 << 20;

/// The connections of a node.
pub struct Connections {
    most: usize,
    table: Mutex<Table>,
    /// Told when one has closed, or stays that was to make room.
    made_room: Notify,
    pub(super) arriving: Arc<Budget<Connection>>,
    pub(super) leaving: Arc<Budget<Connection>>,
}

#[derive(Default)]
struct Table {
    /// All that have a descriptor.
    open: usize,
    /// Those of them that are to make room.
    closing: usize,
    /// Those that owe nothing, the first for longest.
    idle: BTreeMap<u64, Arc<Connection>>,
    next: u64,
}

/// One connection.
pub(super) struct Connection {
    pub(super) connections: Arc<Connections>,
    pub(super) from: SocketAddr,
    state: Mutex<State>,
    /// Told when the connection may have to end.
    end: Notify,
}

struct State {
    phase: Phase,
    /// When the phase began or, of an answer, when something of it was last sent.
    since: Instant,
    /// Its place among the idle ones.
    place: u64,
    /// Its answer was not read, and others need the memory.
    is_unread: bool,
    /// Its request did not arrive, and others need the memory.
    is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing of a request has come.
    Idle,
    /// Some of its head.
    Head,
    /// A handler has it.
    Working,
    /// The answer is being sent,
    Answering,
    /// and all of it has been buffered.
    Answered,
}

impl Connections {
    /// No more than `most` at a time.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            table: Mutex::default(),
            made_room: Notify::new(),
            arriving: Budget::new(MOST_ARRIVING, Connection::be_late),
            leaving: Budget::new(MOST_LEAVING, Connection::be_unread),
        })
    }

    /// How many there are now, and may be.
    pub fn count(&self) -> (usize, usize) {
        let table = self.table();
        (table.open - table.closing, self.most)
    }

    /// A new one; `None` where there is no room, and none that could make some. Waits while many that are to make room are
    /// not closed yet.
    pub(super) async fn enter(self: &Arc<Self>, from: SocketAddr) -> Option<Entered> {
        loop {
            {
                let mut table = self.table();
                let too_many = (table.open - table.closing + 1).saturating_sub(self.most);
                if table.idle.len() < too_many {
                    return None;
                }
                for _ in 0..too_many {
                    let Some((_, longest)) = table.idle.pop_first() else { break };
                    longest.end.notify_one();
                    table.closing += 1;
                }
                if table.open < self.most + MOST_CLOSING {
                    return Some(self.add(&mut table, from));
                }
            }
            self.made_room.notified().await;
        }
    }

    fn add(self: &Arc<Self>, table: &mut Table, from: SocketAddr) -> Entered {
        table.open += 1;
        let connection = Arc::new(Connection {
            connections: Arc::clone(self),
            from,
            state: Mutex::new(State {
                phase: Phase::Idle,
                since: Instant::now(),
                place: table.next,
                is_unread: false,
                is_late: false,
            }),
            end: Notify::new(),
        });
        table.rest(Arc::clone(&connection));
        Entered(connection)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing that panics is done while it is locked")
    }
}

impl Table {
    /// Takes the last place among the idle ones.
    fn rest(&mut self, connection: Arc<Connection>) -> u64 {
        let place = self.next;
        self.next += 1;
        self.idle.insert(place, connection);
        place
    }
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing that panics is done while it is locked")
    }

    /// Bytes were read.
    pub(super) fn received(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle {
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
    }

    /// A request has come.
    pub(super) fn open(self: &Arc<Self>) -> Open {
        let mut state = self.state();
        if matches!(state.phase, Phase::Idle | Phase::Head) {
            let mut table = self.connections.table();
            if table.idle.remove(&state.place).is_none() {
                // It was to make room, and stays.
                table.closing -= 1;
                self.connections.made_room.notify_one();
            }
        }
        (state.phase, state.is_late, state.is_unread) = (Phase::Working, false, false);
        Open(Arc::clone(self))
    }

    pub(super) fn is_working(&self) -> bool {
        self.state().phase == Phase::Working
    }

    /// Some of an answer was sent.
    pub(super) fn sent(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Answering | Phase::Answered) {
            state.since = Instant::now();
        }
    }

    /// All that was buffered has been sent.
    pub(super) fn flushed(self: &Arc<Self>) {
        let mut state = self.state();
        if state.phase == Phase::Answered {
            (state.phase, state.since) = (Phase::Idle, Instant::now());
            state.place = self.connections.table().rest(Arc::clone(self));
        }
    }

    fn be_late(&self) {
        self.state().is_late = true;
        self.end.notify_one();
    }

    /// Whether the body of its request is not to be waited for any longer.
    pub(super) fn is_late(&self) -> bool {
        self.state().is_late
    }

    fn be_unread(&self) {
        self.state().is_unread = true;
        self.end.notify_one();
    }

    /// Returns when it is to be closed, and why.
    pub(super) async fn over(&self) -> Closed {
        loop {
            // To set a timer for each phase costs more than to look from time to time.
            let mut look_at = Instant::now() + HEAD_WITHIN;
            {
                let state = self.state();
                let (within, reason) = match state.phase {
                    Phase::Idle | Phase::Head if !self.connections.table().rests(state.place) => {
                        return Closed::Evicted;
                    }
                    _ if state.is_unread => return Closed::Unread,
                    Phase::Idle => (SILENCE, Closed::Silent),
                    Phase::Head => (HEAD_WITHIN, Closed::Late),
                    Phase::Working => (Duration::MAX, Closed::Silent),
                    Phase::Answering | Phase::Answered => (SILENCE, Closed::Unread),
                };
                if let Some(until) = state.since.checked_add(within) {
                    if until <= Instant::now() {
                        return reason;
                    }
                    look_at = look_at.min(until);
                }
            }
            // Either way it looks again.
            let _ = timeout_at(look_at, self.end.notified()).await;
        }
    }
}

impl Table {
    fn rests(&self, place: u64) -> bool {
        self.idle.contains_key(&place)
    }
}

/// A connection, as long as it is served.
pub(super) struct Entered(pub(super) Arc<Connection>);

impl Entered {
    /// It was closed here.
    pub(super) fn closed(&self, reason: Closed) {
        connections_closed_total(reason).increment(1);
        tracing::debug!(from = %self.0.from, ?reason, "an HTTP connection was closed");
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let state = self.0.state();
        let mut table = self.0.connections.table();
        table.open -= 1;
        if matches!(state.phase, Phase::Idle | Phase::Head) && table.idle.remove(&state.place).is_none() {
            table.closing -= 1;
        }
        self.0.connections.made_room.notify_one();
    }
}

/// A request, until all of its answer has been buffered.
pub(super) struct Open(pub(super) Arc<Connection>);

impl Open {
    /// There is an answer.
    pub(super) fn answering(&self) {
        let mut state = self.0.state();
        (state.phase, state.since) = (Phase::Answering, Instant::now());
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.state().phase = Phase::Answered;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt;

    use super::*;

    const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    /// A new connection, at once.
    fn entered(connections: &Arc<Connections>) -> Option<Entered> {
        connections.enter(FROM).now_or_never().expect("few are closing")
    }

    /// Whether it is to be closed now.
    async fn is_over(connection: &Connection) -> bool {
        timeout_at(Instant::now(), connection.over()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_owed_nothing_for_longest_makes_room_and_one_at_work_never() {
        let connections = Connections::new(3);
        let enter = || entered(&connections).map(|entered| (Arc::clone(&entered.0), entered));
        let [(first, _first), (second, second_entered), (third, _third)] = [0; 3].map(|_| enter().unwrap());
        let open = first.open();
        third.received();
        let (fourth, _fourth) = enter().unwrap();
        assert!(!is_over(&first).await && is_over(&second).await && !is_over(&third).await);
        drop(second_entered);
        assert_eq!(connections.count(), (3, 3));

        // The head of its request came just after it was chosen.
        let (fifth, _fifth) = enter().unwrap();
        let late = third.open();
        assert!(!is_over(&third).await);
        assert_eq!(connections.count(), (4, 3));

        let [of_fourth, of_fifth] = [fourth.open(), fifth.open()];
        assert!(enter().is_none(), "all are at work");
        // An answer that is still being sent is owed.
        open.answering();
        drop(open);
        assert!(enter().is_none());
        first.flushed();
        assert!(enter().is_none(), "there is one too many, and one that is idle");
        late.answering();
        drop(late);
        third.flushed();
        let (_sixth, _sixth_entered) = enter().unwrap();
        assert!(is_over(&first).await && is_over(&third).await);
        assert_eq!(connections.count(), (3, 3));
        drop((of_fourth, of_fifth));
    }

    /// The table once lost count of those that were chosen and stayed: after some, nothing was accepted any more.
    #[tokio::test(start_paused = true)]
    async fn those_that_stay_though_they_were_to_make_room_take_no_room_for_good() {
        let connections = Connections::new(2);
        let (first, second) = (entered(&connections).unwrap(), entered(&connections).unwrap());
        for _ in 0..2 * MOST_CLOSING {
            for chosen in [&first, &second] {
                let new = entered(&connections).unwrap();
                let open = chosen.0.open();
                drop(new);
                assert_eq!(connections.count(), (2, 2));
                open.answering();
                drop(open);
                chosen.0.flushed();
            }
        }
        let table = connections.table();
        assert_eq!((table.open, table.closing), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_one_waits_while_many_that_are_to_make_room_are_open() {
        let connections = Connections::new(1);
        let mut all: VecDeque<Entered> = (0..=MOST_CLOSING).map(|_| entered(&connections).unwrap()).collect();
        let mut next = Box::pin(connections.enter(FROM));
        assert!(timeout_at(Instant::now(), &mut next).await.is_err());
        all.pop_front();
        assert!(next.await.is_some());
    }
}
