//! Many runs, one after the other, and a table of what came of them.
//!
//! - `quick`: every workload once, with faults that are cheap to make; a few minutes.
//! - `full`: every workload with every nemesis that it makes sense with, on three nodes and on five; hours.
//! - `soak`: all workloads in turn, each with several faults mixed anew, for an hour.
//!
//! The unfenced register is the control: a suite fails where the checker does not find its lost updates.
//!
//! A run that did not happen to exercise what it is for is done again, with other seeds: only what stays unknown counts.

use std::fmt::{self, Write as _};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use ringfence_laws::check::loop_lag;
use ringfence_laws::check::register::FENCED_REGISTER;
use ringfence_laws::check::{Results, Verdict};
use ringfence_laws::history::{Conclusion, History};
use tokio::time::Instant;

use crate::nemesis::Nemesis;
use crate::run::{RunOptions, run};
use crate::workload::Workload;

/// How long load and faults of a run of `full` go on, and of `soak`.
const FULL: Duration = Duration::from_secs(60);
const SOAK: Duration = Duration::from_secs(300);
/// How long a soak takes if nothing is said.
const HOUR: Duration = Duration::from_secs(3_600);

/// Which runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Every workload once, with cheap faults
    Quick,
    /// Every workload with every useful fault, on three nodes and on five
    Full,
    /// Mixed faults for an hour
    Soak,
}

/// What all runs of a suite have in common.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// The program under test.
    pub program: PathBuf,
    /// How long: of `full`, each run; of `soak`, the whole.
    pub time: Option<Duration>,
    /// Only runs with this in their names.
    pub only: Option<String>,
    /// Of all runs.
    pub common: Common,
}

/// What all runs have in common.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Seed of the schedule [default: random; it is printed]
    #[arg(long, default_value_t = fastrand::u32(..).into(), hide_default_value = true)]
    pub seed: u64,
    /// Calls per second, of all clients together
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Folder for the results, with one folder per run
    #[arg(long, default_value = "store")]
    pub store: PathBuf,
    /// Use no features that need root
    #[arg(long)]
    pub no_root: bool,
}

/// How a run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Went {
    /// As it has to.
    Well,
    /// Not all could be told.
    Unknown,
    /// There is a breach, or the control shows none.
    Wrong,
    /// It could not be done.
    Failed,
}

/// How often a run is done, until it can be told.
const ATTEMPTS: u64 = 3;

struct Row {
    went: Went,
    options: RunOptions,
    text: String,
}

/// Does all runs of `suite`; tells of each on `out`, and of all in the end. Gives the exit code: 0 where all went as they have
/// to, 1 where there is a breach, 2 where not all could be told, 3 where a run could not be done.
pub async fn run_suite(suite: Suite, options: &SuiteOptions, out: &mut impl Write) -> anyhow::Result<u8> {
    writeln!(
        out,
        "seed {}; each run is stored below {}",
        options.common.seed,
        options.common.store.display()
    )?;
    for (nemesis, why) in Nemesis::all().iter().filter_map(|nemesis| Some((nemesis, unsuited(*nemesis)?))) {
        writeln!(out, "left out: {nemesis}, as {why}")?;
    }
    let began = Instant::now();
    let mut rows = Vec::new();
    let mut cases = suite.cases(options);
    while let Some(mut run_options) =
        cases.next().filter(|_| suite != Suite::Soak || began.elapsed() < options.time.unwrap_or(HOUR))
    {
        if options.only.as_ref().is_some_and(|only| !run_options.name().contains(only)) {
            continue;
        }
        for attempt in 1..=ATTEMPTS {
            run_options.folder = options.common.store.join(run_options.name());
            let row = row(run_options.clone()).await;
            run_options.seed += 1;
            writeln!(out, "{}", row.text)?;
            out.flush()?;
            if row.went != Went::Unknown || attempt == ATTEMPTS {
                rows.push(row);
                break;
            }
        }
    }
    write!(out, "\n{}", table(&mut rows, began.elapsed()))?;
    Ok(match rows.iter().map(|row| row.went).max() {
        Some(Went::Well) => 0,
        Some(Went::Wrong) => 1,
        Some(Went::Unknown) | None => 2,
        Some(Went::Failed) => 3,
    })
}

/// Why a nemesis cannot be had here.
fn unsuited(nemesis: Nemesis) -> Option<String> {
    nemesis.suits(true).err()
}

async fn row(options: RunOptions) -> Row {
    let began = Instant::now();
    let done = run(&options).await;
    let took = began.elapsed().as_secs();
    let (went, told) = match done {
        Ok((history, results)) => {
            (went(options.workload, &results), tell(options.workload, &history, &results))
        }
        Err(error) => (Went::Failed, format!("{error:#}")),
    };
    let text = format!("{went:<8} {:<50} {took:>4} s  {told}", options.name());
    Row { went, options, text }
}

/// The control has to fail, and by the law that it is the control of.
fn went(workload: Workload, results: &Results) -> Went {
    let control = results.laws.iter().find(|law| law.name == FENCED_REGISTER.name);
    let others =
        results.laws.iter().filter(|law| law.name != FENCED_REGISTER.name).map(|law| law.verdict).max();
    let verdict = match (workload, control.map(|law| law.verdict)) {
        (Workload::UnfencedRegister, Some(Verdict::Invalid)) => others.unwrap_or(Verdict::Valid),
        // Nobody came too late.
        (Workload::UnfencedRegister, Some(Verdict::Unknown)) => {
            others.map_or(Verdict::Unknown, |it| it.max(Verdict::Unknown))
        }
        (Workload::UnfencedRegister, _) => Verdict::Invalid,
        _ => results.verdict,
    };
    match verdict {
        Verdict::Valid => Went::Well,
        Verdict::Unknown => Went::Unknown,
        Verdict::Invalid => Went::Wrong,
    }
}

fn tell(workload: Workload, history: &History, results: &Results) -> String {
    let count =
        |is: fn(&Conclusion) -> bool| history.calls.iter().filter(|call| is(&call.conclusion)).count();
    let mut told = format!(
        "{} calls, {} grants, {} unknown, {} stale, {} faults",
        history.calls.len(),
        count(|conclusion| matches!(conclusion, Conclusion::Granted { standing: false, .. })),
        count(|conclusion| matches!(conclusion, Conclusion::Unknown { .. })),
        count(|conclusion| matches!(conclusion, Conclusion::Stale { .. })),
        history.faults.len()
    );
    if let Some(longest_ms) = results.laws.iter().find_map(|law| law.found.counts.get(loop_lag::LONGEST)) {
        let _ = write!(told, ", loop lag over {longest_ms} ms");
    }
    for law in results.laws.iter().filter(|law| law.verdict != Verdict::Valid) {
        let must = workload == Workload::UnfencedRegister && law.name == FENCED_REGISTER.name;
        let must = if must && law.verdict == Verdict::Invalid { "as it must without a guard, " } else { "" };
        let why = law.found.breaches.first().map(|breach| &breach.what).or(law.found.undecided.as_ref());
        let _ = write!(told, "\n         {must}{}: {}", law.name, why.map_or("", String::as_str));
    }
    for missing in &history.end.missing {
        let _ = write!(told, "\n         missing: {missing}");
    }
    told
}

fn table(rows: &mut [Row], took: Duration) -> String {
    rows.sort_by_key(|row| row.went);
    let mut table = String::new();
    for went in [Went::Well, Went::Unknown, Went::Wrong, Went::Failed] {
        let count = rows.iter().filter(|row| row.went == went).count();
        let _ = writeln!(table, "{went:<8} {count:>4} runs");
    }
    let _ = writeln!(table, "in {} s", took.as_secs());
    for row in rows.iter().filter(|row| row.went != Went::Well) {
        let (command, folder) = (row.options.command(), row.options.folder.display());
        let _ = writeln!(table, "\n{}\n         again: {command}\n         stored: {folder}", row.text);
    }
    table
}

impl fmt::Display for Went {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Well => "well",
            Self::Unknown => "UNKNOWN",
            Self::Wrong => "WRONG",
            Self::Failed => "FAILED",
        })
    }
}

impl SuiteOptions {
    fn run(
        &self,
        nodes: u64,
        workload: Workload,
        nemeses: Vec<Nemesis>,
        time: Duration,
        seed: u64,
    ) -> RunOptions {
        RunOptions {
            program: self.program.clone(),
            nodes,
            workload,
            nemeses,
            time,
            seed,
            rate: self.common.rate,
            concurrency: None,
            no_root: self.common.no_root,
            arguments: Vec::new(),
            folder: PathBuf::new(),
        }
    }
}

impl Suite {
    fn cases(self, options: &SuiteOptions) -> Box<dyn Iterator<Item = RunOptions> + Send> {
        let is_suited = |nemesis: &Nemesis| unsuited(*nemesis).is_none();
        let suited: Vec<Nemesis> = Nemesis::all().iter().copied().filter(is_suited).collect();
        let (options, mut rng) = (options.clone(), Rng::with_seed(options.common.seed));
        // Seeds are typed by people.
        let mut seed = move || u64::from(rng.u32(..));
        let fitting = move |workload| -> Vec<Nemesis> {
            suited.iter().copied().filter(|nemesis| makes_sense(workload, *nemesis)).collect()
        };
        match self {
            Self::Quick => Box::new(quick().into_iter().map(move |(workload, nemeses, time_s)| {
                let nemeses = nemeses.iter().copied().filter(is_suited).collect();
                options.run(3, workload, nemeses, Duration::from_secs(time_s), seed())
            })),
            Self::Full => {
                let mut cases = Vec::new();
                for (nodes, workload) in
                    [3, 5].into_iter().flat_map(|nodes| Workload::ALL.map(|it| (nodes, it)))
                {
                    for nemesis in [None].into_iter().chain(fitting(workload).into_iter().map(Some)) {
                        let (nemeses, time) = (nemesis.into_iter().collect(), options.time.unwrap_or(FULL));
                        cases.push(options.run(nodes, workload, nemeses, time, seed()));
                    }
                }
                Box::new(cases.into_iter())
            }
            Self::Soak => Box::new((0..).map(move |number: usize| {
                let workload = Workload::ALL[number % Workload::ALL.len()];
                let seed = seed();
                let mut rng = Rng::with_seed(seed);
                let mut nemeses = fitting(workload);
                rng.shuffle(&mut nemeses);
                nemeses.truncate(rng.usize(3..=6));
                while Nemesis::suit_each_other(&nemeses).is_err() {
                    nemeses.pop();
                }
                let nodes = if (number / Workload::ALL.len()).is_multiple_of(2) { 3 } else { 5 };
                options.run(nodes, workload, nemeses, SOAK, seed)
            })),
        }
    }
}

/// Workload, nemeses, seconds.
fn quick() -> Vec<(Workload, &'static [Nemesis], u64)> {
    vec![
        (Workload::UnfencedRegister, &[Nemesis::ClientPause], 10),
        (Workload::FencedRegister, &[Nemesis::ClientPause, Nemesis::Kill], 14),
        (Workload::Lease, &[Nemesis::Partition, Nemesis::Pause], 14),
        (Workload::LockedSet, &[Nemesis::Replace], 12),
        (Workload::Queue, &[Nemesis::Transfer, Nemesis::Partition], 10),
        (Workload::Resp, &[Nemesis::Kill, Nemesis::Pause], 16),
        (Workload::Mirror, &[Nemesis::RedisKill, Nemesis::RedisEmpty, Nemesis::Kill], 12),
    ]
}

/// Whether a nemesis shows something with this workload.
fn makes_sense(workload: Workload, nemesis: Nemesis) -> bool {
    match workload {
        Workload::Mirror => true,
        // It shows that the checker sees lost updates: pauses are enough for that.
        Workload::UnfencedRegister => matches!(nemesis, Nemesis::ClientPause | Nemesis::Pause),
        _ => !nemesis.hits_redis(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_laws::check::{Breach, Found, Judged};

    fn options(seed: u64) -> SuiteOptions {
        SuiteOptions {
            program: "ringfence".into(),
            time: None,
            only: None,
            common: Common { seed, rate: 50, no_root: true, store: "store".into() },
        }
    }

    fn results(laws: &[(&str, Verdict)]) -> Results {
        let law = |&(name, verdict): &(&str, Verdict)| Judged {
            name: name.into(),
            law: String::new(),
            verdict,
            found: Found {
                breaches: vec![Breach { what: "it is wrong".into(), calls: Vec::new() }],
                ..Found::default()
            },
        };
        let verdict = laws.iter().map(|law| law.1).max().unwrap_or(Verdict::Unknown);
        Results { verdict, about: Default::default(), laws: laws.iter().map(law).collect() }
    }

    #[test]
    fn the_same_seed_gives_the_same_runs() {
        for suite in [Suite::Quick, Suite::Full, Suite::Soak] {
            let cases = |seed| suite.cases(&options(seed)).take(50).collect::<Vec<_>>();
            assert_eq!(cases(1), cases(1));
            assert_ne!(cases(1), cases(2));
        }
    }

    #[test]
    fn every_suite_has_every_workload() {
        for suite in [Suite::Quick, Suite::Full, Suite::Soak] {
            let cases: Vec<RunOptions> = suite.cases(&options(1)).take(1_000).collect();
            for workload in Workload::ALL {
                assert!(cases.iter().any(|case| case.workload == workload), "{suite:?} lacks {workload}");
            }
        }
    }

    #[test]
    fn the_control_has_to_lose_updates_and_nothing_else() {
        let (control, law) = (Workload::UnfencedRegister, FENCED_REGISTER.name);
        let (valid, invalid) = (Verdict::Valid, Verdict::Invalid);
        assert_eq!(went(control, &results(&[(law, invalid), ("other", valid)])), Went::Well);
        assert_eq!(went(control, &results(&[(law, valid), ("other", valid)])), Went::Wrong);
        assert_eq!(went(control, &results(&[(law, invalid), ("other", invalid)])), Went::Wrong);
        assert_eq!(went(control, &results(&[(law, Verdict::Unknown)])), Went::Unknown);
        assert_eq!(went(Workload::FencedRegister, &results(&[(law, invalid)])), Went::Wrong);
        assert_eq!(went(Workload::FencedRegister, &results(&[(law, valid)])), Went::Well);
    }
}
