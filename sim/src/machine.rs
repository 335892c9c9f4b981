//! One machine: its disk, and the process of a node on it, which has a runtime and a clock of its own.

mod process;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use ringfence_raft::{Handle, Node, NodeId, Quartz, Random, Settings};
use ringfence_service::{Options, Service};
use ringfence_wire::{ClusterStatus, Revision, RulesRange};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

pub use self::process::Process;
use crate::network::Network;
use crate::plan::Plan;
use crate::store::Store;
use crate::story::Story;

/// Why a process has ended begins with this if it did not start.
pub(crate) const DOES_NOT_START: &str = "it does not start";

/// What a node's process has come to.
#[derive(Default)]
pub struct Progress {
    /// Its table, and what it offers of that, once it has started.
    offers: Option<(Handle, Arc<Service>)>,
    /// Why it ended, once it has.
    pub ended: Option<String>,
    /// Dropping or sending it stops the node.
    stop: Option<oneshot::Sender<()>>,
    /// Tells the service that the node is about to stop.
    draining: watch::Sender<bool>,
}

/// A machine.
pub struct Machine {
    /// The id of its node.
    pub id: NodeId,
    /// Its place in the network: the id, unless the machine replaces another that had it.
    pub place: u64,
    /// What it stores on.
    pub store: Store,
    /// The process, while there is one.
    pub process: Option<Process>,
    /// Whether the process says anything to others: not once its fuse has burnt.
    pub is_on: Arc<AtomicBool>,
    /// The time from which it runs again.
    pub frozen_until: u64,
    /// The flush under way ends then.
    pub flush_ends: Option<u64>,
    /// A flush that begins before this time hangs until it.
    pub hangs_until: u64,
    /// `(n, ms)`: after n more flushes, one takes that many milliseconds.
    pub long_flush: Option<(u64, u64)>,
    /// How long a start pauses between any two steps, in milliseconds.
    pub start_pause: u64,
    /// Spawned work, and when it runs.
    pub work: Vec<(u64, Box<dyn FnOnce() + Send>)>,
    /// When it is started again, if it is down.
    pub starts_at: Option<u64>,
    /// What happens when the fuse has burnt: whether the power goes, and for how long the node is down.
    pub fuse: Option<(bool, u64)>,
    /// The newest rules that its program supports, from the next start on.
    pub newest_rules: u8,
    /// The newest rules that the running program supports.
    pub running_rules: u8,
    progress: Arc<Mutex<Progress>>,
    settings: NodeSettings,
    speed: u64,
    /// By how many milliseconds its wall clock is ahead.
    ahead: i64,
    story: Story,
    /// Each start of the node draws from here.
    rng: Rng,
    /// Counts starts.
    pub starts: u64,
}

#[derive(Clone)]
struct NodeSettings {
    address: String,
    peers: BTreeMap<NodeId, String>,
    join: bool,
    first_revision: Option<u64>,
    snapshot_after_bytes: u64,
}

impl Machine {
    /// The machine of a node that founds a cluster with `peers`, or waits to join one.
    pub fn new(id: NodeId, peers: &[NodeId], join: bool, plan: &Plan, story: &Story) -> Self {
        Self::at(id, id, peers, join, plan, story)
    }

    /// The same, at a place of its own in the network.
    pub fn at(id: NodeId, place: u64, peers: &[NodeId], join: bool, plan: &Plan, story: &Story) -> Self {
        let peers = peers.iter().map(|id| (*id, address(*id))).collect();
        let address = address(place);
        Self {
            id,
            place,
            store: Store::new(id, story.clone()),
            process: None,
            is_on: Arc::default(),
            frozen_until: 0,
            flush_ends: None,
            hangs_until: 0,
            long_flush: None,
            start_pause: 0,
            work: Vec::new(),
            starts_at: None,
            fuse: None,
            newest_rules: plan.newest_rules(id),
            running_rules: 0,
            progress: Arc::default(),
            speed: plan.speed(id),
            ahead: plan.ahead(id),
            story: story.clone(),
            settings: NodeSettings {
                address,
                peers,
                join,
                first_revision: plan.first_revision(),
                snapshot_after_bytes: plan.snapshot_after_bytes,
            },
            rng: Rng::with_seed(plan.seed.wrapping_mul(31) ^ place),
            starts: 0,
        }
    }

    /// Starts the process of the node.
    pub fn start(&mut self, now: u64, network: &Network) {
        self.is_on = Arc::new(AtomicBool::new(true));
        self.progress = Arc::default();
        self.starts_at = None;
        self.starts += 1;
        self.running_rules = self.newest_rules;
        let NodeSettings { address, peers, join, first_revision, snapshot_after_bytes } =
            self.settings.clone();
        let settings = Settings {
            id: self.id,
            data: PathBuf::from("/data"),
            storage: Arc::new(self.store.clone()),
            transport: network.port(self.place, &address, &self.is_on),
            peers,
            join,
            url: format!("http://node-{}", self.id),
            first_revision: first_revision.map(Revision),
            wall_clock: self.store.wall_clock(self.ahead),
            elders: None,
            snapshot_after_bytes,
            max_lease_bytes: ringfence_raft::MAX_LEASE_BYTES,
            rules: RulesRange { oldest: 1, newest: self.newest_rules },
            since: ringfence_lease::Command::since,
            random: Random::seeded(self.rng.u64(..)),
            quartz: Quartz::none(),
        };
        // No two processes draw the same: a start makes fewer acquires than this.
        let first_attachment = self.place << 48 | self.starts << 32;
        let process = Process::new(now, self.rng.u64(..), self.speed);
        let progress = Arc::clone(&self.progress);
        let (stop, stopped) = oneshot::channel();
        self.lock().stop = Some(stop);
        let pause = Duration::from_millis(self.start_pause);
        process.spawn(async move {
            let lock = || progress.lock().expect("nothing panics while the progress is locked");
            let node = match in_steps(pause, Node::start(settings)).await {
                Ok(node) => node,
                Err(error) => {
                    lock().ended = Some(format!("{DOES_NOT_START}: {error}"));
                    return;
                }
            };
            let draining = lock().draining.subscribe();
            let blocked = watch::channel(false).1;
            let (access, mirror_timeout, slow_request) = (None, None, Duration::MAX);
            let options =
                Options { access, mirror_timeout, draining, blocked, first_attachment, slow_request };
            lock().offers = Some((node.handle(), Arc::new(Service::new(node.handle(), options))));
            let ended = tokio::select! {
                biased;
                why = node.failed() => why,
                _ = stopped => {
                    node.stop().await;
                    "stopped".to_owned()
                }
            };
            lock().ended = Some(ended);
        });
        self.process = Some(process);
    }

    /// When something is due for it.
    pub fn next_due(&self) -> Option<u64> {
        let Some(process) = &self.process else { return self.starts_at };
        if self.frozen_until != 0 {
            return Some(self.frozen_until);
        }
        let others = self.flush_ends.iter().chain(self.work.iter().map(|(at, _)| at));
        Some(others.fold(process.wakes_at(), |next, at| next.min(*at)))
    }

    /// Runs its process up to `now`, unless it is frozen.
    pub fn run_until(&mut self, now: u64) {
        self.store.advance_to(now);
        let Some(process) = self.process.as_mut().filter(|_| self.frozen_until <= now) else { return };
        if self.frozen_until != 0 {
            self.frozen_until = 0;
            process.jump_to(now);
        }
        process.run_until(now);
    }

    /// Ends the process at once. `power`: what was not synced may be lost; returns whether a write was torn.
    pub fn kill(&mut self, power: bool, rng: &mut Rng) -> bool {
        self.is_on.store(false, Relaxed);
        self.progress = Arc::default();
        // What the process spawned or queued ends with it.
        self.store.disk.end_process((self.process.take(), std::mem::take(&mut self.work)));
        let is_torn = power && self.store.cut_power(rng);
        (self.flush_ends, self.frozen_until, self.hangs_until, self.long_flush) = (None, 0, 0, None);
        self.fuse = None;
        is_torn
    }

    /// Loses all data. The node will be started again as before, or with `join`, to wait until it is added.
    pub fn wipe(&mut self, join: bool) {
        self.store = Store::new(self.id, self.story.clone());
        self.settings.join |= join;
    }

    /// Has the node wait to be added when it is started again.
    pub fn join(&mut self) {
        self.settings.join = true;
    }

    /// Stops the process in order, to be started at another address. No list but its own has that.
    pub fn move_away(&mut self) {
        self.stop();
        let address = format!("node-{}-{}:7500", self.place, self.starts);
        self.settings.peers.insert(self.id, address.clone());
        self.settings.address = address;
    }

    /// The peer address of the node.
    pub fn address(&self) -> &str {
        &self.settings.address
    }

    /// How long the next flush takes, in milliseconds: as `drawn`, unless it is one that hangs.
    pub fn flush_takes(&mut self, drawn: impl FnOnce() -> u64) -> u64 {
        match self.long_flush.take() {
            Some((0, lasts)) => lasts,
            Some((after, lasts)) => {
                self.long_flush = Some((after - 1, lasts));
                drawn()
            }
            None => drawn(),
        }
    }

    /// Asks the node to stop in order.
    pub fn stop(&self) {
        let stop = self.lock().stop.take();
        self.lock().draining.send_replace(true);
        drop(stop);
    }

    fn offers(&self) -> Option<(Handle, Arc<Service>)> {
        let progress = self.lock();
        if progress.ended.is_some() { None } else { progress.offers.clone() }
    }

    /// What the node offers, once it has started and while it runs.
    pub fn service(&self) -> Option<Arc<Service>> {
        Some(self.offers()?.1)
    }

    /// The table of that.
    pub fn handle(&self) -> Option<Handle> {
        Some(self.offers()?.0)
    }

    /// How the node sees the cluster, at the time of its own clock.
    pub fn status(&self) -> Option<ClusterStatus> {
        Some(self.look()?.1)
    }

    /// What is called of the node, and how it sees the cluster.
    pub fn look(&self) -> Option<(Handle, ClusterStatus)> {
        let handle = self.handle()?;
        let _clock = self.process.as_ref()?.runtime.enter();
        let status = handle.status();
        Some((handle, status))
    }

    /// How long the oldest entry waits that the node proposed, in milliseconds of its own clock.
    pub fn waits_ms(&self) -> u64 {
        let (Some(handle), Some(process)) = (self.handle(), &self.process) else { return 0 };
        let _clock = process.runtime.enter();
        (handle.unfinished().proposal * 1_000.0) as u64
    }

    /// The last entry of its log, if it runs.
    pub fn last_index(&self) -> Option<u64> {
        self.status()?.last_log_index
    }

    /// Why the process has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("nothing panics while the progress is locked")
    }
}

/// Polls `work` at most once in each `pause`, as a busy machine does.
async fn in_steps<T>(pause: Duration, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        let step = poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        if let Poll::Ready(result) = step.await {
            return result;
        }
        if pause.is_zero() {
            return work.await;
        }
        sleep(pause).await;
    }
}

/// The peer address of the node at a place of the network.
pub fn address(place: u64) -> String {
    format!("node-{place}:7500")
}
