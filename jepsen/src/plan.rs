//! The schedule of faults, drawn from a seed alone.
//!
//! Every nemesis has its own sequence of steps, so faults of different nemeses overlap, with these exceptions:
//! - A node has one fault of its process or disk at a time.
//! - Faults that **take acknowledged data** hit a minority, and the next one starts only after that minority had time to
//!   rejoin as new members. Raft guarantees nothing to a cluster that loses more. (Execution checks that they did rejoin.)
//! - Redis has one fault at a time, and so have the clocks.
//!
//! The leader is not known in advance: a step that is aimed at it looks it up when it starts.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::nemesis::Nemesis;

/// The minimum time between two faults that must not overlap.
const APART: Duration = Duration::from_secs(1);
/// The same, after data was taken from nodes.
const RECOVERY: Duration = Duration::from_secs(8);
/// Attempts to place a step.
const ATTEMPTS: usize = 24;

/// Steps, ordered by start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    seed: u64,
    steps: Vec<Step>,
}

/// One fault to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it starts.
    pub at: Duration,
    /// How long it lasts, at least.
    pub lasts: Duration,
    /// What it is.
    pub deed: Deed,
    /// Its target.
    pub aim: Aim,
}

/// The target of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// These nodes; the order matters for partitions.
    Nodes(Vec<u64>),
    /// The leader at that time; the first of these if there is none.
    Leader(Vec<u64>),
    /// Not a node.
    Elsewhere,
}

/// A nemesis with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A nemesis without parameters.
    Plain(Nemesis),
    /// Some nodes do not hear others.
    Partition(Shape),
    /// One jump, undone at the end.
    JumpWallClock {
        /// Seconds.
        by_s: i64,
    },
    /// Repeated jumps, back and forth.
    StrobeWallClock {
        /// Seconds.
        by_s: i64,
    },
    /// One jump forward, never undone.
    JumpMonotonicClock {
        /// Seconds.
        by_s: u64,
    },
    /// Every sync takes this much longer.
    SlowFlush {
        /// Milliseconds.
        by_ms: u64,
    },
    /// A crash within a flush.
    TearTail {
        /// Which sectors are lost.
        draw: u64,
    },
    /// A bit of the log is flipped.
    FlipBit {
        /// Which bit.
        draw: u64,
    },
}

/// The shape of a partition of nodes in a given order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The first half and the rest do not hear each other.
    Halves,
    /// Each node hears a majority, no two the same one.
    Ring,
    /// Two halves that are connected only through the node between them.
    Bridge,
    /// Packets from the first node are lost.
    Mute,
    /// Packets to the first node are lost.
    Deaf,
    /// The first node is cut off.
    Isolated,
    /// The first node is cut off repeatedly.
    Flapping,
}

impl Plan {
    /// A plan of `nemeses` for a cluster of this many nodes. Equal arguments give equal plans.
    pub fn new(seed: u64, nemeses: &[Nemesis], nodes: u64, time: Duration) -> Self {
        let mut rng = Rng::with_seed(seed);
        let pace = u32::try_from(nemeses.len()).unwrap_or(u32::MAX).div_ceil(2).max(1);
        let mut rows: Vec<(Nemesis, Duration)> =
            nemeses.iter().map(|nemesis| (*nemesis, between(&mut rng, time / 20, time / 4))).collect();
        let mut steps: Vec<Step> = Vec::new();
        while !rows.is_empty() {
            rows.retain_mut(|(nemesis, from)| {
                for _ in 0..ATTEMPTS {
                    let step = draw(&mut rng, *nemesis, nodes, time, *from);
                    if step.end() > time {
                        return false;
                    }
                    if steps.iter().all(|other| step.may_be_beside(other)) {
                        let gap = between(&mut rng, Duration::from_secs(1), Duration::from_secs(4));
                        *from = step.end() + gap * pace;
                        steps.push(step);
                        return true;
                    }
                    *from += time / 20;
                }
                false
            });
        }
        steps.sort_by_key(|step| step.at);
        Self { seed, steps }
    }

    /// A plan of given steps.
    pub fn of(steps: Vec<Step>) -> Self {
        Self { seed: 0, steps }
    }

    /// Its steps, ordered by start.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl Step {
    fn end(&self) -> Duration {
        self.at + self.lasts
    }

    fn may_be_beside(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.deed.nemesis(), other.deed.nemesis());
        let both = |hits: fn(Nemesis) -> bool| hits(mine) && hits(theirs);
        let loses = both(Nemesis::takes_data);
        let apart = if loses { RECOVERY } else { APART };
        let overlap = self.at < other.end() + apart && other.at < self.end() + apart;
        let is_shared = both(Nemesis::hits_processes) && self.aim.meets(&other.aim);
        let is_one = both(Nemesis::hits_redis) || both(Nemesis::hits_clocks);
        !(overlap && (mine == theirs || loses || is_shared || is_one))
    }
}

impl Aim {
    /// Whether both certainly hit the same node.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nodes(mine), Self::Nodes(theirs)) => mine.iter().any(|id| theirs.contains(id)),
            _ => false,
        }
    }
}

/// Draws a step of a nemesis that starts at `at`.
fn draw(rng: &mut Rng, nemesis: Nemesis, nodes: u64, time: Duration, at: Duration) -> Step {
    let deed = Deed::draw(nemesis, rng);
    let (least_ms, most_ms) = nemesis.lasts_ms();
    let lasts = between(rng, Duration::from_millis(least_ms), Duration::from_millis(most_ms));
    // Even in a short run, each fault ends before the run does.
    let lasts = lasts.min(time / 2);
    let aim = aim(rng, deed, nodes);
    Step { at, lasts, deed, aim }
}

fn aim(rng: &mut Rng, deed: Deed, nodes: u64) -> Aim {
    let mut order: Vec<u64> = (1..=nodes).collect();
    rng.shuffle(&mut order);
    let minority = (nodes.saturating_sub(1) / 2) as usize;
    let sizes: &[usize] = match deed.nemesis() {
        Nemesis::Partition => return if rng.bool() { Aim::Leader(order) } else { Aim::Nodes(order) },
        nemesis if nemesis.hits_redis() || nemesis == Nemesis::ClientPause => return Aim::Elsewhere,
        Nemesis::Transfer | Nemesis::Replace => return Aim::Nodes(order[..1].to_vec()),
        Nemesis::LoneLeader | Nemesis::LeaderPause => return Aim::Leader(order),
        Nemesis::FullDisk | Nemesis::FailingFlush | Nemesis::TornTail | Nemesis::BitFlip | Nemesis::Wipe => {
            &[1, minority]
        }
        Nemesis::PowerCut => &[1, minority, nodes as usize, nodes as usize],
        _ => &[1, minority, minority + 1, nodes as usize],
    };
    match rng.usize(..=sizes.len()) {
        0 => Aim::Leader(order),
        size => Aim::Nodes(order[..sizes[size - 1].max(1)].to_vec()),
    }
}

fn between(rng: &mut Rng, least: Duration, most: Duration) -> Duration {
    let (least, most) = (least.as_millis() as u64, most.as_millis() as u64);
    Duration::from_millis(rng.u64(least..=most.max(least)))
}

impl Deed {
    fn draw(nemesis: Nemesis, rng: &mut Rng) -> Self {
        let hours = |rng: &mut Rng| 3_600 * rng.i64(1..=26) * if rng.bool() { 1 } else { -1 };
        match nemesis {
            Nemesis::Partition => Self::Partition(Shape::ALL[rng.usize(..Shape::ALL.len())]),
            Nemesis::WallClock if rng.bool() => Self::StrobeWallClock { by_s: hours(rng) },
            Nemesis::WallClock => Self::JumpWallClock { by_s: hours(rng) },
            Nemesis::MonotonicClock => Self::JumpMonotonicClock { by_s: rng.u64(1..=60) },
            Nemesis::SlowFlush => Self::SlowFlush { by_ms: rng.u64(50..=4_000) },
            Nemesis::TornTail => Self::TearTail { draw: rng.u64(..) },
            Nemesis::BitFlip => Self::FlipBit { draw: rng.u64(..) },
            nemesis => Self::Plain(nemesis),
        }
    }

    /// Its nemesis.
    pub fn nemesis(self) -> Nemesis {
        match self {
            Self::Plain(nemesis) => nemesis,
            Self::Partition(_) => Nemesis::Partition,
            Self::JumpWallClock { .. } | Self::StrobeWallClock { .. } => Nemesis::WallClock,
            Self::JumpMonotonicClock { .. } => Nemesis::MonotonicClock,
            Self::SlowFlush { .. } => Nemesis::SlowFlush,
            Self::TearTail { .. } => Nemesis::TornTail,
            Self::FlipBit { .. } => Nemesis::BitFlip,
        }
    }
}

impl Shape {
    const ALL: [Self; 7] =
        [Self::Halves, Self::Ring, Self::Bridge, Self::Mute, Self::Deaf, Self::Isolated, Self::Flapping];

    /// The lost directions, as sender and receiver.
    pub fn lost(self, order: &[u64]) -> Vec<(u64, u64)> {
        let (half, first) = (order.len() / 2, order.get(..1).unwrap_or_default());
        let rest = order.get(1..).unwrap_or_default();
        let both = |left: &[u64], right: &[u64]| [pairs(left, right), pairs(right, left)].concat();
        match self {
            Self::Halves => both(&order[..half], &order[half..]),
            Self::Bridge => both(&order[..half], order.get(half + 1..).unwrap_or_default()),
            Self::Mute => pairs(first, rest),
            Self::Deaf => pairs(rest, first),
            Self::Isolated | Self::Flapping => both(first, rest),
            // Each node hears those that follow it in the ring.
            Self::Ring => (0..order.len())
                .flat_map(|at| (half + 1..order.len()).map(move |by| (at + by, at)))
                .map(|(from, to)| (order[from % order.len()], order[to]))
                .collect(),
        }
    }
}

/// The Cartesian product of `from` and `to`.
pub(crate) fn pairs(from: &[u64], to: &[u64]) -> Vec<(u64, u64)> {
    from.iter().flat_map(|from| to.iter().map(|to| (*from, *to))).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} steps", self.seed, self.steps.len())?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f64(), self.lasts.as_secs_f64());
        write!(f, "{at:7.2} s, for {lasts:5.2} s: {:?}", self.deed)?;
        match &self.aim {
            Aim::Nodes(nodes) => write!(f, ", nodes {nodes:?}"),
            Aim::Leader(order) => write!(f, ", the leader (or first) of {order:?}"),
            Aim::Elsewhere => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    fn plans() -> impl Iterator<Item = (u64, u64, Plan)> {
        (0..1_000)
            .flat_map(|seed| [3, 5].map(|nodes| (seed, nodes, Plan::new(seed, Nemesis::all(), nodes, TIME))))
    }

    #[test]
    fn equal_seeds_give_equal_steps_and_other_seeds_others() {
        for (seed, nodes, plan) in plans().take(100) {
            assert_eq!(plan, Plan::new(seed, Nemesis::all(), nodes, TIME));
            assert_ne!(plan.steps, Plan::new(seed + 1, Nemesis::all(), nodes, TIME).steps);
        }
    }

    #[test]
    fn every_nemesis_takes_part_and_ends_in_time() {
        for (seed, _, plan) in plans() {
            for nemesis in Nemesis::all().iter().copied() {
                assert!(plan.steps.iter().any(|step| step.deed.nemesis() == nemesis), "{seed}: {nemesis}");
            }
            assert!(plan.steps.iter().all(|step| step.end() <= TIME), "{plan}");
            assert!(plan.steps.is_sorted_by_key(|step| step.at), "{plan}");
        }
        for nemesis in Nemesis::all().iter().copied() {
            for seed in 0..100 {
                assert!(
                    !Plan::new(seed, &[nemesis], 3, Duration::from_secs(10)).steps.is_empty(),
                    "{nemesis}"
                );
            }
        }
    }

    #[test]
    fn data_is_taken_from_one_minority_at_a_time_with_time_to_recover() {
        let mut seen = 0;
        for (_, nodes, plan) in plans() {
            let takers: Vec<&Step> =
                plan.steps.iter().filter(|step| step.deed.nemesis().takes_data()).collect();
            for step in &takers {
                let hit = match &step.aim {
                    Aim::Nodes(hit) => hit.len(),
                    Aim::Leader(_) => 1,
                    Aim::Elsewhere => 0,
                };
                assert!((1..=(nodes as usize - 1) / 2).contains(&hit), "{step}");
            }
            for (one, next) in takers.iter().zip(takers.iter().skip(1)) {
                assert!(one.end() + RECOVERY <= next.at, "{one}\n{next}");
                seen += 1;
            }
        }
        assert!(seen > 1_000, "{seen}");
    }

    #[test]
    fn a_node_has_one_fault_of_its_process_at_a_time() {
        let mut beside = 0;
        for (_, _, plan) in plans() {
            for (at, one) in plan.steps.iter().enumerate() {
                for other in plan.steps[at + 1..].iter().filter(|other| other.at < one.end()) {
                    let both =
                        |does: fn(Nemesis) -> bool| does(one.deed.nemesis()) && does(other.deed.nemesis());
                    let same = matches!((&one.aim, &other.aim),
                        (Aim::Nodes(some), Aim::Nodes(others)) if some.iter().any(|id| others.contains(id)));
                    assert!(!(both(Nemesis::hits_processes) && same), "{one}\n{other}");
                    assert!(!both(Nemesis::hits_redis) && !both(Nemesis::hits_clocks), "{one}\n{other}");
                    beside += 1;
                }
            }
        }
        assert!(beside > 10_000, "nothing overlaps: {beside}");
    }

    #[test]
    fn in_a_ring_each_node_hears_a_majority_and_no_two_the_same() {
        for nodes in [3_u64, 5] {
            let order: Vec<u64> = (1..=nodes).collect();
            let lost = Shape::Ring.lost(&order);
            let heard = |to: u64| -> Vec<u64> {
                order.iter().copied().filter(|from| !lost.contains(&(*from, to))).collect()
            };
            let all: Vec<Vec<u64>> = order.iter().map(|to| heard(*to)).collect();
            for (at, one) in all.iter().enumerate() {
                assert_eq!(one.len() as u64, nodes / 2 + 1);
                assert!(!all[at + 1..].contains(one));
            }
        }
        assert_eq!(Shape::Bridge.lost(&[1, 2, 3]), [(1, 3), (3, 1)]);
        assert_eq!(Shape::Halves.lost(&[3, 1, 2]), [(3, 1), (3, 2), (1, 3), (2, 3)]);
        assert_eq!(Shape::Mute.lost(&[3, 1, 2]), [(3, 1), (3, 2)]);
    }
}
