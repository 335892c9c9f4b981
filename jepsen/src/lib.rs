//! Tests Ringfence under faults, and checks its guarantees.
//!
//! ```text
//!  seed ──▶ plan ──▶ nemeses ───────▶ field   real nodes, disks, networks, Redis
//!   │                    │              ▲
//!   └─────▶ workload ────┼── clients ───┘     HTTP, like any client
//!                        ▼
//!                     History ──▶ checkers ──▶ verdict, report
//! ```
//! - **Same seed, same schedule.** Faults, their targets and times, and the clients' requests come from the seed alone. The
//!   cluster's reactions differ from run to run.
//! - **Unknown stays unknown.** A call without a definite answer may take effect at any time after it was sent, or never.
//!   Checkers allow both, unless the nodes' logs, read at the end, show which it was.
//! - **A run that exercised nothing is unknown**, not valid: every checker counts what it has seen.
//! - **The checkers are tested**, by histories that break each law and by builds of Ringfence with a deliberate bug.

pub mod clock;
pub mod faults;
pub mod field;
pub mod grey;
mod inspection;
pub mod mutants;
pub mod nemesis;
pub mod pauses;
pub mod plan;
pub mod process;
mod proxy;
pub mod recorder;
pub mod registers;
pub mod run;
pub mod sights;
pub mod suite;
pub mod upgrade;
mod wires;
pub mod workload;
