//! One row, from the start of its cluster to its verdict.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_harness::until;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::fault::{Fault, Scene};
use super::figure::{Figure, Figures, Promise, Verdict};
use super::probe::Probe;
use super::queue::{Holder, Queue};
use super::stage::Stage;

/// A cluster that is not founded, or does not heal, is given up after this.
const FOUNDED: Duration = Duration::from_secs(40);
const HEALED: Duration = Duration::from_secs(30);
/// Bounds what is done before something is wrong.
const SOON: Duration = Duration::from_secs(20);

/// At which node a fault is aimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Leader,
    Follower,
    Node(u64),
}

/// How a row is played, whatever is wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    pub(super) aim: Aim,
    pub(super) holder: Holder,
    /// The time-to-live of the holder.
    pub(super) ttl: Duration,
    /// How long something is wrong.
    pub(super) lasts: Duration,
    /// Whether nothing else is asked of the cluster.
    pub(super) idle: bool,
}

/// Where a row is played.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    pub(super) program: PathBuf,
    /// Of this row alone.
    pub(super) folder: PathBuf,
}

/// What came of a row.
#[derive(Debug, Serialize)]
pub(super) struct Played {
    pub(super) verdict: Verdict,
    pub(super) measured: Figures,
    /// More than promised.
    pub(super) broken: Vec<Figure>,
    /// What was observed of the fault.
    pub(super) observed: Option<String>,
    /// Why the verdict is not known, or what failed.
    pub(super) failed: Option<String>,
    pub(super) seconds: u64,
}

/// Plays a row.
pub(super) async fn play<F: Fault>(ground: Ground, course: Course, promise: Promise, fault: F) -> Played {
    let (began, mut measured) = (Instant::now(), Figures::new());
    let result = perform(&ground, course, fault, &mut measured).await;
    let (observed, failed) = match result {
        Ok(observed) => (Some(observed), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    // A cluster that was never founded has met what was wrong, too.
    let is_observed = observed.is_some() || promise.broken(&measured).contains(&Figure::Founded);
    Played {
        verdict: promise.judge(&measured, is_observed),
        broken: promise.broken(&measured),
        measured,
        observed,
        failed,
        seconds: began.elapsed().as_secs(),
    }
}

/// Returns what was observed of the fault.
async fn perform<F: Fault>(
    ground: &Ground,
    course: Course,
    mut fault: F,
    figures: &mut Figures,
) -> anyhow::Result<String> {
    std::fs::create_dir_all(&ground.folder)?;
    let stage = Stage::set_up(&ground.program, &ground.folder, &fault.setup()).await?;
    fault.arrange(&stage).await?;
    let since = Instant::now();
    stage.ids().into_iter().try_for_each(|id| stage.start(id))?;
    let founded = stage.ready(&stage.ids(), since, FOUNDED).await;
    figures.insert(Figure::Founded, founded);
    ensure!(founded < FOUNDED.as_secs_f64(), "the cluster was not founded");

    let probe = Probe::start(&stage, course.idle);
    let weigh = probe.weigh(&stage);
    let rest = async {
        let works = async || (course.idle || probe.works()).then_some(());
        until(SOON, "each node grants, and renews", works).await?;
        let leader = stage.leader().await?;
        let target = match course.aim {
            Aim::Leader => leader,
            Aim::Follower => stage.others(&[leader])[0],
            Aim::Node(id) => id,
        };
        let mut queue = Queue::form(&stage, target, course.ttl, course.holder).await?;

        let from = Instant::now();
        let mut scene = Scene { stage: &stage, queue: &mut queue, target, figures };
        let hit = fault.inflict(&mut scene).await.context("it cannot be broken")?;
        let well = stage.others(&hit);
        scene.queue.comes_late(&stage, &well)?;
        tokio::select! {
            () = sleep_until(from + course.lasts) => {}
            failed = fault.go_on(&stage) => failed.context("it does not stay broken")?,
        }
        let to = Instant::now();
        if !course.idle {
            probe.tell(&well, from, to, scene.figures);
        }
        probe.tell_memory(from, scene.figures);
        let observed = fault.observed(&mut scene).await;
        let (since, healed) = (Instant::now(), fault.heal(&mut scene).await);
        let ids = healed.as_deref().map_or(Vec::new(), <[u64]>::to_vec);
        let healed_s = stage.ready(&ids, since, HEALED).await;
        figures.insert(Figure::Healed, if healed.is_ok() { healed_s } else { HEALED.as_secs_f64() });
        queue.tell(to, figures);
        probe.tell_tokens(figures);
        match (observed, healed) {
            (Ok(observed), Err(error)) => Ok(format!("{observed}; then: {error:#}")),
            (observed, _) => observed,
        }
    };
    let observed = tokio::select! {
        observed = rest => observed,
        () = weigh => unreachable!("it has no end"),
    };
    figures.insert(Figure::Panics, keep_logs(&stage)? as f64);
    observed
}

/// Copies what the nodes have logged, and counts those that panicked.
fn keep_logs(stage: &Stage) -> anyhow::Result<usize> {
    let mut panicked = 0;
    for node in stage.cluster.nodes() {
        let (path, log) = (stage.folder.join(format!("node-{}.log", node.id())), node.log());
        if !log.is_empty() {
            std::fs::write(&path, log)?;
        }
        panicked += usize::from(std::fs::read_to_string(&path).is_ok_and(|log| log.contains("panicked")));
    }
    Ok(panicked)
}
