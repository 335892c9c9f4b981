//! Judges histories: what clients were told, what nodes had in their logs, and which faults there were.
//!
//! Whoever records a [`history`] can have it judged by [`check`]: real clusters under faults, and simulated ones. [`store`] keeps it
//! with the page that [`report`] draws.

pub mod check;
pub mod history;
pub mod report;
pub mod store;
