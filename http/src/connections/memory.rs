//! The memory that the requests and responses of connections take: see [`ringfence_room`].

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use ringfence_room::Bound;

use super::{Connection, MOST_IN_FLIGHT, State};
use crate::tenant::Tenant;
use crate::turns::PER_TURN;

/// Memory that tenants of connections share.
pub type Room = ringfence_room::Room<Tenant, Connection>;
/// What the tenant of a connection takes of it, until this is dropped.
pub type Portion = ringfence_room::Portion<Tenant, Connection>;

/// Bytes of requests that arrive, of those that are being handled, and of responses.
const MAX: usize = 64 << 20;
/// Bytes of requests of dialogs that are answered beside others: so few that the queues of a node have room for them.
const MAX_BESIDE: usize = 16 << 20;
/// What a request takes that is answered beside others, and how many times its size besides.
pub(crate) const BESIDE: usize = 4 << 10;
const TIMES_BESIDE: usize = 8;
/// Handling a request takes this many times its size in memory. Measured with batches, whose keys are short.
const TIMES_HANDLED: usize = 5;
/// Bytes of a request, and of all responses in flight, that each connection may take anyway.
const UNCOUNTED: usize = PER_TURN;

/// The rooms of all connections.
pub(crate) struct Memory {
    pub(crate) arriving: Arc<Room>,
    pub(crate) handled: Arc<Room>,
    pub(crate) responses: Arc<Room>,
    pub(crate) beside: Arc<Room>,
}

impl Memory {
    pub(super) fn new() -> Self {
        let [arriving, handled, responses, beside] =
            [MAX, MAX, MAX, MAX_BESIDE].map(|max| Room::new(Bound::of(max)));
        Self { arriving, handled, responses, beside }
    }
}

impl Connection {
    /// Takes memory for `more` bytes of a request that arrives, which are counted in `portion`. If all requests take too much, the one is
    /// [shed](Self::is_body_shed) that is the oldest of the tenant of most.
    pub(crate) fn keep_request(self: &Arc<Self>, portion: &mut Option<Portion>, more: usize) {
        let new = || self.connections.memory.arriving.revocable(self.tenant(), self, Self::shed_body);
        // Its pieces are joined, or its buffer is twice as large.
        portion.get_or_insert_with(new).grow(2 * more);
    }

    /// Takes memory for a response of `bytes`, until it is dropped. If all responses take too much, the connection closes that has the
    /// oldest of the tenant of most. What is short takes none.
    pub fn keep_response(self: &Arc<Self>, bytes: usize) -> Option<Portion> {
        self.keep_one_of(MOST_IN_FLIGHT, bytes)
    }

    /// The same for a response of which as many may be in flight.
    pub(crate) fn keep_one_of(self: &Arc<Self>, in_flight: usize, bytes: usize) -> Option<Portion> {
        (bytes > UNCOUNTED / in_flight).then(|| {
            let responses = &self.connections.memory.responses;
            let mut portion = responses.revocable(self.tenant(), self, Self::shed_response);
            portion.grow(bytes);
            portion
        })
    }

    /// Takes `bytes` of `room` for the tenant. `None`: there is no room.
    pub fn portion(&self, room: &Arc<Room>, bytes: usize) -> Option<Portion> {
        room.take(self.tenant(), bytes)
    }

    /// Takes memory for a request of `bytes` that is answered beside others. `None`: there is no room.
    pub(crate) fn takes_beside(&self, bytes: usize) -> Option<Portion> {
        self.portion(&self.connections.memory.beside, BESIDE + TIMES_BESIDE * bytes)
    }

    /// Waits until there is memory for handling a request of `bytes`, all of which has arrived. Returns `false` if others were given the
    /// memory in which it arrived first.
    pub(crate) async fn handles(&self, bytes: usize) -> bool {
        if bytes <= UNCOUNTED {
            return true;
        }
        let mut memory = pin!(self.connections.memory.handled.wait(self.tenant(), TIMES_HANDLED * bytes));
        let given = poll_fn(|cx| match self.is_body_shed() {
            true => Poll::Ready(None),
            false => memory.as_mut().poll(cx).map(Some),
        });
        let given = given.await;
        let is_given = given.is_some();
        self.state().memory = given;
        is_given
    }

    /// Gives the request `bytes` more while it is being handled. Returns whether all requests together take far too much.
    pub fn takes_more(&self, bytes: usize) -> bool {
        let State { tenant, memory, .. } = &mut *self.state();
        let new = || self.connections.memory.handled.nothing(tenant.clone());
        bytes > 0 && memory.get_or_insert_with(new).grow(bytes) > 2 * MAX
    }

    /// Gives back the memory of the request, so that others can begin. From here on, the request only waits.
    pub fn takes_little(&self) {
        self.state().memory = None;
    }
}
