//! What a client does: against nodes that say what the test tells them, and break off where it wants.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod played {
    mod acquire;
    mod gather;
    mod leader;
    mod node;
    mod release;
    mod watch;
}
