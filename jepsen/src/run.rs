//! One run: nodes are started, load and faults go on for the time, all is healed and settles, what is there in the end is
//! read, and the whole is judged and stored.
//!
//! Whatever fails after the nodes were started costs no history: it stands in the end's `missing`, and makes the verdict
//! unknown at best.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use ringfence_harness::{Client, Consistency, Node, Reply, definite, until};
use ringfence_laws::check::{self, Results, Verdict};
use ringfence_laws::history::{About, End, History, Invocation, MirrorEntry};
use ringfence_laws::store;
use ringfence_patched::program;
use ringfence_wire::{Key, KeyView, LeaseId};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::clock::Clock;
use crate::faults::{Carried, carry_out};
use crate::field::{Field, FieldOptions};
use crate::nemesis::Nemesis;
use crate::plan::Plan;
use crate::process::{Load, Over, Pace, Process, RespConnections};
use crate::recorder::Recorder;
use crate::registers::Registers;
use crate::sights::{Leader, MirrorReader, watch_lags, watch_mirror, watch_nodes};
use crate::workload::{Workload, exclusive, held};

/// How long all leases may take to end, and the mirror to show what is so, before that is read as it stands.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);
/// How long the healed cluster may take to answer a read.
const READ_WITHIN: Duration = Duration::from_secs(20);
/// When leases must have ended after all was healed: the longest time-to-live, and what the law allows.
const ENDED_AFTER: Duration = Duration::from_secs(14);
/// The time-to-live of the leases that the mirror has to show in the end: longer than that takes.
const SHOWN: Duration = Duration::from_secs(120);
/// Between two looks at the mirror.
const AGAIN: Duration = Duration::from_millis(100);

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// The program under test.
    pub program: PathBuf,
    /// How many nodes, 3 or 5.
    pub nodes: u64,
    /// The load.
    pub workload: Workload,
    /// The faults, all mixed.
    pub nemeses: Vec<Nemesis>,
    /// How long load and faults go on.
    pub time: Duration,
    /// From which the schedule comes.
    pub seed: u64,
    /// Calls in a second, over all processes.
    pub rate: u32,
    /// How many processes; `None` for what suits the load.
    pub concurrency: Option<u32>,
    /// Goes without what only root may do.
    pub no_root: bool,
    /// More arguments of `ringfence serve`.
    pub arguments: Vec<String>,
    /// Where the run is stored: a folder of its own, which is made.
    pub folder: PathBuf,
}

impl RunOptions {
    /// The command that does the same again.
    pub fn command(&self) -> String {
        let profile = if cfg!(debug_assertions) { "" } else { "--release " };
        let mut command = format!(
            "cargo run {profile}-p ringfence-jepsen -- test --nodes {} --workload {} --time {} --seed {} --rate {}",
            self.nodes,
            self.workload,
            self.time.as_secs(),
            self.seed,
            self.rate
        );
        if !self.nemeses.is_empty() {
            command += &format!(" --nemesis {}", self.nemesis_names().join(","));
        }
        if let Some(concurrency) = self.concurrency {
            command += &format!(" --concurrency {concurrency}");
        }
        if self.no_root {
            command += " --no-root";
        }
        for argument in &self.arguments {
            command += &format!(" --argument={argument}");
        }
        if program::path(!cfg!(debug_assertions)).ok().as_ref() != Some(&self.program) {
            command += &format!(" --program {}", self.program.display());
        }
        command
    }

    /// A name for its folder that says what it is.
    pub fn name(&self) -> String {
        let nemeses =
            if self.nemeses.is_empty() { "none".to_owned() } else { self.nemesis_names().join("+") };
        format!("{}-{}-{nemeses}-{}", self.workload, self.nodes, self.seed)
    }

    fn nemesis_names(&self) -> Vec<String> {
        self.nemeses.iter().map(Nemesis::to_string).collect()
    }

    /// What `ringfence serve` is told by the load.
    fn serve_arguments(&self) -> Vec<String> {
        let mode = if self.workload.is_before_answer(self.seed) { "before-answer" } else { "async" };
        let mirror = self.workload.has_mirror().then(|| format!("--mirror-mode={mode}"));
        mirror.into_iter().chain(self.arguments.iter().cloned()).collect()
    }
}

/// Does a run. It is an error where the nodes cannot be started, or nothing can be stored.
pub async fn run(options: &RunOptions) -> anyhow::Result<(History, Results)> {
    let about = about(options).await?;
    let plan = Plan::new(options.seed, &options.nemeses, options.nodes, options.time);
    let field = FieldOptions::new(&options.program, options.nodes);
    let field = FieldOptions {
        nemeses: options.nemeses.clone(),
        redis: options.workload.has_mirror(),
        resp: options.workload == Workload::Resp,
        arguments: options.serve_arguments(),
        root: field.root && !options.no_root && !options.workload.needs_loopback(),
        ..field
    };
    let course = async |field: &Field, load: &Load| carry_out(&plan, field, load.clock, &load.pauses).await;
    run_with(options, about, &field, course).await
}

/// Does a run in which `course` happens to the nodes.
pub(crate) async fn run_with(
    options: &RunOptions,
    about: About,
    field: &FieldOptions,
    course: impl AsyncFnOnce(&Field, &Load) -> Carried,
) -> anyhow::Result<(History, Results)> {
    std::fs::create_dir_all(&options.folder)
        .with_context(|| format!("cannot make the folder {}", options.folder.display()))?;
    let field = Field::set_up(field).await.context("cannot set up the field")?;
    let mut history = History { about, ..History::default() };
    if let Err(error) = exercise(options, &field, &mut history, course).await {
        history.end.missing.push(format!("{error:#}"));
    }
    if let Err(error) = field.finish(&mut history.end, &options.folder).await {
        history.end.missing.push(format!("the nodes could not be read in the end: {error:#}"));
    }
    judge_and_store(history, options.workload, &options.folder).await
}

/// Judges a history by the laws of its workload, and writes both into `folder`.
pub async fn judge_and_store(
    history: History,
    workload: Workload,
    folder: &Path,
) -> anyhow::Result<(History, Results)> {
    let history = Arc::new(history);
    let judged = Arc::clone(&history);
    let laws = workload.laws(&history.about);
    // On a thread of its own, so that a checker that panics costs no history.
    let results = ringfence_aside::run("judge", move || check::judge(&judged, &laws)).await;
    let history = Arc::unwrap_or_clone(history);
    let none = || Results { verdict: Verdict::Unknown, about: history.about.clone(), laws: Vec::new() };
    let (results, panicked) = match results {
        Ok(results) => (results, None),
        Err(panicked) => (none(), Some(panicked)),
    };
    store::write(folder, &history, &results)
        .with_context(|| format!("cannot store the run in {}", folder.display()))?;
    match panicked {
        None => Ok((history, results)),
        Some(panicked) => Err(panicked).context("a checker has panicked; the history is stored"),
    }
}

async fn about(options: &RunOptions) -> anyhow::Result<About> {
    let version = ringfence_harness::run(&options.program, ["--version"], READ_WITHIN).await?;
    ensure!(version.status.success(), "{} --version: {}", options.program.display(), version.output);
    Ok(About {
        command: options.command(),
        seed: options.seed,
        workload: options.workload.to_string(),
        nemeses: options.nemesis_names(),
        nodes: options.nodes,
        time_s: options.time.as_secs(),
        version: version.output.trim().to_owned(),
        began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
    })
}

/// All that happens while the nodes run. What it writes into `history` up to an error is true.
async fn exercise(
    options: &RunOptions,
    field: &Field,
    history: &mut History,
    course: impl AsyncFnOnce(&Field, &Load) -> Carried,
) -> anyhow::Result<()> {
    let keys = options.workload.keys();
    let clients: Vec<Client> = (1..=options.nodes).map(|node| field.client(node)).collect();
    let guarded = if options.workload.has_registers() { &keys[..] } else { &[] };
    let registers = Registers::open(guarded, options.workload.is_fenced(), &clients[0]).await?;
    let clock = Clock::start();
    let watch = Watch::start(clock, &clients, field, &keys);
    let recorder = Arc::new(Recorder::new(clock));
    let load = Arc::new(Load {
        clock,
        over: Over::at(clock.instant(options.time)),
        clients,
        library: ringfence_client::Client::connect(field.cluster().nodes().iter().map(Node::url))?,
        leader: Arc::clone(&watch.leader),
        recorder: Arc::clone(&recorder),
        registers,
        pace: Pace::new(options.rate, options.seed, clock),
        pauses: Arc::default(),
        resp: RespConnections::default(),
    });
    let ended = go(options, field, &load, history, course).await;
    let settled = match ended {
        Ok(()) => settle(options, field, &load, &keys, &mut history.end).await,
        Err(error) => Err(error),
    };
    history.calls = recorder.take();
    let seen = watch.stop(history).await;
    settled.and(seen)
}

/// Load and faults, for the time; then all is healed.
async fn go(
    options: &RunOptions,
    field: &Field,
    load: &Arc<Load>,
    history: &mut History,
    course: impl AsyncFnOnce(&Field, &Load) -> Carried,
) -> anyhow::Result<()> {
    let mut processes = JoinSet::new();
    for number in 0..options.concurrency.unwrap_or(options.workload.concurrency()) {
        processes.spawn(options.workload.run(options.seed, Process::new(number, Arc::clone(load))));
    }
    let carried = course(field, load).await;
    history.faults = carried.faults;
    history.end.missing.extend(carried.failed.iter().map(|why| format!("a fault that was not made: {why}")));
    while let Some(ended) = processes.join_next().await {
        ended.context("a process of the load has panicked")?;
    }
    load.library.close(Duration::from_secs(60)).await;
    field.heal().await.context("the cluster did not heal")?;
    history.end.healed_us = load.clock.now_us();
    Ok(())
}

/// Waits until no lease is left; reads registers, keys and, once it shows what is so, Redis.
async fn settle(
    options: &RunOptions,
    field: &Field,
    load: &Load,
    keys: &[Key],
    end: &mut End,
) -> anyhow::Result<()> {
    let client = field.client(1);
    if options.workload.is_judged_by_its_end() {
        sleep(ENDED_AFTER).await;
    }
    let free = async || {
        let views = read(&client, keys).await.ok()?;
        views.iter().all(|view| view.holders.is_empty() && view.waiters.is_empty()).then_some(())
    };
    // If they do not end, that is for a checker to say.
    drop(until(SETTLES_WITHIN, "all leases have ended", free).await);
    (end.read_us, end.keys) = (load.clock.now_us(), read(&client, keys).await?);
    if options.workload.has_registers() {
        read_registers(load, &client, keys).await;
    }
    if let Some(redis) = field.redis() {
        end.mirror = mirror(load, &redis.url(), &client, keys, end).await?;
    }
    Ok(())
}

/// Looks at each register as a new holder does. That nobody can is for a checker to say.
async fn read_registers(load: &Load, client: &Client, keys: &[Key]) {
    for key in keys {
        let lease = LeaseId::random();
        let invocation = take(lease, key, ENDED_AFTER);
        let granted = load.ask_in_the_end(client, invocation).await;
        if let Some((token, fence)) = held(granted) {
            load.ask_in_the_end(client, Invocation::Read { key: key.clone(), token, fence }).await;
            load.ask_in_the_end(client, Invocation::Release { lease }).await;
        }
    }
}

/// To have the key alone, if it is free.
fn take(lease: LeaseId, key: &Key, ttl: Duration) -> Invocation {
    let ttl_ms = u32::try_from(ttl.as_millis()).expect("it is short");
    Invocation::Acquire { lease, keys: exclusive(key), ttl_ms, wait_ms: 0, keep_place: false }
}

async fn read(client: &Client, keys: &[Key]) -> anyhow::Result<Vec<KeyView>> {
    let mut views = Vec::new();
    for key in keys {
        match definite(READ_WITHIN, || client.key(key, Consistency::Linearizable)).await? {
            Reply::Done { body, .. } => views.push(body),
            Reply::Refused(problem) => anyhow::bail!("{key} cannot be read: {problem:?}"),
        }
    }
    Ok(views)
}

/// Takes leases on some keys, so that there is something to show; waits until Redis shows what is so; and reads both.
async fn mirror(
    load: &Load,
    url: &str,
    client: &Client,
    keys: &[Key],
    end: &mut End,
) -> anyhow::Result<BTreeMap<Key, Option<MirrorEntry>>> {
    for key in keys.iter().step_by(2) {
        load.ask_in_the_end(client, take(LeaseId::random(), key, SHOWN)).await;
    }
    let mut reader = MirrorReader::new(url)?;
    let began = Instant::now();
    loop {
        let views = read(client, keys).await?;
        let entries = reader.read(keys).await?;
        let is_late = began.elapsed() > SETTLES_WITHIN;
        if let Some(entries) = entries
            && (is_late || views.iter().zip(&entries).all(|(view, entry)| shows(entry.as_ref(), view)))
        {
            (end.read_us, end.keys) = (load.clock.now_us(), views);
            return Ok(keys.iter().cloned().zip(entries).collect());
        }
        ensure!(!is_late, "Redis does not answer in the end");
        sleep(AGAIN).await;
    }
}

/// Whether Redis shows of a key what is so.
fn shows(entry: Option<&MirrorEntry>, view: &KeyView) -> bool {
    match (view.holders.last(), entry) {
        (Some(newest), Some(entry)) => entry.held && entry.token == newest.token && entry.fence == view.fence,
        (Some(_), None) => false,
        (None, entry) => entry.is_none_or(|entry| !entry.held),
    }
}

/// What is seen of nodes and Redis during a run.
struct Watch {
    leader: Arc<Leader>,
    seen: Arc<Mutex<History>>,
    watchers: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Watch {
    fn start(clock: Clock, clients: &[Client], field: &Field, keys: &[Key]) -> Self {
        let (leader, seen) = <(Arc<Leader>, Arc<Mutex<History>>)>::default();
        let (leads, sights) = (Arc::clone(&leader), Arc::clone(&seen));
        let (clients, others) =
            (clients.to_vec(), clients.iter().map(Client::own_connections).collect::<Vec<_>>());
        let mut watchers = vec![tokio::spawn(async move {
            let nodes = watch_nodes(clock, &clients, &leads, &sights);
            tokio::join!(nodes, watch_lags(clock, &others, &sights));
            Ok(())
        })];
        if let Some(redis) = field.redis() {
            let (url, keys, sights) = (redis.url(), keys.to_vec(), Arc::clone(&seen));
            watchers.push(tokio::spawn(async move { watch_mirror(clock, &url, &keys, &sights).await }));
        }
        Self { leader, seen, watchers }
    }

    /// Adds what was seen to the history. It is an error if one of the watchers has ended by itself.
    async fn stop(self, history: &mut History) -> anyhow::Result<()> {
        let seen = std::mem::take(&mut *self.seen.lock().expect("no panic while the history is locked"));
        (history.sights, history.lags, history.mirror) = (seen.sights, seen.lags, seen.mirror);
        for watcher in self.watchers {
            watcher.abort();
            match watcher.await {
                Ok(ended) => ended.context("the reader of Redis has given up")?,
                Err(ended) => ensure!(ended.is_cancelled(), "a watcher of the nodes has panicked"),
            }
        }
        Ok(())
    }
}
