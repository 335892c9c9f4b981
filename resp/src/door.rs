//! What all connections of a node share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_http::Room;
use ringfence_room::Bound;
use ringfence_service::Service;

use crate::refused_calls::RefusedCalls;
use crate::scripts::Scripts;

/// Bytes of the commands that clients queue, and of the keys that they watch.
const MAX_PENDING: usize = 64 << 20;

pub(crate) struct Door {
    pub(crate) service: Arc<Service>,
    pub(crate) scripts: Scripts,
    /// Memory for the commands that clients queue, and the keys that they watch.
    pub(crate) room: Arc<Room>,
    pub(crate) refused_calls: RefusedCalls,
    connections: AtomicU64,
}

impl Door {
    pub(crate) fn new(service: Arc<Service>) -> Self {
        let (scripts, room) = (Scripts::default(), Room::new(Bound::of(MAX_PENDING)));
        let refused_calls = RefusedCalls::default();
        Self { service, scripts, room, refused_calls, connections: AtomicU64::new(1) }
    }

    /// A number for a new connection, from 1.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }
}
