//! Judges histories: what clients were told, what nodes had in their logs, and which faults there were.
//!
//! [`check`] judges a [`history`], of a real cluster under faults or of a simulated one. [`store`] keeps it with the page that
//! [`report`] draws.

pub mod check;
pub mod history;
pub mod report;
pub mod store;
