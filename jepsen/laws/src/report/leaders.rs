//! Who led, and what each node was, from how nodes saw the cluster.

use std::collections::BTreeMap;

use ringfence_wire::Role;
use serde::Serialize;

use crate::history::Sight;

/// How many times the usual time between two sights of a node they may lie apart and still be of one stretch.
const GAP: u64 = 4;
/// And at least so far.
const GAP_US: u64 = 250_000;

/// A node in one role and term, as it said.
#[derive(Clone, Serialize)]
pub(super) struct Stretch {
    node: u64,
    role: Role,
    term: u64,
    from: u64,
    to: u64,
}

/// The stretches in which nodes led, and all stretches of all nodes. Where a node did not answer there is none.
pub(super) fn stretches(sights: &[Sight]) -> (Vec<Stretch>, Vec<Stretch>) {
    let mut by_node: BTreeMap<u64, Vec<&Sight>> = BTreeMap::new();
    for sight in sights {
        by_node.entry(sight.node).or_default().push(sight);
    }
    let roles: Vec<Stretch> = by_node.into_values().flat_map(of_one_node).collect();
    let mut leads: Vec<Stretch> =
        roles.iter().filter(|stretch| stretch.role == Role::Leader).cloned().collect();
    leads.sort_by_key(|stretch| stretch.from);
    (leads, roles)
}

fn of_one_node(mut sights: Vec<&Sight>) -> Vec<Stretch> {
    sights.sort_by_key(|sight| sight.sent_us);
    let mut gaps: Vec<u64> = sights.windows(2).map(|two| two[1].sent_us - two[0].sent_us).collect();
    gaps.sort_unstable();
    let usual_us = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
    let together_us = GAP_US.max(usual_us.saturating_mul(GAP));
    let mut stretches: Vec<Stretch> = Vec::new();
    for sight in sights {
        match stretches.last_mut() {
            Some(last)
                if last.role == sight.role
                    && last.term == sight.term
                    && sight.sent_us <= last.to.saturating_add(together_us) =>
            {
                last.to = last.to.max(sight.ended_us);
            }
            _ => stretches.push(Stretch {
                node: sight.node,
                role: sight.role,
                term: sight.term,
                from: sight.sent_us,
                to: sight.ended_us,
            }),
        }
    }
    stretches
}
