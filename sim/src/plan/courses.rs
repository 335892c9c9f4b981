//! Courses: faults that belong together, because a bug needs all of them in order.

use fastrand::Rng;
use ringfence_raft::NodeId;

use super::faults::{Fault, What, large, one, short};

/// Several faults in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Course {
    /// A leader is deposed while answers to its appends are under way.
    LateAnswers,
    /// A node is removed, runs on, and gets a successor with its id; then others lose their leader.
    Successor,
    /// All lose their power, and perhaps one its disk.
    Blackouts,
    /// A leader that was deposed replaces the end of its log while a flush hangs, and loses its power.
    Rewriting,
    /// A node applies what the others commit while its own flush hangs, and loses its power.
    Unflushed,
    /// A member that was up to date loses its disk, those that were behind come back, and all others go.
    Forgetful,
    /// A part of the nodes is down. The flush of the leader takes long, while others get ahead of it. Then the leader and another
    /// are cut off, and those that were down come back.
    Uneven,
    /// The path from the leader to another node carries less than what is written.
    Trickle,
    /// Nothing large comes from the leader, and all that is small.
    Clogged,
    /// All disks are slow, or all paths long, while clients hold leases.
    Sluggish,
    /// Leaders change all the time.
    Flapping,
    /// All disks are slow, and all paths long, when a leader is to be elected.
    SlowElection,
    /// The disk of a node is turned back, and all others live on.
    TurnedBack,
    /// Disks are turned back, and nobody is left who knows.
    AllTurnedBack,
    /// A node runs twice.
    Twice,
    /// Nodes move to other addresses, one by one, and leaders die.
    Moved,
    /// For long, nobody can call the leader, and all else is well.
    Uncallable,
    /// A node was away for so long that it needs a snapshot, and none arrives.
    Undelivered,
}

/// Of which each run draws one.
pub(super) const COURSES: [Option<Course>; 25] = [
    None,
    None,
    None,
    None,
    None,
    None,
    None,
    Some(Course::LateAnswers),
    Some(Course::Successor),
    Some(Course::Blackouts),
    Some(Course::Rewriting),
    Some(Course::Unflushed),
    Some(Course::Forgetful),
    Some(Course::Uneven),
    Some(Course::Trickle),
    Some(Course::Clogged),
    Some(Course::Sluggish),
    Some(Course::Flapping),
    Some(Course::SlowElection),
    Some(Course::TurnedBack),
    Some(Course::AllTurnedBack),
    Some(Course::Twice),
    Some(Course::Moved),
    Some(Course::Uncallable),
    Some(Course::Undelivered),
];

impl Course {
    /// How many nodes found its cluster.
    pub(super) fn nodes(self, rng: &mut Rng) -> u64 {
        let counts = match self {
            Self::Successor => [2, 2, 2, 3, 4],
            Self::Forgetful => [3, 3, 3, 3, 5],
            // With fewer, only one voter can be ahead of what is committed.
            Self::Uneven => [5; 5],
            Self::Trickle | Self::Clogged | Self::Sluggish | Self::Flapping | Self::SlowElection => {
                [3, 3, 3, 3, 5]
            }
            Self::TurnedBack | Self::Twice | Self::Moved | Self::Uncallable | Self::Undelivered => {
                [3, 3, 3, 5, 5]
            }
            _ => [1, 3, 3, 3, 5],
        };
        *rng.choice(&counts).unwrap_or(&3)
    }

    /// Whether it needs a log that is written fast.
    pub(super) fn is_busy(self) -> bool {
        matches!(
            self,
            Self::Rewriting
                | Self::Unflushed
                | Self::Uneven
                | Self::Trickle
                | Self::Clogged
                | Self::Sluggish
                | Self::Undelivered
        )
    }

    /// Whether it needs clients that ask for little.
    pub(super) fn is_quiet(self) -> bool {
        matches!(self, Self::Flapping | Self::Twice)
    }

    /// Whether it needs a network that is no worse than it says.
    pub(super) fn is_near(self) -> bool {
        matches!(
            self,
            Self::Trickle
                | Self::Clogged
                | Self::Sluggish
                | Self::Flapping
                | Self::SlowElection
                | Self::Moved
                | Self::Uncallable
                | Self::Undelivered
        )
    }

    /// Whether it needs snapshots all the time.
    pub(super) fn has_many_snapshots(self) -> bool {
        matches!(self, Self::Rewriting | Self::Unflushed | Self::Undelivered)
    }

    /// Whether it happens once in a run, and alone.
    pub(super) fn is_alone(self) -> bool {
        matches!(
            self,
            Self::TurnedBack
                | Self::AllTurnedBack
                | Self::Twice
                | Self::Moved
                | Self::Uncallable
                | Self::Undelivered
        )
    }

    /// Whether it turns disks back.
    pub(super) fn turns_back(self) -> bool {
        matches!(self, Self::TurnedBack | Self::AllTurnedBack)
    }

    /// Its faults, if it begins at `at`, which becomes the time of the last.
    pub(super) fn draw(self, rng: &mut Rng, nodes: u64, at: &mut u64) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut then = |at: &mut u64, after, what| {
            *at += after;
            faults.push(Fault { at: *at, what });
        };
        match self {
            Self::LateAnswers => {
                let late = rng.u64(1_200..5_000);
                let ends = (1..nodes).map(|_| late + rng.u64(0..100)).collect();
                then(at, 0, What::Late { node: 0, lasts: late + 1_000, ends });
                *at += late;
            }
            // Once in a run: the next id is taken then.
            Self::Successor if *at > 5_000 => {}
            Self::Successor => {
                let node = nodes + 1;
                then(at, 0, What::Add { asks: 0, node });
                then(at, 2_000, What::Transfer { asks: 0, to: one(rng, nodes) });
                for _ in 0..rng.u32(2..5) {
                    then(at, rng.u64(300..1_000), What::Transfer { asks: 0, to: one(rng, nodes) });
                }
                let lasts = rng.u64(1..6_000);
                then(at, 500, What::Freeze { node, lasts });
                then(at, rng.u64(1..100), What::Remove { asks: 0, node, force: rng.bool() });
                then(at, rng.u64(300..2_000), What::Replace { asks: 0, node });
                for _ in 0..3 {
                    then(at, rng.u64(1_000..3_000), What::Transfer { asks: 0, to: one(rng, node) });
                    for _ in 0..=(nodes - 1) / 2 {
                        then(
                            at,
                            rng.u64(0..500),
                            What::Deaf { node: one(rng, nodes), lasts: rng.u64(1_500..4_000) },
                        );
                    }
                }
            }
            Self::Blackouts => {
                let wiped = rng.bool().then(|| if rng.bool() { 1 } else { one(rng, nodes) });
                let pause = *rng.choice(&[0, 20, 200]).unwrap_or(&0);
                let most = *rng.choice(&[400, 400, 8_000]).unwrap_or(&400);
                let downs = (0..nodes).map(|_| rng.u64(1..most)).collect();
                // Its log ends before those of the others.
                then(at, 0, What::Deaf { node: one(rng, nodes), lasts: rng.u64(1_000..6_000) });
                then(at, rng.u64(1_000..6_000), What::Blackout { wiped, pause, downs });
                then(at, most + 2_000, What::Transfer { asks: 0, to: one(rng, nodes) });
            }
            Self::Rewriting => {
                let node = one(rng, nodes);
                // Until about when another is elected: the end that is replaced is longer than what replaces it.
                let lasts = rng.u64(900..2_500);
                then(at, 0, What::Transfer { asks: 0, to: node });
                then(at, rng.u64(200..500), What::Isolate { node, lasts });
                then(
                    at,
                    lasts - 1,
                    What::LongFlush { node, after: rng.u64(0..5), lasts: rng.u64(1_000..6_000) },
                );
                // Soon, a snapshot may end where the end that was replaced still is on disk.
                let most = *rng.choice(&[500, 2_500]).unwrap_or(&500);
                then(at, rng.u64(50..most), What::Kill { node, power: true, down: short(rng) });
            }
            Self::Unflushed => {
                let node = one(rng, nodes);
                then(at, 0, What::LongFlush { node, after: rng.u64(0..5), lasts: rng.u64(1_500..6_000) });
                then(at, rng.u64(300..4_000), What::Kill { node, power: true, down: short(rng) });
            }
            Self::Forgetful => {
                let (behind, up_to_date) = parts(rng, nodes);
                let lasts = rng.u64(500..3_000);
                for node in behind {
                    then(at, 0, What::Kill { node, power: false, down: lasts });
                }
                let begins = lasts - rng.u64(0..100);
                for (number, node) in up_to_date.into_iter().enumerate() {
                    let lost = What::Wipe { node, join: false };
                    let gone = What::Isolate { node, lasts: rng.u64(3_000..6_000) };
                    then(
                        at,
                        if number == 0 { begins } else { rng.u64(0..3) },
                        if number == 0 { lost } else { gone },
                    );
                }
            }
            Self::Uneven => {
                let (down, running) = parts(rng, nodes);
                then(at, 0, What::Transfer { asks: 0, to: running[0] });
                let (hang, lasts) = (rng.u64(100..800), rng.u64(1_000..2_500));
                then(at, rng.u64(600..1_200), What::Slow { least: 0, most: rng.u64(50..400), lasts });
                for node in down {
                    then(at, 0, What::Kill { node, power: false, down: lasts });
                }
                let before = rng.u64(0..100);
                let long = What::LongFlush { node: running[0], after: rng.u64(0..3), lasts: hang };
                then(at, lasts - hang - before, long);
                *at += hang + before - rng.u64(0..40);
                for node in running.into_iter().take(2) {
                    then(at, rng.u64(0..3), What::Isolate { node, lasts: rng.u64(3_000..6_000) });
                }
            }
            Self::Trickle => {
                let lasts = rng.u64(20_000..90_000);
                let rate = *rng.choice(&[20_000, 60_000]).unwrap_or(&20_000);
                then(at, 0, What::Narrow { from: 0, to: one(rng, nodes), rate, lasts });
                *at += lasts;
            }
            Self::Clogged => {
                let lasts = rng.u64(10_000..60_000);
                then(at, 0, What::Clog { node: 0, over: large(rng), lasts });
                *at += lasts;
            }
            Self::Sluggish => {
                let lasts = rng.u64(15_000..50_000);
                if rng.bool() {
                    let least = rng.u64(50..500);
                    then(at, 0, What::SlowDisks { least, most: rng.u64(least..601), lasts });
                } else {
                    let most = rng.u64(40..126);
                    then(at, 0, What::Slow { least: rng.u64(0..most), most, lasts });
                }
                *at += lasts;
            }
            Self::Flapping => {
                for _ in 0..8 {
                    let change = match rng.bool() {
                        true => What::Transfer { asks: 0, to: one(rng, nodes) },
                        false => What::Kill { node: 0, power: false, down: rng.u64(10..500) },
                    };
                    then(at, rng.u64(3_500..5_500), change);
                }
            }
            Self::SlowElection => {
                let lasts = rng.u64(25_000..60_000);
                let least = rng.u64(0..700);
                then(at, 0, What::SlowDisks { least, most: rng.u64(least..1_001), lasts });
                let most = rng.u64(1..251);
                then(at, 0, What::Slow { least: rng.u64(0..most), most, lasts });
                let down = rng.u64(10..500);
                if rng.bool() {
                    let downs = (0..nodes).map(|_| down).collect();
                    then(at, 1_000, What::Blackout { wiped: None, pause: 0, downs });
                } else {
                    then(at, 1_000, What::Kill { node: 0, power: false, down });
                }
                *at += lasts;
            }
            Self::TurnedBack => {
                let node = one(rng, nodes);
                // The copy is made while it is stopped, or while it runs.
                if rng.bool() {
                    then(at, 0, What::Stop { node, down: 1_500 });
                    then(at, 1_000, What::Copy);
                } else {
                    then(at, 0, What::Copy);
                }
                // The others elect a leader before it comes back, or not.
                let down = if rng.bool() { short(rng) } else { rng.u64(2_000..8_000) };
                then(at, rng.u64(3_000..8_000), What::TurnBack { nodes: vec![node], down });
            }
            Self::AllTurnedBack => {
                then(at, rng.u64(0..3_000), What::Copy);
                let (few, most) = parts(rng, nodes);
                // A majority has what is granted now. Then that majority, all nodes, or one node beside those that never had it, come
                // back as copied.
                let lasts = rng.u64(2_000..5_000);
                for node in few {
                    then(at, 0, What::Kill { node, power: false, down: lasts });
                }
                *at += lasts;
                let back = match rng.u32(0..3) {
                    0 => vec![most[0]],
                    1 => most.clone(),
                    _ => (1..=nodes).collect(),
                };
                for node in most.into_iter().filter(|node| !back.contains(node)) {
                    then(at, 0, What::Kill { node, power: false, down: 15_000 });
                }
                then(at, 0, What::TurnBack { nodes: back, down: 100 });
            }
            Self::Twice => {
                let node = one(rng, nodes);
                // While it stands still, nobody answers at its address.
                if rng.bool() {
                    then(at, 0, What::Freeze { node, lasts: rng.u64(1_000..20_000) });
                }
                then(at, rng.u64(0..1_000), What::Clone { node });
                // Soon: the copy has all of the log, and may be elected.
                for after in [1_000, 6_000, 6_000] {
                    then(at, rng.u64(100..after), What::Isolate { node: 0, lasts: rng.u64(2_000..6_000) });
                }
            }
            Self::Moved => {
                for _ in 0..rng.u32(1..4) {
                    let node = if rng.bool() { 0 } else { one(rng, nodes) };
                    then(at, 0, What::Move { node, down: rng.u64(10..3_000) });
                    // Once it is recorded.
                    let kill = What::Kill { node: 0, power: false, down: rng.u64(10..4_000) };
                    then(at, rng.u64(14_000..20_000), kill);
                    *at += 8_000;
                }
            }
            Self::Uncallable => then(at, 0, What::Deaf { node: 0, lasts: rng.u64(16_000..30_000) }),
            Self::Undelivered => {
                let lasts = rng.u64(3_000..8_000);
                then(at, 0, What::Kill { node: one(rng, nodes), power: false, down: lasts });
                then(at, rng.u64(0..lasts), What::Tear { node: 0, lasts: lasts + rng.u64(1_000..8_000) });
            }
        }
        faults
    }
}

/// The nodes in two parts: fewer than half, and a majority.
fn parts(rng: &mut Rng, nodes: u64) -> (Vec<NodeId>, Vec<NodeId>) {
    let mut few: Vec<NodeId> = (1..=nodes).collect();
    rng.shuffle(&mut few);
    let most = few.split_off((few.len() - 1) / 2);
    (few, most)
}
