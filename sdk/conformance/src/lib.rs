//! Plays what goes wrong between a client library and its cluster, and judges from outside what the library does.
//!
//! ```text
//!                     requests, answers                     HTTP                 HTTP
//!  Scenario ──────────────────────────────▶ adapter ──────────────▶ Front ──────────────▶ node
//!     │                                     of a library              │ script, log         ▲
//!     └───────────────────────────────────────────────────────────────┴─────────────────────┘ truth
//! ```
//! - **Nothing is believed that can be seen.** What a client did is what the fronts and the nodes saw. An adapter only says what its
//!   caller is told: errors, tokens, states.
//! - **The nodes are real.** A lost grant was granted; a front loses its answer.
//! - **Each scenario has a process, fronts and a key of its own.** One that hangs fails alone.
//! - **A machine that stood still is no fault of a library.** What failed [meanwhile](pulse) is played again, a few times, and listed.
//! - **What a library does not offer is listed**, by its [abilities](scenario::Scenario::needs); it does not pass.
//! - **Each scenario is failed by a [mutant](mutants)**: a client with one deliberate fault.
//!
//! `PROTOCOL.md` says how to write an adapter.

pub mod adapter;
pub mod front;
pub mod mutants;
pub mod play;
pub mod pulse;
pub mod rival;
pub mod scenario;
mod scenarios;
pub mod stage;
pub mod world;
