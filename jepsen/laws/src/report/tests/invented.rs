//! Invented histories, as a run might have recorded them, for tests of stored runs and their pages.

use std::collections::BTreeMap;

use fastrand::Rng;
use ringfence_wire::{
    EndReason, Grant, Holder, Key, LeaseId, Mode, ProblemKind, Revision, Role, Token, WantedKey,
};

use crate::check::facts::Facts;
use crate::check::plain::grant;
use crate::check::tests::scene;
use crate::check::{Checker, Found, Results, Verdict, judge};
use crate::history::{
    About, Call, Change, ChangeName, ChangedKey, Conclusion, End, Fault, History, Invocation, LagSight,
    MirrorEntry, MirrorSight, NodeEnd, Sight,
};

/// Text that tries to break out of a page, a string, or a line.
pub(crate) const EVIL: &str = "a </script>\"\\<img src=x onerror=gone(1)> ä\u{2028}&amp;";

const S: u64 = 1_000_000;
const SPAN: u64 = 60 * S;
const TTL_MS: u32 = 1_500;
/// Tokens of a real cluster are large.
const FIRST: u64 = 1_790_000_000_000 << 10;

struct Maker {
    rng: Rng,
    calls: Vec<Call>,
    changes: Vec<(u64, Change)>,
    /// Until when each key is held.
    busy_until: Vec<u64>,
    faults: Vec<Fault>,
    keys: Vec<Key>,
}

/// A history of a minute with about so many calls.
pub(crate) fn history(seed: u64, calls: usize) -> History {
    let processes = (calls / 200).clamp(10, 500);
    let mut keys: Vec<Key> = (1..processes / 3).map(|n| key(&format!("orders/{n}"))).collect();
    keys.push(key(EVIL));
    let mut maker = Maker {
        rng: Rng::with_seed(seed),
        calls: Vec::new(),
        changes: Vec::new(),
        busy_until: vec![0; keys.len()],
        faults: faults(),
        keys,
    };
    let mut next: Vec<u64> = (0..processes).map(|_| maker.rng.u64(0..S)).collect();
    while maker.calls.len() < calls {
        let process = (0..processes).min_by_key(|process| next[*process]).unwrap();
        next[process] = maker.hold(process as u32, next[process]);
    }
    maker.finish(processes)
}

/// Results of laws that hold.
pub(crate) fn results(history: &History) -> Results {
    const NAMES: [(&str, &str); 5] = [
        (
            "tokens-rise",
            "The token of each grant is larger than that of every grant that was answered before it was asked for.",
        ),
        (
            "no-early-end",
            "No lease ends before its time as its client counts it, unless it was released or revoked.",
        ),
        ("no-grant-lost", "A grant that was answered is in the logs of the cluster."),
        ("fenced-register", "The register accepts no stale write, loses no update, and rejected some."),
        ("mirror-never-ahead", "No fence in Redis is above that of the cluster at the same time."),
    ];
    fn check(facts: &Facts) -> Found {
        let mut found = Found::default();
        for call in &facts.history.calls {
            found.saw(match call.conclusion {
                Conclusion::Granted { .. } => "grants",
                Conclusion::Stale { .. } => "rejected writes",
                Conclusion::Unknown { .. } => "unknown",
                _ => "other answers",
            });
        }
        found
    }
    let checkers = NAMES.map(|(name, law)| Checker { name, law, check });
    judge(history, &checkers.iter().collect::<Vec<_>>())
}

/// Breaks two laws: an early end with a second holder, and a stale write that was accepted.
pub(crate) fn broken(history: &mut History) -> Results {
    let granted = |call: &&Call| match &call.conclusion {
        Conclusion::Granted { grant, .. } if matches!(call.invocation, Invocation::Acquire { .. }) => {
            grant.keys[0].key.as_str() == EVIL && call.sent_us > 20 * S
        }
        _ => false,
    };
    let first = history.calls.iter().find(granted).unwrap().clone();
    let mut second = first.clone();
    second.id = history.calls.len() as u64;
    second.process += 1_000;
    second.sent_us = first.ended_us + 300_000;
    second.ended_us = second.sent_us + 4_000;
    let lease = LeaseId::from_u128(99).unwrap();
    if let (Invocation::Acquire { lease: invocation, .. }, Conclusion::Granted { grant, .. }) =
        (&mut second.invocation, &mut second.conclusion)
    {
        (*invocation, grant.lease_id, grant.token) = (lease, lease, Token(grant.token.0 + 1));
    }
    let ids = [first.id, second.id];
    history.calls.push(second);
    let stale =
        history.calls.iter_mut().find(|call| matches!(call.conclusion, Conclusion::Stale { .. })).unwrap();
    stale.conclusion = Conclusion::Register { value: 77 };
    let write = stale.id;
    let mut results = results(history);
    results.verdict = Verdict::Invalid;
    results.laws[1].verdict = Verdict::Invalid;
    let what = format!(
        "Key {EVIL} was granted to process 1004 while process 4 still held it: its lease had 1.2 s left."
    );
    results.laws[1].found.breach(what, ids);
    results.laws[3].verdict = Verdict::Invalid;
    results.laws[3].found.breach("A write with a token below the guard's number was accepted.", [write]);
    results.laws.sort_by_key(|law| std::cmp::Reverse(law.verdict));
    results
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn faults() -> Vec<Fault> {
    let fault = |nemesis: &str, what: &str, nodes: &[u64], from: u64, to: u64| Fault {
        nemesis: nemesis.to_owned(),
        what: what.to_owned(),
        nodes: nodes.to_vec(),
        from_us: from * S,
        to_us: to * S,
    };
    vec![
        fault("kill", "node 1 is killed", &[1], 8, 12),
        fault("partition", "node 2 is cut off from 1 and 3", &[2], 18, 24),
        fault("pause", "node 3 is stopped (SIGSTOP)", &[3], 22, 27),
        fault("redis-kill", "Redis is killed", &[], 34, 37),
        fault("kill", "nodes 1 and 3 are killed", &[1, 3], 44, 49),
    ]
}

impl Maker {
    /// What one process does from `at` on until it asks for the next lease: the time is answered.
    fn hold(&mut self, process: u32, mut at: u64) -> u64 {
        let place = self.rng.usize(0..self.keys.len());
        let lease = LeaseId::from_u128(self.rng.u128(1..)).unwrap();
        let waits = self.rng.f32() < 0.5;
        let invocation = Invocation::Acquire {
            lease,
            keys: vec![WantedKey { key: self.keys[place].clone(), mode: Mode::Exclusive }],
            ttl_ms: TTL_MS,
            wait_ms: if waits { 1_000 } else { 0 },
            keep_place: false,
        };
        let free = self.busy_until[place];
        let think = self.rng.u64(20_000..900_000);
        let refused = |problem| Conclusion::Refused { problem, reason: None };
        if self.trouble(at) {
            let done = at + 2 * S;
            let unknown = Conclusion::Unknown { why: "no answer in 2 s".to_owned() };
            return self.call(process, at, done, invocation, unknown) + think;
        }
        if free > at + S || (free > at && !waits) {
            let (wait, problem) = if waits { (S, ProblemKind::WaitTimeout) } else { (0, ProblemKind::Held) };
            let took = self.latency();
            return self.call(process, at, at + wait + took, invocation, refused(problem)) + think;
        }
        let granted = free.max(at) + 1_500;
        let token = Token(FIRST + granted);
        let holder = Holder::new(&format!("worker {process} {}", &EVIL[..11]));
        let plain = grant(lease, &self.keys[place], token, TTL_MS, Some(TTL_MS.into()));
        let grant = Grant { holder, ..plain };
        let answer = || Conclusion::Granted { grant: grant.clone(), standing: false, mirrored: Some(true) };
        self.change(granted, lease, place, ChangeName::Granted, None, token);
        let sent = at;
        at = granted + self.latency();
        at = self.call(process, sent, at, invocation, answer());
        let mut end = granted + u64::from(TTL_MS) * 1_000;
        let value = self.calls.len() as u64;
        let write =
            |over| Invocation::Write { key: self.keys[place].clone(), token, fence: token, over, value };
        let (write, late) = (write(0), write(1));
        let took = self.latency();
        at = self.call(process, at, at + took, write, Conclusion::Register { value });
        while self.rng.f32() < 0.4 && !self.trouble(at) {
            at += self.rng.u64(100_000..700_000);
            end = at + u64::from(TTL_MS) * 1_000;
            let took = self.latency();
            at = self.call(process, at, at + took, Invocation::Renew { lease, ttl_ms: None }, answer());
        }
        if self.rng.f32() < 0.1 {
            // The holder pauses, and writes when its lease has ended.
            self.change(end, lease, place, ChangeName::Ended, Some(EndReason::Expired), token);
            self.busy_until[place] = end + 1_000;
            let woken = end + self.rng.u64(200_000..900_000);
            let took = self.latency();
            let stale = Conclusion::Stale { high: Token(FIRST + end + 9_000) };
            self.call(process, woken, woken + took, late, stale) + think
        } else {
            let freed = at + 2_000;
            self.change(freed, lease, place, ChangeName::Ended, Some(EndReason::Released), token);
            self.busy_until[place] = freed;
            let took = 2_000 + self.latency();
            self.call(process, at, at + took, Invocation::Release { lease }, Conclusion::Done) + think
        }
    }

    fn trouble(&self, at: u64) -> bool {
        let no_quorum = |fault: &&Fault| fault.nodes.len() > 1 || fault.nemesis == "kill";
        self.faults.iter().filter(no_quorum).any(|fault| fault.from_us <= at && at < fault.from_us + 2 * S)
    }

    fn latency(&mut self) -> u64 {
        1_000 + (-self.rng.f64().max(1e-6).ln() * 2_500.0) as u64
    }

    fn call(
        &mut self,
        process: u32,
        sent_us: u64,
        ended_us: u64,
        invocation: Invocation,
        conclusion: Conclusion,
    ) -> u64 {
        let node = match invocation {
            Invocation::Write { .. } => None,
            _ => Some(1 + u64::from(process) % 3),
        };
        let call = scene::call(sent_us, ended_us, invocation, conclusion);
        self.calls.push(Call { process, node, ..call });
        ended_us
    }

    fn change(
        &mut self,
        at_us: u64,
        lease_id: LeaseId,
        place: usize,
        change: ChangeName,
        reason: Option<EndReason>,
        token: Token,
    ) {
        let key = self.keys[place].clone();
        let keys = vec![ChangedKey { key, mode: Mode::Exclusive, fence: token }];
        let (at_ms, revision) = (at_us / 1_000, Revision(FIRST + at_us));
        let token = Some(token);
        self.changes
            .push((at_us, Change { index: 0, at_ms, revision, lease_id, change, reason, token, keys }));
    }

    fn finish(mut self, processes: usize) -> History {
        self.calls.sort_by_key(|call| call.sent_us);
        for (id, call) in self.calls.iter_mut().enumerate() {
            call.id = id as u64;
        }
        self.changes.sort_by_key(|(at_us, _)| *at_us);
        for (index, (_, change)) in self.changes.iter_mut().enumerate() {
            change.index = index as u64 + 1;
        }
        let entry = MirrorEntry { rev: Revision(9), fence: Token(7), token: Token(7), held: true };
        let mirror = (0..60).map(|s| MirrorSight {
            sent_us: s * S,
            ended_us: s * S + 300,
            key: self.keys[0].clone(),
            entry: (s > 3).then(|| entry.clone()),
        });
        let read_us = self.calls.iter().map(|call| call.ended_us).max().unwrap_or(SPAN).max(SPAN) + S;
        let view = |key: &Key| scene::seen(key.clone(), Revision(FIRST + read_us), Token(FIRST), []);
        let node = |id| NodeEnd {
            id,
            serves: true,
            states: BTreeMap::from([(9, "c0ffee".to_owned())]),
            ..Default::default()
        };
        let end = End {
            healed_us: SPAN,
            read_us,
            keys: self.keys.iter().map(view).collect(),
            mirror: self.keys.iter().map(|key| (key.clone(), Some(entry.clone()))).collect(),
            nodes: (1..=3).map(node).collect(),
            changes: self.changes.into_iter().map(|(_, change)| change).collect(),
            changes_after: Revision(FIRST),
            missing: Vec::new(),
        };
        let about = About {
            command: format!(
                "cargo run --release -p ringfence-jepsen -- test --nodes 3 --workload fenced-register --nemesis kill,partition,pause,redis-kill --time 60 --seed 7 --rate {}",
                processes * 3
            ),
            seed: 7,
            workload: "fenced-register".to_owned(),
            nemeses: ["kill", "partition", "pause", "redis-kill"].map(str::to_owned).into(),
            nodes: 3,
            time_s: 60,
            version: "0.1.0".to_owned(),
            began: "2026-11-21T20:15:00Z".to_owned(),
        };
        let sights = sights(&self.faults, read_us);
        let lags = vec![LagSight { sent_us: 1, ended_us: 2, node: 1, samples: 3, longer: [(250, 1)].into() }];
        let mirror = mirror.collect();
        History { about, calls: self.calls, mirror, sights, lags, faults: self.faults, end }
    }
}

/// Ten a second of each node that is not killed or stopped. Who leads changes where the leader is hit.
fn sights(faults: &[Fault], until_us: u64) -> Vec<Sight> {
    let mut sights = Vec::new();
    for at in (0..until_us).step_by(100_000) {
        let (leader, term) = match at / S {
            0..=8 => (1, 1),
            9..=18 => (2, 3),
            19..=44 => (1, 4),
            _ => (2, 6),
        };
        for node in 1..=3 {
            let silent = |fault: &Fault| {
                fault.nodes.contains(&node)
                    && fault.nemesis != "partition"
                    && (fault.from_us..fault.to_us).contains(&at)
            };
            if faults.iter().any(silent) {
                continue;
            }
            // Cut off, the old leader goes on for a while as if it led.
            let (leader, term) =
                if node == 2 && (19..22).contains(&(at / S)) { (2, 3) } else { (leader, term) };
            sights.push(Sight {
                sent_us: at,
                ended_us: at + 2_000,
                node,
                role: if node == leader { Role::Leader } else { Role::Follower },
                term,
                leader: Some(leader),
                applied_index: Some(at / 1_000),
                revision: Revision(FIRST + at),
                at_ms: at / 1_000,
            });
        }
    }
    sights
}
