//! Rolling upgrades: nodes of an older and of the new program form one cluster, under load.
//!
//! - **Roll**: old nodes become new ones, one by one, old again, and new again; then the rules are raised. After that an old
//!   program is refused. Each round is a new cluster.
//! - **Mix**: the leader is killed in every mix of old and new nodes, whichever node leads. It stays down until the others
//!   have truncated the entries that it lacks, so each time it installs a snapshot of the next leader.
//! - **Witness**: one node becomes a bad build of the new program, which decides by newer rules too early. It must stop.
//!
//! The load is that of [`Workload::Client`]: programs that use the client library, of which no call may fail, and clients
//! that make all calls. A node that stops by itself is a finding, as in every run.

mod mix;
mod next;
mod numbers;
pub mod old;
mod raise;
mod roll;
mod scene;
mod witness;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::ValueEnum;
use ringfence_harness::Ended;
use ringfence_laws::check::{Results, Verdict};
use ringfence_laws::history::{About, History};
use ringfence_patched::workspace;

use crate::faults::Carried;
use crate::field::{Field, FieldOptions};
use crate::nemesis::{BAD_BUILD, UPGRADE};
use crate::process::Load;
use crate::run::{RunOptions, run_with};
use crate::upgrade::numbers::Numbers;
use crate::upgrade::scene::Scene;
use crate::workload::Workload;

/// The patch of a version of the rules that only tests have.
pub const NEXT_RULES: &str = "next-rules";
/// The patch of a bad build, which decides by that version too early.
pub const EARLY_RULES: &str = "early-rules";
/// More than any course takes.
const AT_MOST: Duration = Duration::from_secs(1_800);
/// Bounds `ringfence --version`.
const VERSION_WITHIN: Duration = Duration::from_secs(20);
/// Every node in turn, and all mixes, of as many nodes as a cluster needs at least.
const NODES: u64 = 3;

/// What happens to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Course {
    /// Nodes become new, old and new again, one by one; then the rules are raised
    Roll,
    /// The leader is killed, and installs a snapshot, in every mix of old and new nodes
    Mix,
    /// A bad build of the new program differs from the other nodes, and must stop
    Witness,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct UpgradeOptions {
    /// The older program.
    pub old: PathBuf,
    /// The new program. If it is the same, nothing is raised or refused: such a run tests the harness.
    pub new: PathBuf,
    /// A bad build of the new program, for [`Course::Witness`].
    pub early: PathBuf,
    /// The courses.
    pub courses: Vec<Course>,
    /// How often nodes are rolled, each time in a new cluster.
    pub rounds: u32,
    /// Determines the order of nodes, how each is stopped, and the calls of the clients.
    pub seed: u64,
    /// Calls in a second.
    pub rate: u32,
    /// Where each run gets a folder.
    pub store: PathBuf,
}

/// Runs all courses. Prints a line for each run, and the sums. Returns the exit code: 0 if all were valid, 1 if a law was
/// broken, 2 if not all could be decided.
pub async fn run_upgrades(options: &UpgradeOptions, out: &mut impl Write) -> anyhow::Result<u8> {
    let (old, new) = (version(&options.old).await?, version(&options.new).await?);
    writeln!(out, "from {} ({old}) to {} ({new})", options.old.display(), options.new.display())?;
    let (mut worst, mut sum) = (Verdict::Valid, Numbers::default());
    for (course, seed) in options.runs() {
        let (history, results) = options.run(course, seed, format!("{old} and {new}")).await?;
        let numbers = Numbers::of(&history);
        writeln!(out, "{:<8} {}  {numbers}", verdict(results.verdict), options.name(course, seed))?;
        tell(&history, &results, out)?;
        out.flush()?;
        worst = worst.max(results.verdict);
        sum.add(&numbers);
    }
    writeln!(out, "\n{:<8} {sum}", verdict(worst))?;
    Ok(match worst {
        Verdict::Valid => 0,
        Verdict::Invalid => 1,
        Verdict::Unknown => 2,
    })
}

impl UpgradeOptions {
    fn runs(&self) -> impl Iterator<Item = (Course, u64)> {
        let times = |course| if course == Course::Roll { u64::from(self.rounds) } else { 1 };
        self.courses
            .iter()
            .flat_map(move |course| (0..times(*course)).map(|round| (*course, self.seed + round)))
    }

    async fn run(&self, course: Course, seed: u64, version: String) -> anyhow::Result<(History, Results)> {
        let options = RunOptions {
            program: self.new.clone(),
            nodes: NODES,
            workload: Workload::Client,
            nemeses: Vec::new(),
            time: AT_MOST,
            seed,
            rate: self.rate,
            concurrency: None,
            no_root: true,
            arguments: course.arguments(),
            folder: self.store.join(self.name(course, seed)),
        };
        let about = About {
            command: self.command(course, seed),
            seed,
            workload: options.workload.to_string(),
            nemeses: vec![if course == Course::Witness { BAD_BUILD } else { UPGRADE }.to_owned()],
            nodes: NODES,
            time_s: 0,
            version,
            began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        };
        let field = FieldOptions {
            program: self.old.clone(),
            inspector: self.new.clone(),
            arguments: options.arguments.clone(),
            root: false,
            ..FieldOptions::new(&self.old, NODES)
        };
        let go = async |field: &Field, load: &Load| self.go(course, seed, field, load).await;
        run_with(&options, about, &field, go).await
    }

    async fn go(&self, course: Course, seed: u64, field: &Field, load: &Load) -> Carried {
        let mut scene = Scene::new(field, load.clock, [&self.old, &self.new, &self.early], seed);
        let gone = match course {
            Course::Roll => scene.roll().await,
            Course::Mix => scene.mix().await,
            Course::Witness => scene.witness().await,
        };
        load.over.now();
        let failed = gone.err().map(|error| format!("{error:#}"));
        Carried { faults: scene.into_faults(), failed: failed.into_iter().collect() }
    }

    fn name(&self, course: Course, seed: u64) -> String {
        format!("upgrade-{}-{seed}", course.name())
    }

    fn command(&self, course: Course, seed: u64) -> String {
        let profile = if cfg!(debug_assertions) { "" } else { "--release " };
        format!(
            "cargo run {profile}-p ringfence-jepsen -- upgrade --course {} --rounds 1 --seed {seed} --rate {} --old {} --new {} --early {}",
            course.name(),
            self.rate,
            self.old.display(),
            self.new.display(),
            self.early.display()
        )
    }
}

impl std::fmt::Display for Course {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Course {
    fn name(self) -> &'static str {
        match self {
            Self::Roll => "roll",
            Self::Mix => "mix",
            Self::Witness => "witness",
        }
    }

    /// Snapshots that are taken often let nodes that were down for seconds need one.
    fn arguments(self) -> Vec<String> {
        match self {
            Self::Roll | Self::Witness => Vec::new(),
            Self::Mix => vec!["--snapshot-after-bytes=65536".to_owned()],
        }
    }
}

/// Builds the program from this workspace with one of the patches in `jepsen/patches/`.
pub fn with_patch(patch: &str) -> anyhow::Result<PathBuf> {
    ringfence_patched::build("ringfence", &[&path_of(patch)?])
}

/// Rolls from the program of this workspace to `new`, in one new cluster. What is stored is in `store`.
pub(crate) async fn roll(
    new: &Path,
    seed: u64,
    rate: u32,
    store: &Path,
) -> anyhow::Result<(History, Results)> {
    let (old, new) = (ringfence_patched::build("ringfence", &[])?, new.to_owned());
    let versions = format!("{} and {}", version(&old).await?, version(&new).await?);
    let (courses, store) = (vec![Course::Roll], store.to_owned());
    let options = UpgradeOptions { old, early: new.clone(), new, courses, rounds: 1, seed, rate, store };
    options.run(Course::Roll, seed, versions).await
}

pub(crate) fn path_of(patch: &str) -> anyhow::Result<PathBuf> {
    Ok(workspace()?.join("jepsen/patches").join(patch).with_extension("patch"))
}

async fn version(program: &Path) -> anyhow::Result<String> {
    let Ended { status, output } = ringfence_harness::run(program, ["--version"], VERSION_WITHIN).await?;
    status
        .success()
        .then(|| output.trim().to_owned())
        .with_context(|| format!("{}: {output}", program.display()))
}

fn tell(history: &History, results: &Results, out: &mut impl Write) -> anyhow::Result<()> {
    for law in results.laws.iter().filter(|law| law.verdict != Verdict::Valid) {
        let why = law.found.breaches.first().map(|breach| &breach.what).or(law.found.undecided.as_ref());
        writeln!(out, "         {}: {}", law.name, why.map_or("", String::as_str))?;
    }
    for missing in &history.end.missing {
        writeln!(out, "         missing: {missing}")?;
    }
    Ok(())
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Valid => "valid",
        Verdict::Unknown => "UNKNOWN",
        Verdict::Invalid => "INVALID",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    #[test]
    fn the_patches_apply() {
        for patch in [NEXT_RULES, EARLY_RULES] {
            ringfence_patched::check(&path_of(patch).unwrap()).unwrap();
        }
    }
}
