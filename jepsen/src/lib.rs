//! Shows that Ringfence holds, or finds where it does not.
//!
//! ```text
//!  seed ──▶ plan ──▶ nemeses ───────▶ field   real nodes, disks, networks, Redis
//!   │                    │              ▲
//!   └─────▶ workload ────┼── clients ───┘     HTTP, like any client
//!                        ▼
//!                     History ──▶ checkers ──▶ verdict, report
//! ```
//! - **Same seed, same schedule**: faults, their targets and times, and what clients ask for, come from the seed alone.
//!   What the cluster makes of it differs from run to run.
//! - **Unknown stays unknown.** A call without a definite answer may take effect at any time after it was sent, or never;
//!   checkers take both for possible, unless the nodes' own logs, read at the end, tell which.
//! - **A run that exercised nothing is not valid**, it is unknown: every checker counts what it has seen.
//! - **Checkers are tested**: by histories that break each law, and by builds of the product with a deliberate bug.

pub mod check;
pub mod clock;
pub mod faults;
pub mod field;
pub mod history;
mod inspection;
pub mod mutants;
pub mod nemesis;
pub mod patched;
pub mod pauses;
pub mod plan;
pub mod process;
pub mod program;
mod proxy;
pub mod recorder;
pub mod registers;
pub mod report;
pub mod run;
pub mod sights;
pub mod store;
pub mod suite;
mod wires;
pub mod workload;
