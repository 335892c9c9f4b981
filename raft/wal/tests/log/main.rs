//! The promises of the log, one by one.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

mod crash_points;
mod cuts;
mod damage;
mod disk;
mod everyday;
mod flips;
mod io_errors;
mod kills;
mod lost_sectors;
mod model;
mod page_cache;
mod power_cuts;
mod segments;
mod support;
mod writer;
