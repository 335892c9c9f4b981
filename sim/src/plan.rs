//! What will happen in a run, drawn from its seed: the shape of the cluster, the load, and the faults.
//!
//! A seed draws which kinds of faults there are and how often (swarm testing), so some runs have one kind all the time and
//! others a little of everything.

mod courses;
mod faults;

use fastrand::Rng;
use ringfence_raft::NodeId;
use serde::{Deserialize, Serialize};

use self::courses::{COURSES, Course};
use self::faults::draw_faults;
pub use self::faults::{Fault, NEWEST_RULES, What};
use crate::clients::{Load, longest};
use crate::network::Latency;

/// How far off a wall clock may be and still count as right, in milliseconds: a node that was turned back takes more than twice that
/// to lead.
const MOST_WRONG: i64 = 40;
/// An hour, and longer than since 1970, in milliseconds.
const HOUR: i64 = 3_600_000;
const EVER: i64 = 3_000_000_000_000;

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// From which all of it comes.
    pub seed: u64,
    /// The nodes that found the cluster, from 1.
    pub nodes: u64,
    /// How long faults and load go on, in milliseconds.
    pub time: u64,
    /// How messages travel.
    pub latency: Latency,
    /// The load.
    pub load: Load,
    /// How long a flush takes at least and at most, in milliseconds.
    pub flush: (u64, u64),
    /// The log's size that makes a snapshot due.
    pub snapshot_after_bytes: u64,
    /// How fast the clocks of the nodes run, by id from 1, in thousandths of real time: at most that, for a leader's clock is
    /// what the laws measure cluster time by.
    pub speeds: Vec<u64>,
    /// By how many milliseconds the wall clocks of the nodes are ahead, by id from 1. Missing: by none.
    #[serde(default)]
    pub clocks: Vec<i64>,
    /// The newest rules that the programs of the nodes support, by id from 1. Missing: [`NEWEST_RULES`].
    #[serde(default)]
    pub programs: Vec<u8>,
    /// The faults, by time.
    pub faults: Vec<Fault>,
}

impl Plan {
    /// The run of this seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let course = rng.choice(&COURSES).copied().flatten();
        let nodes = match course {
            Some(course) => course.nodes(&mut rng),
            None => *rng.choice(&[1, 3, 3, 3, 3, 3, 5, 5]).unwrap_or(&3),
        };
        let mut plan = Self {
            seed,
            nodes,
            time: *rng.choice(&[20_000, 60_000, 120_000]).unwrap_or(&60_000),
            latency: draw_latency(&mut rng),
            load: draw_load(&mut rng),
            flush: (*rng.choice(&[0, 0, 1]).unwrap_or(&0), *rng.choice(&[1, 5, 30]).unwrap_or(&1)),
            snapshot_after_bytes: *rng
                .choice(&[4 << 10, 16 << 10, 64 << 10, 32 << 20])
                .unwrap_or(&(64 << 10)),
            speeds: Vec::new(),
            clocks: Vec::new(),
            programs: Vec::new(),
            faults: Vec::new(),
        };
        if let Some(course) = course {
            plan.suit(course, &mut rng);
        }
        plan.faults = match course {
            // Others would mostly break it off.
            Some(course) if course.is_alone() || rng.u32(0..4) > 0 => Vec::new(),
            _ => draw_faults(&mut rng, nodes, plan.time),
        };
        if let Some(course) = course {
            plan.follow(course, &mut rng);
        }
        plan.draw_clocks_and_programs(course, &mut rng);
        plan
    }

    /// Changes the load, the network and the snapshots as a course needs them.
    fn suit(&mut self, course: Course, rng: &mut Rng) {
        let Self { load, latency, .. } = self;
        if course.is_busy() {
            (load.clients, load.pause_ms) = (8, *rng.choice(&[20, 200]).unwrap_or(&20));
        }
        if course.is_quiet() {
            (load.clients, load.pause_ms, load.ttl_ms) = (rng.u32(1..3), 5_000, 10_000);
        }
        if course.is_near() {
            (latency.most, latency.spikes) = (rng.u64(1..6), 0);
        }
        if matches!(course, Course::Trickle) {
            (load.keys, load.pause_ms, load.metadata) = (50, 20, 4_000);
            self.snapshot_after_bytes = 64 << 10;
        }
        if matches!(course, Course::Uncallable) {
            self.time = self.time.max(60_000);
        }
        if course.has_many_snapshots() {
            self.snapshot_after_bytes = *rng.choice(&[128, 4 << 10]).unwrap_or(&128);
        }
    }

    /// Adds the steps of a course to the faults, again and again.
    fn follow(&mut self, course: Course, rng: &mut Rng) {
        if matches!(course, Course::Successor) {
            self.faults
                .retain(|it| !matches!(it.what, What::Add { .. } | What::Remove { .. } | What::Wipe { .. }));
        }
        let mut at = rng.u64(500..4_000);
        while at < self.time {
            let steps = course.draw(rng, self.nodes, &mut at);
            let is_over = steps.is_empty() || course.is_alone();
            self.faults.extend(steps);
            at += rng.u64(500..6_000);
            if is_over {
                break;
            }
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    fn draw_clocks_and_programs(&mut self, course: Option<Course>, rng: &mut Rng) {
        let nodes = self.nodes;
        self.speeds = match rng.u32(0..3) {
            0 => (0..nodes).map(|_| *rng.choice(&[1_000, 999, 990, 900]).unwrap_or(&1_000)).collect(),
            _ => Vec::new(),
        };
        // Once disks were turned back, no token is granted twice under the newest rules, and if clocks are right.
        let turns_back = course.is_some_and(Course::turns_back);
        self.programs = match rng.u32(0..3) {
            0 if !turns_back => (0..nodes).map(|_| rng.u8(1..=NEWEST_RULES)).collect(),
            _ => Vec::new(),
        };
        self.clocks = (0..nodes).map(|_| rng.i64(-MOST_WRONG..=MOST_WRONG)).collect();
        if rng.u32(0..8) == 0 && !turns_back {
            self.clocks[rng.usize(0..nodes as usize)] =
                *rng.choice(&[-EVER, -HOUR, HOUR, EVER]).unwrap_or(&HOUR);
        }
    }

    /// How many wall clocks are wrong.
    pub fn wrong_clocks(&self) -> usize {
        self.clocks.iter().filter(|ahead| ahead.abs() > MOST_WRONG).count()
    }

    /// The first revision that the operator gives: the lowest with which leaders follow their clocks, if the founder's clock may be
    /// wrong.
    pub fn first_revision(&self) -> Option<u64> {
        (self.wrong_clocks() > 0).then_some(1 << 40)
    }

    /// By how many milliseconds the wall clock of a node is ahead.
    pub fn ahead(&self, node: NodeId) -> i64 {
        self.clocks.get(node as usize - 1).copied().unwrap_or(0)
    }

    /// The newest rules that the program of a node supports at first.
    pub fn newest_rules(&self, node: NodeId) -> u8 {
        self.programs.get(node as usize - 1).copied().unwrap_or(NEWEST_RULES)
    }

    /// How fast the slowest clock of all nodes runs, in thousandths of real time.
    pub fn slowest(&self) -> u64 {
        self.speeds.iter().copied().min().unwrap_or(1_000).min(1_000)
    }

    /// How fast the clock of a node runs, in thousandths of real time.
    pub fn speed(&self, node: NodeId) -> u64 {
        self.speeds.get(node as usize - 1).copied().unwrap_or(1_000)
    }
}

fn draw_latency(rng: &mut Rng) -> Latency {
    let most = *rng.choice(&[1, 2, 5, 30]).unwrap_or(&1);
    let spikes = *rng.choice(&[0, 0, 5, 50]).unwrap_or(&0);
    Latency { least: 0, most, spikes, spike: rng.u64(10..2_000) }
}

fn draw_load(rng: &mut Rng) -> Load {
    Load {
        clients: rng.u32(1..7),
        keys: rng.u32(1..7),
        pause_ms: *rng.choice(&[20, 200, 1_000, 3_000]).unwrap_or(&200),
        shared: *rng.choice(&[0, 30, 80]).unwrap_or(&30),
        lost: *rng.choice(&[0, 2, 20]).unwrap_or(&2),
        ttl_ms: longest(),
        metadata: *rng.choice(&[0, 0, 0, 4_000]).unwrap_or(&0),
        sets: *rng.choice(&[0, 30, 70]).unwrap_or(&0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_back() {
        for seed in 0..200 {
            let plan = Plan::draw(seed);
            let text = serde_json::to_string_pretty(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{text}");
        }
    }

    #[test]
    fn a_wrong_plan_is_refused_by_name() {
        let mut plan = serde_json::to_value(Plan::draw(1)).unwrap();
        plan["faults"] = serde_json::json!([{"at": 1, "what": "freeze", "node": 1}]);
        let error = serde_json::from_value::<Plan>(plan).unwrap_err().to_string();
        assert!(error.contains("lasts"), "{error}");
    }
}
