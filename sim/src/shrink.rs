//! Looks for a smaller plan that fails as well.

use crate::clients::longest;
use crate::plan::Plan;

/// What makes a plan simpler.
const SIMPLER: [fn(&mut Plan); 14] = [
    |plan| plan.time = (plan.time / 2).max(1_000),
    |plan| plan.load.clients = 1,
    |plan| plan.load.clients = plan.load.clients.div_ceil(2),
    |plan| plan.load.keys = 1,
    |plan| plan.load.lost = 0,
    |plan| plan.load.shared = 0,
    |plan| plan.load.metadata = 0,
    |plan| plan.load.sets = 0,
    |plan| plan.load.ttl_ms = plan.load.ttl_ms.min(longest()),
    |plan| plan.latency.spikes = 0,
    |plan| plan.latency.most = 1,
    |plan| plan.flush = (0, 1),
    |plan| plan.speeds.clear(),
    |plan| plan.clocks.clear(),
];

/// The smallest plan that was found: without any one of its faults, or simpler in any one way, it does not fail.
pub fn shrink(mut plan: Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    loop {
        let before = plan.clone();
        plan = fewer_faults(plan, &mut fails);
        for simplify in SIMPLER {
            loop {
                let mut simpler = plan.clone();
                simplify(&mut simpler);
                simpler.faults.retain(|fault| fault.at < simpler.time);
                if simpler == plan || !fails(&simpler) {
                    break;
                }
                plan = simpler;
            }
        }
        if plan == before {
            return plan;
        }
    }
}

/// Leaves out faults: first half of them at once, in the end one by one.
fn fewer_faults(mut plan: Plan, fails: &mut impl FnMut(&Plan) -> bool) -> Plan {
    let mut count = plan.faults.len().div_ceil(2);
    while count > 0 {
        let mut from = 0;
        while from < plan.faults.len() {
            let mut fewer = plan.clone();
            fewer.faults.drain(from..(from + count).min(plan.faults.len()));
            if fails(&fewer) {
                plan = fewer;
            } else {
                from += count;
            }
        }
        count /= 2;
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::What;

    #[test]
    fn two_faults_that_only_fail_together_are_found_among_many() {
        let plan = (1..).map(Plan::draw).find(|plan| plan.faults.len() > 60 && plan.load.clients > 4);
        let mut plan = plan.expect("some seeds draw many faults");
        let (power, reset) = (What::Kill { node: 1, power: true, down: 7 }, What::Reset { one: 1, other: 7 });
        plan.faults[10].what = power.clone();
        plan.faults[50].what = reset.clone();
        let fails = |plan: &Plan| {
            [&power, &reset].iter().all(|what| plan.faults.iter().any(|fault| fault.what == **what))
                && plan.load.clients >= 2
        };
        let small = shrink(plan, fails);
        assert_eq!(small.faults.iter().map(|fault| &fault.what).collect::<Vec<_>>(), [&power, &reset]);
        assert_eq!((small.load.clients, small.load.keys, small.load.lost), (2, 1, 0));
    }
}
