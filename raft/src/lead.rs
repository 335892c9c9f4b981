//! The task that keeps [`Leading`](crate::time::leading::Leading) true, advances its clock, and proposes what only time
//! requires: the first entry of a new cluster, and entries that carry the time, when something is due, and now and then before
//! that, because the next leader starts from the last one. It also publishes where the leader is.

use std::mem;
use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver;
use ringfence_lease::Request;
use ringfence_wire::Revision;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::consensus::NodeId;
use crate::measure::LEADER_CHANGES;
use crate::propose::proposal::Raise;
use crate::replica::Replica;
use crate::time::clock::TICK;
use crate::time::start::NewCluster;
use crate::time::wall::LOWEST;

/// The most entries with nothing but the time that wait to be committed.
const MAX_LOGGING: usize = 8;

/// Returns when Raft has ended.
pub(crate) async fn lead(replica: Arc<Replica>, start: Arc<NewCluster>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut raft_metrics = replica.raft.server_metrics();
    let mut progress = replica.applied.progress();
    let term_opened = replica.leading.term();
    let (mut leads, mut leader): (Option<u64>, Option<NodeId>) = (None, None);
    let mut proposing: Option<JoinHandle<()>> = None;
    let mut logging = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            changed = raft_metrics.changed() => if changed.is_err() { return },
            _ = ticks.tick() => {}
            // Until this node has applied the first entry of its own term, and of a new cluster.
            _ = progress.changed(), if term_opened.borrow().is_none() && replica.raft.is_leader() => {}
        }
        replica.publish_leader();
        let known = raft_metrics.borrow_watched().current_leader;
        if known != leader {
            LEADER_CHANGES.get().increment(known.is_some().into());
            leader = known;
        }
        let term = replica.leads_in().filter(|term| !replica.given_up.is(*term));
        if leads != term {
            replica.leading.end();
            leads = term.filter(|term| replica.begin(*term, start.clock.revision()));
        }
        let (started, at_ms, next_due_ms) = {
            let table = &replica.applied.lock().table;
            (table.started(), table.at_ms(), table.next_due_ms())
        };
        let Some((now_ms, should_be_logged)) = replica.leading.tick(at_ms) else { continue };
        let due = next_due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        if started {
            replica.leading.open();
        }
        let is_proposing = proposing.as_ref().is_some_and(|task| !task.is_finished());
        if (due || !started) && !is_proposing {
            let first = (!started).then(|| Arc::clone(&start));
            // Its outcome shows in the table; if it was lost, a later tick proposes again.
            proposing = Some(tokio::spawn(propose_due(Arc::clone(&replica), first)));
        } else if started && should_be_logged && next_due_ms.is_some() {
            let proposer = replica.proposer.clone();
            while logging.try_join_next().is_some() {}
            // If it is lost, a later one says more.
            if logging.len() < MAX_LOGGING {
                logging.spawn(async move { drop(proposer.propose(Request::default()).await) });
            }
        }
    }
}

/// Proposes the first command of a new cluster, under the rules that it starts with, or else no command, and again for as long
/// as something is due.
async fn propose_due(replica: Arc<Replica>, first: Option<Arc<NewCluster>>) {
    let (mut raise, mut request) = (None, Request::default());
    if let Some(start) = first {
        let Some(term) = replica.leads_in() else { return };
        match start.command().await {
            Some(command) => request.commands.push(command),
            None => return,
        }
        raise = Some(Raise { rules: replica.first_rules().await, term });
    }
    let is_left_over = || {
        let table = &replica.applied.lock().table;
        table.next_due_ms().is_some_and(|due_ms| due_ms <= table.at_ms())
    };
    // What an entry leaves over, because it has enough to do, does not wait for the next tick.
    while replica.proposer.propose_with(raise, mem::take(&mut request)).await.is_ok() && is_left_over() {}
}

impl Replica {
    /// Begins to lead in `term`, if this node has applied the first entry of it. Revisions are raised to the `clock`, unless the
    /// operator had them start far below.
    fn begin(&self, term: u64, clock: Revision) -> bool {
        let state = self.applied.lock();
        if state.last_applied.map(|id| id.committed_leader_id().term) != Some(term) {
            return false;
        }
        tracing::info!(term, "this node leads");
        let follows_clock = state.table.first_revision() >= LOWEST;
        let floor = if follows_clock { clock } else { Revision(0) };
        self.leading.begin(term, state.table.at_ms(), floor);
        true
    }
}
