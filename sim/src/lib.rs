//! Whole clusters in one thread: the order of every message, flush and tick comes from a seed.
//!
//! The code of `service/`, `raft/`, `lease/` and the log runs as in the product. A seed replaces what is around it: the disks
//! ([`store`]), the network ([`network`]), the clocks and schedules of the processes ([`machine`], [`world`]), the clients
//! ([`clients`]) and the faults ([`plan`]). [`run`] plays a plan and has it judged by the laws in `jepsen/laws`.

pub mod clients;
pub mod coverage;
pub mod machine;
mod messages;
pub mod mutants;
pub mod network;
pub mod plan;
pub mod regressions;
pub mod run;
mod serve;
pub mod shrink;
pub mod store;
pub mod story;
pub mod swarm;
pub mod world;
