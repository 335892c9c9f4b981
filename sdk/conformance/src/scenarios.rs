//! The scenarios, by what they are about.

pub(crate) mod acquire;
pub(crate) mod adopt;
pub(crate) mod deadline;
pub(crate) mod handles;
pub(crate) mod holding;
pub(crate) mod interrupt;
pub(crate) mod lead;
pub(crate) mod leaving;
pub(crate) mod live;
pub(crate) mod loss;
pub(crate) mod many;
pub(crate) mod nodes;
pub(crate) mod outcome;
pub(crate) mod secure;
pub(crate) mod waiting;
