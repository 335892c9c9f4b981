//! One run: a plan is played, and what came of it is judged by the laws in `jepsen/laws`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use ringfence_disk::MemoryDisk;
use ringfence_laws::check::tokens::GRANTED_TOKENS;
use ringfence_laws::check::transactions::TAKEN_BACK;
use ringfence_laws::check::{
    ALWAYS, Checker, OF_ALL_CALLS, OF_SETS, Results, Verdict, judge, loop_lag::LOOP_LAG,
};
use ringfence_laws::history::{About, Call, Change, Conclusion, End, History, Invocation, NodeEnd};
use ringfence_lease::LeaseTable;
use ringfence_raft::{NodeId, StoppedNode};
use ringfence_wire::{LeaseId, Mode, RulesRange, WantedKey};

use crate::clients::{self, Client, key_number};
use crate::coverage::Coverage;
use crate::plan::{NEWEST_RULES, Plan};
use crate::story::{Line, Story};
use crate::world::World;

/// How long a cluster may take to be founded.
const FOUNDED: u64 = 120_000;
/// How long a healed cluster may take until every member serves.
const HEALED: u64 = 60_000;
/// From then on, every lease must have ended within its time-to-live or wait, its place, and this law's grace.
const ENDED: u64 = 25_000;
/// How long a final call may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kinds of records in the log of a node.
const MEMBERSHIP: u8 = 3;
const TRUNCATED: u8 = 6;
/// Where in a membership the number of its configurations is: after its term and index.
const CONFIGURATIONS_AT: usize = 16;
/// The name under which [`TAKEN_BACK`] counts the leases that it has judged.
const HANGING_UP: &str = "leases whose clients hung up";
/// The process that makes the final calls.
const IN_THE_END: u32 = 1_000;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What contradicts the laws, for people. Empty: nothing.
    pub findings: Vec<String>,
    /// How long the run took in its own time, in milliseconds.
    pub simulated: u64,
    /// What was exercised.
    pub coverage: Coverage,
    /// A number that is the same for the same run: of all messages, calls and lines of the story.
    pub digest: u64,
    /// What happened, for people.
    pub story: Vec<Line>,
    /// What clients asked and learnt, with the log.
    pub history: History,
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects panics of nodes, rather than print them. To be called once in a process.
pub fn collect_panics() {
    panic::set_hook(Box::new(|info| {
        eprintln!("{info}\n{}", std::backtrace::Backtrace::force_capture());
        PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
    }));
}

/// Plays a plan. `is_full`: the story has every message and every operation of a disk.
pub fn run(plan: &Plan, is_full: bool) -> Outcome {
    PANICS.with_borrow_mut(Vec::clear);
    let mut world = World::new(plan, Story::new(is_full));
    let end = play(plan, &mut world);
    finish(plan, world, end)
}

fn play(plan: &Plan, world: &mut World) -> End {
    let mut end = End::default();
    let is_founded = |world: &World| {
        let started = world.machines.values().filter_map(|it| it.handle());
        let mut started = started.map(|handle| handle.view(LeaseTable::started));
        world.machines.values().all(|machine| machine.handle().is_some()) && started.any(|it| it)
    };
    let faults_begin = plan.faults.first().map_or(u64::MAX, |fault| fault.at);
    if !world.run_until_done(FOUNDED.min(faults_begin.max(1)), is_founded)
        && faults_begin > FOUNDED
        && world.findings.is_empty()
    {
        world.findings.push("the cluster was not founded, though nothing was wrong".to_owned());
    }
    let began = world.clients.base();
    let until = began + Duration::from_millis(world.now + plan.time);
    let mut rng = Rng::with_seed(plan.seed ^ 0xC11E);
    for number in 0..plan.load.clients {
        let client = Client {
            number,
            rng: Rng::with_seed(rng.u64(..)),
            load: plan.load,
            desk: Arc::clone(&world.desk),
            began,
            until,
            nodes: Arc::clone(&world.nodes),
        };
        world.clients.spawn(client.run());
    }
    world.run_until(world.now + plan.time);
    world.heal();
    end.healed_us = world.now * 1_000;

    if !world.is_promised() {
        return end;
    }
    world.replace_wiped();
    serve_again(world);
    // What clients still do, and what they left, ends by itself.
    world.run_until(world.now + ENDED);
    // A change of the members may have been under way.
    let members = world.leader().map(|(_, members, _)| members).unwrap_or_default();
    if world.findings.is_empty() {
        read(plan, world, &members, &mut end);
    }
    for id in members {
        end.nodes.push(NodeEnd { id, serves: world.findings.is_empty(), ..NodeEnd::default() });
    }
    end
}

/// Waits until every member serves, as the leader names them.
fn serve_again(world: &mut World) {
    let members = |world: &World| world.leader().map(|(_, members, _)| members);
    let all_caught_up = |world: &World| {
        let Some(members) = members(world) else { return false };
        let applied = members.iter().map(|id| {
            let status = world.machines.get(id)?.status()?;
            status.leader?;
            status.applied_index
        });
        let applied: Option<Vec<u64>> = applied.collect();
        applied.is_some_and(|applied| {
            let (least, most) = (applied.iter().min(), applied.iter().max());
            most.zip(least).is_some_and(|(most, least)| most - least < 50)
        })
    };
    let is_well = world.run_until_done(HEALED, all_caught_up);
    if !is_well && world.findings.is_empty() {
        world.findings.push(format!("not all members serve, though all is healed: {}", world.statuses()));
    }
}

/// The final reads, and a write through each member.
fn read(plan: &Plan, world: &mut World, members: &[NodeId], end: &mut End) {
    end.read_us = world.now * 1_000;
    let results = Arc::new(Mutex::new(Vec::<(Option<NodeId>, Conclusion)>::new()));
    let (desk, began) = (Arc::clone(&world.desk), world.clients.base());
    let mut wishes = Vec::new();
    for number in 0..plan.load.keys {
        wishes.push((
            None,
            members.first().copied().unwrap_or(1),
            Invocation::Key { key: key_number(number), local: false },
        ));
    }
    for id in members {
        let lease = LeaseId::from_u128(u128::from(*id)).expect("ids of nodes begin at 1");
        let keys = vec![WantedKey { key: key_number(1_000 + *id as u32), mode: Mode::Exclusive }];
        let invocation = Invocation::Acquire { lease, keys, ttl_ms: 1_000, wait_ms: 0, keep_place: false };
        wishes.push((Some(*id), *id, invocation));
    }
    let count = wishes.len();
    let collected = Arc::clone(&results);
    world.clients.spawn(async move {
        for (writes, node, invocation) in wishes {
            let conclusion = clients::ask(&desk, began, IN_THE_END, node, invocation, PATIENCE, false).await;
            collected.lock().expect("nothing panics while the results are locked").push((writes, conclusion));
        }
    });
    let is_done = |results: &Mutex<Vec<_>>| {
        results.lock().expect("nothing panics while the results are locked").len() == count
    };
    if !world.run_until_done(HEALED, |_| is_done(&results)) {
        end.missing.push("the final reads".to_owned());
    }
    let is_settled = |world: &World| {
        let applied = members.iter().map(|id| world.machines.get(id)?.status()?.applied_index);
        let applied: Option<Vec<u64>> = applied.collect();
        let are_equal = applied.is_some_and(|applied| applied.windows(2).all(|pair| pair[0] == pair[1]));
        are_equal && world.machines.values().all(|machine| machine.flush_ends.is_none())
    };
    if !world.run_until_done(HEALED, is_settled) {
        end.missing.push("a time at which all members have applied and written the same".to_owned());
    }
    world.look();
    for (writes, conclusion) in results.lock().expect("nothing panics while the results are locked").drain(..)
    {
        match (writes, conclusion) {
            (None, Conclusion::Key { view }) => end.keys.push(view),
            (Some(_), Conclusion::Granted { .. }) => {}
            (_, other) => {
                let statuses = world.statuses();
                world.findings.push(format!("a final call failed: {other:?}; {statuses}"));
            }
        }
    }
    for view in &end.keys {
        if !view.holders.is_empty() || !view.waiters.is_empty() {
            world.findings.push(format!("{} is not free, though all leases are over: {view:?}", view.key));
        }
    }
}

fn finish(plan: &Plan, mut world: World, mut end: End) -> Outcome {
    let (messages, of_network) = world.network.take_digest();
    let mut findings = std::mem::take(&mut world.findings);
    let mut panics = PANICS.with_borrow_mut(std::mem::take);
    // Once votes are forgotten, two nodes may lead in one term. openraft asserts that this cannot be.
    panics.retain(|what| world.is_promised() || !what.contains("/openraft-"));
    findings.extend(panics.into_iter().map(|what| format!("a node panicked: {what}")));
    let mut calls = world.desk.take_calls();
    let now_us = world.now * 1_000;
    for call in &mut calls {
        call.ended_us = call.ended_us.min(now_us);
    }
    let mut coverage = std::mem::take(&mut world.coverage);
    coverage.merge(&of_network);
    coverage.count_calls(&calls);
    let mut rng = Rng::with_seed(plan.seed);
    let applied = world.machines.values().filter_map(|it| Some((it.id, it.status()?.applied_index?)));
    let applied: BTreeMap<NodeId, u64> = applied.collect();
    for machine in world.machines.values_mut() {
        machine.kill(false, &mut rng);
        count_records(&machine.store.disk, &mut coverage);
    }
    let mut of_disks = Vec::new();
    if world.is_promised() {
        inspect(&world, &applied, &mut end, &mut of_disks);
    }
    // After another finding, a run ends at once, and nothing is settled.
    if findings.is_empty() {
        findings = of_disks;
    }
    let about = About {
        command: format!("sim/run run --seed {}", plan.seed),
        seed: plan.seed,
        workload: "lease".to_owned(),
        nemeses: vec!["simulator".to_owned()],
        nodes: plan.nodes,
        time_s: plan.time / 1_000,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        began: "in simulated time".to_owned(),
    };
    let sights = std::mem::take(&mut world.sights);
    let faults = std::mem::take(&mut world.faults);
    let history = History { about, calls, faults, sights, end, ..History::default() };
    let story = world.story.take();
    let digest = digest(messages, &history.calls, &story);
    if findings.is_empty() {
        let promised = if world.is_promised() { promised() } else { vec![&GRANTED_TOKENS] };
        for law in judge(&history, &promised).laws {
            let of_hung_up = law.found.counts.get(HANGING_UP).filter(|_| law.name == TAKEN_BACK.name);
            coverage.add("leases of clients that hung up far from faults", of_hung_up.copied().unwrap_or(0));
            if law.verdict == Verdict::Invalid {
                let breaches = law.found.breaches.iter().take(3);
                findings.extend(breaches.map(|breach| format!("{}: {}", law.name, breach.what)));
            }
        }
    }
    Outcome { findings, simulated: world.now, coverage, digest, story, history }
}

/// What the laws say about a run.
pub fn judge_history(history: &History) -> Results {
    judge(history, &promised())
}

/// All laws, but for those of what simulated nodes do not measure: how late their loops are.
fn promised() -> Vec<&'static Checker> {
    let laws = ALWAYS.into_iter().chain(OF_ALL_CALLS).chain(OF_SETS).chain([&TAKEN_BACK]);
    laws.filter(|law| law.name != LOOP_LAG.name).collect()
}

/// What was granted, as lines for the story.
pub fn grants(history: &History) -> impl Iterator<Item = Line> {
    history.calls.iter().filter_map(|call| {
        let (Invocation::Acquire { lease, keys, .. }, Conclusion::Granted { grant, standing: false, .. }) =
            (&call.invocation, &call.conclusion)
        else {
            return None;
        };
        let keys: Vec<String> = keys.iter().map(|claim| claim.key.to_string()).collect();
        let (client, token, node) = (call.process, grant.token, call.node.unwrap_or(0));
        let what = format!(
            "node {node} answers client {client}: lease {lease} has {} with token {token}",
            keys.join(", ")
        );
        Some(Line { at: call.ended_us / 1_000, what })
    })
}

fn digest(messages: u64, calls: &[Call], story: &[Line]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&messages.to_le_bytes());
    serde_json::to_writer(&mut hasher, calls).expect("calls are plain data, and a hasher takes all");
    for line in story {
        hasher.update(line.to_string().as_bytes());
    }
    u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// Counts what the log of a node tells of.
fn count_records(disk: &MemoryDisk, coverage: &mut Coverage) {
    // A node that lost its disk, or never started, has no log.
    let Ok(records) = ringfence_wal::read(disk, Path::new("/data/log")) else { return };
    for (_, record) in records {
        match record.kind {
            TRUNCATED => coverage.count("truncations"),
            MEMBERSHIP if record.payload.get(CONFIGURATIONS_AT) == Some(&2) => {
                coverage.count("joint configurations")
            }
            _ => {}
        }
    }
}

/// All changes that the logs of the members tell of, and their states.
fn inspect(world: &World, applied: &BTreeMap<NodeId, u64>, end: &mut End, findings: &mut Vec<String>) {
    let common = applied.iter().filter(|(id, _)| end.nodes.iter().any(|node| node.id == **id));
    let common = common.map(|(_, index)| *index).min();
    let members: Vec<NodeId> = end.nodes.iter().map(|node| node.id).collect();
    let mut known = Vec::new();
    for id in members {
        let Some(machine) = world.machines.get(&id) else { continue };
        let rules = RulesRange { oldest: 1, newest: NEWEST_RULES };
        let stopped = StoppedNode::open_on(Arc::new(machine.store.clone()), Path::new("/data"), rules);
        let told = stopped.and_then(|it| Ok((it.events(applied.get(&id).copied())?, it.state(common)?)));
        match told {
            Ok((events, state)) => {
                if let Some(node) = end.nodes.iter_mut().find(|node| node.id == id) {
                    node.states.insert(state.position.index, state.blake3);
                }
                known.push(events);
            }
            Err(error) => findings.push(format!("the data of node {id} cannot be read: {error}")),
        }
    }
    known.sort_by_key(|events| events.after_revision);
    for events in known {
        let last = end.changes.last().map_or(events.after_revision, |change| change.revision);
        if end.changes.is_empty() {
            end.changes_after = events.after_revision;
        }
        if events.after_revision > last {
            continue;
        }
        for event in events.events.into_iter().filter(|event| event.revision > last) {
            let value = serde_json::to_value(&event).expect("a change is plain data");
            let change: Change = serde_json::from_value(value).expect("jepsen reads what inspect tells");
            end.changes.push(change);
        }
    }
    for change in &end.changes {
        let Some(seen) = world.changes.get(&change.revision.0) else { continue };
        if seen.lease_id != change.lease_id || seen.token != change.token {
            findings.push(format!("a node applied {seen:?}, and the log has {change:?}"));
        }
    }
    // Applied somewhere, so committed: it must be in the log.
    if let (Some(last), Some((seen, event))) = (end.changes.last(), world.changes.last_key_value())
        && *seen > last.revision.0
    {
        findings.push(format!("a node applied {event:?}, and no log has it"));
    }
}
