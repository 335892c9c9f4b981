//! Tests of the checkers: invented histories that are right, and such that break each law.

use std::collections::BTreeMap;

use ringfence_wire::{
    EndReason, KeyView, ProblemKind, Revision, Token, Verdict as TokenVerdict, VerdictName,
};

use super::answers::{LINEARIZABLE_READS, NO_GRANT_LOST};
use super::causes::{BOUNDED_END, NO_EARLY_END};
use super::clock::CLUSTER_TIME;
use super::exclusion::EXCLUSION;
use super::library::LIBRARY;
use super::loop_lag::LOOP_LAG;
use super::mirror::{BEFORE_ANSWER, MIRROR_EQUAL_AT_END, MIRROR_NEVER_AHEAD, MIRROR_NEVER_FALLS};
use super::nodes::{ALL_SERVE, EQUAL_STATES, NO_PANIC, NOTHING_MALFORMED};
use super::plain::Plain;
use super::queues::{BATCH_PLACES, NO_LATE_WAITER, QUEUE_ORDER};
use super::register::{FENCED_REGISTER, LOCKED_SET};
use super::repeats::ONE_GRANT_PER_LEASE;
use super::tokens::{GRANTED_TOKENS, TOKENS};
use super::{Checker, Facts, Found, Verdict, transactions};
use crate::history::{
    Call, Change, ChangeName, Conclusion, Fault, History, Invocation, LagSight, MirrorEntry, MirrorSight,
    NodeEnd, Sight,
};

mod answers;
mod causes;
mod clock;
mod exclusion;
mod library;
mod log;
mod loop_lag;
mod mirror;
mod nodes;
mod queues;
mod reads;
mod register;
mod repeats;
pub(crate) mod scene;
mod search;
mod sets;
mod story;
mod tally;
mod tokens;

fn judge(law: &Checker, history: &History) -> Found {
    (law.check)(&Facts::of(&Plain::of(history)))
}
