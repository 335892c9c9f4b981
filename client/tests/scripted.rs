//! The client against nodes whose responses, and silence, each test scripts.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod scripted {
    mod acquire;
    mod batch;
    mod close;
    mod last;
    mod lead;
    mod leader;
    mod left;
    mod node;
    mod outlive;
    mod release;
    mod silent;
    mod stranger;
    mod watch;
}
