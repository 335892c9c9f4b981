//! The table against a model, and against its promises, over random histories.
//!
//! Each history is played three times: in whole entries against [`Model`], comparing every outcome, event and view, and
//! freezing the table now and then; by a second table that is now and then saved and restored; and command by command,
//! watched by a [`Witness`]. At the end, the test checks that each kind of event happened often enough.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::test_runner::{Config, TestRunner};
use ringfence_wire::{Revision, Token};

use super::make::key;
use super::model::Model;
use super::script::{self, KEYS, OWNERS, Script, ids, principal};
use super::snapshots::{bytes_of, records_of};
use super::witness::{Cause, Witness};
use crate::table::{FrozenTable, LeaseTable, Record};
use crate::{Command, Event, Outcome, Refusal, SUPPORTED};

/// What must happen during the test, and how often at least.
const EXERCISED: [(&str, usize); 54] = [
    ("abandoned", 50),
    ("came back too late", 70),
    ("changed", 1_500),
    ("changed for an owner", 1_000),
    ("expired", 1520),
    ("fitted, but its wait was over", 200),
    ("forgotten", 170),
    ("frozen, and then changed", 900),
    ("gone", 2350),
    ("granted at once", 2130),
    ("granted after it was forgotten", 900),
    ("granted before an earlier waiter that it does not disturb", 45),
    ("granted beside other holders", 400),
    ("granted by a conditional", 1_000),
    ("granted from the queue", 430),
    ("held", 230),
    ("held by waiters alone", 10),
    ("kept", 20),
    ("kept for another", 150),
    ("left", 120),
    ("left, abandoned", 20),
    ("left, abandoned by the last of several", 1),
    ("left over", 2540),
    ("let in later", 30),
    ("memory is full", 200),
    ("mismatch", 260),
    ("more bytes than the quota", 100),
    ("more leases than the quota", 200),
    ("more waiting than the quota", 60),
    ("not granted", 80),
    ("not live", 1240),
    ("not the first of several changes failed", 700),
    ("one end granted several", 140),
    ("one end granted to two keys", 70),
    ("one id of three", 2),
    ("one of several stands no more", 5),
    ("overloaded", 30),
    ("prolonged", 90),
    ("queued", 1770),
    ("raised to a floor", 2_000),
    ("released", 300),
    ("released by a conditional", 100),
    ("released too late", 100),
    ("renewed", 220),
    ("renewed for less than it had", 30),
    ("repeated", 500),
    ("repeated once more", 120),
    ("repeated while waiting", 230),
    ("restored with waiters", 1610),
    ("revoked", 50),
    ("shortened", 40),
    ("timed out", 690),
    ("unknown", 1060),
    ("wait-timeout", 300),
];

#[test]
fn the_table_agrees_with_the_model_and_keeps_its_promises() {
    let counts = RefCell::new(BTreeMap::<&str, usize>::new());
    // PROPTEST_CASES can ask for more.
    let cases = Config::default().cases.max(1_600);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(cases) });
    let played = runner.run(&script::scripts(), |script| {
        for (what, count) in play(&script) {
            *counts.borrow_mut().entry(what).or_default() += count;
        }
        Ok(())
    });
    played.unwrap_or_else(|failure| panic!("{failure}"));
    let counts = counts.into_inner();
    println!("{counts:#?}");
    for (what, least) in EXERCISED {
        let count = counts.get(what).copied().unwrap_or(0);
        assert!(count >= least, "{what}: {count} times only");
    }
}

fn play(script: &Script) -> BTreeMap<&'static str, usize> {
    let mut model = Model::new(script.limits);
    let mut table = LeaseTable::with_limits(script.limits);
    let mut restored = LeaseTable::with_limits(script.limits);
    let mut stepped = LeaseTable::with_limits(script.limits);
    let mut witness = Witness::new(script.limits);
    let mut views: Vec<(FrozenTable, Vec<u8>)> = Vec::new();
    for table in [&mut table, &mut restored, &mut stepped] {
        table.raise_rules(SUPPORTED.newest);
        table.limits = script.limits;
    }
    for entry in &script.entries {
        let at_ms = table.at_ms().saturating_add_signed(entry.step_ms);
        let requests = script.requests(entry, &table);
        let mut commands = requests.iter().flat_map(|request| &request.commands);
        assert!(commands.all(|command| command.since() <= table.rules()), "an entry has what its rules have");
        if entry.restore {
            restored =
                LeaseTable::restore(&restored.snapshot()[..], SUPPORTED).expect("a snapshot can be restored");
            restored.limits = script.limits;
            if table.waiters() > 0 {
                witness.count("restored with waiters");
            }
        }
        if entry.freeze {
            views.push((table.freeze(), table.snapshot()));
        }
        if let Some(floor) = entry.floor(table.revision()) {
            model.raise(floor.0);
            for table in [&mut table, &mut restored, &mut stepped] {
                table.raise_revision(floor);
            }
            witness.saw_floor(floor.0, &stepped);
        }
        let remembered = model.ended.len();
        let modelled = applied(|events| model.apply(at_ms, requests.clone(), events));
        let result = applied(|events| table.apply_requests(at_ms, requests.clone(), events));
        assert_eq!(result, modelled, "the table, and the model");
        let again = applied(|events| restored.apply_requests(at_ms, requests.clone(), events));
        assert_eq!(again, result, "restored");
        assert_same_views(&table, &model);
        assert_same_views(&restored, &model);
        assert_eq!(table.snapshot(), restored.snapshot());
        assert_eq!(model.overlooked(), None, "no waiter that could be granted waits");
        assert!(
            model.grants_left == 0 || model.first_to_admit().is_none(),
            "as many are let in as one entry may"
        );
        count_what_the_model_shows(&mut model, remembered, &result.1, &mut witness);

        if script.has_owners {
            count_owners(&result, &table, &mut witness);
            continue;
        }
        let commands: Vec<Command> = requests.into_iter().flat_map(|request| request.commands).collect();
        let step = step(&mut stepped, at_ms, &commands, &mut witness);
        // How many ids are forgotten at once depends on the number of commands, but only with small limits.
        if script.limits.ends > script::MANY && script.limits.grants > script::MANY {
            assert_eq!(step, result, "one by one, and in one entry");
            assert_eq!(stepped.snapshot(), table.snapshot());
        }
    }
    for (view, before) in views {
        assert_eq!(bytes_of(&view), before, "frozen");
        if before != table.snapshot() {
            witness.count("frozen, and then changed");
        }
    }
    witness.counts
}

/// The witness knows no owners: it looks at the other histories.
fn count_owners((outcomes, events): &(Vec<Outcome>, Vec<Event>), table: &LeaseTable, witness: &mut Witness) {
    for outcome in outcomes {
        match outcome {
            Outcome::Refused(Refusal::TooManyLeases { .. }) => witness.count("more leases than the quota"),
            Outcome::Refused(Refusal::TooManyWaiting { .. }) => witness.count("more waiting than the quota"),
            Outcome::Refused(Refusal::TooManyBytes { .. }) => witness.count("more bytes than the quota"),
            _ => {}
        }
    }
    for event in events.iter().filter(|event| event.by.is_some()) {
        let others = [None, Some(principal(OWNERS[0])), Some(principal(OWNERS[1]))];
        let exist = others.iter().filter(|by| table.keys_of_lease(by.as_ref(), event.lease_id).is_some());
        witness.count("changed for an owner");
        if exist.count() == 3 {
            witness.count("one id of three");
        }
    }
}

fn applied(apply: impl FnOnce(&mut Vec<Event>) -> Vec<Outcome>) -> (Vec<Outcome>, Vec<Event>) {
    let mut events = Vec::new();
    (apply(&mut events), events)
}

/// Applies an entry command by command.
fn step(
    table: &mut LeaseTable,
    at_ms: u64,
    commands: &[Command],
    witness: &mut Witness,
) -> (Vec<Outcome>, Vec<Event>) {
    let (mut outcomes, mut events) = applied(|events| table.apply(at_ms, Vec::new(), events));
    witness.saw(&Cause::Time, &events, table);
    // What an entry leaves over stays so while its commands run.
    let ends = std::mem::take(&mut table.limits.ends);
    for command in commands {
        let before = records_of(table);
        let (outcome, changes) = applied(|events| table.apply(at_ms, vec![command.clone()], events));
        witness.saw(&Cause::Command(command, &outcome[0]), &changes, table);
        assert_all_or_nothing(command, &outcome[0], &changes, &before, table);
        assert_a_repeat_changes_little(command, &outcome[0], &changes, &before, table, witness);
        outcomes.extend(outcome);
        events.extend(changes);
    }
    table.limits.ends = ends;
    (outcomes, events)
}

/// A conditional that is refused changes nothing.
fn assert_all_or_nothing(
    command: &Command,
    outcome: &Outcome,
    changes: &[Event],
    before: &[Record<'_>],
    table: &LeaseTable,
) {
    let (Command::Conditional(_), Outcome::Refused(_)) = (command, outcome) else { return };
    // Any entry lets in some of the waiters that are left over.
    if before.iter().any(|record| matches!(record, Record::Ready { .. })) {
        return;
    }
    assert_eq!(changes, []);
    let after = records_of(table);
    assert!(before.iter().filter(|record| lasts(record)).eq(after.iter().filter(|record| lasts(record))));
}

/// Any entry may forget an ended id.
fn lasts(record: &Record<'_>) -> bool {
    matches!(record, Record::Head { .. } | Record::Lease(_) | Record::Value(_))
}

/// A repeated acquire changes only its requests and, for a waiter, the deadline, which never moves back.
fn assert_a_repeat_changes_little(
    command: &Command,
    outcome: &Outcome,
    changes: &[Event],
    before: &[Record<'_>],
    table: &LeaseTable,
    witness: &mut Witness,
) {
    let Command::Acquire(acquire) = command else { return };
    let waits = matches!(outcome, Outcome::Waiting(_) | Outcome::Kept(_));
    if !changes.is_empty() || !waits && !matches!(outcome, Outcome::Standing(_)) {
        return;
    }
    if waits {
        witness.count("repeated while waiting");
    }
    let mut after: Vec<Record> = records_of(table).into_iter().filter(lasts).collect();
    assert_eq!(before.iter().filter(|record| lasts(record)).count(), after.len());
    for (before, after) in before.iter().filter(|record| lasts(record)).zip(&mut after) {
        if let (Record::Lease(before), Record::Lease(after)) = (before, &mut *after)
            && after.lease_id == acquire.lease_id
        {
            assert!(waits || after.attachment.is_none(), "a lease with two requests is not detached");
            after.attachment = before.attachment;
            if waits {
                assert!(
                    after.deadline_ms >= before.deadline_ms,
                    "no place is kept for less than was promised"
                );
                after.deadline_ms = before.deadline_ms;
            }
        }
        assert_eq!(before, after);
    }
}

fn assert_same_views(table: &LeaseTable, model: &Model) {
    let later_ms = table.at_ms() + 70;
    assert_eq!((table.at_ms(), table.revision()), (model.at, Revision(model.revision)));
    assert_eq!(table.started(), model.revision > 0);
    assert_eq!(table.next_due_ms(), model.next_due());
    for by in [None, Some(principal(OWNERS[0])), Some(principal(OWNERS[1]))] {
        for (id, now_ms) in ids().flat_map(|id| [(id, None), (id, Some(later_ms))]) {
            assert_eq!(table.lease(by.as_ref(), id, now_ms), model.lease(&by, id, now_ms));
        }
    }
    let mut listed = Vec::new();
    for key in KEYS.map(key) {
        for now_ms in [None, Some(later_ms)] {
            assert_eq!(table.key(&key, now_ms), model.key(&key, now_ms));
        }
        for by in [None, Some(principal(OWNERS[0])), Some(principal(OWNERS[1]))] {
            assert_eq!(table.found(by.as_ref(), &key, 0), model.found(&by, &key));
        }
        let view = model.key(&key, None);
        assert_eq!(table.fence(&key), view.fence);
        for token in (0..=model.revision + 1).rev().take(30).map(Token) {
            assert_eq!(table.is_live(&key, token), view.holders.iter().any(|holder| holder.token == token));
        }
        if !view.holders.is_empty() || !view.waiters.is_empty() {
            listed.push(view);
        }
    }
    assert_eq!(table.keys("", None, 9, None), (listed.clone(), None));
    let live = model.leases.iter().filter(|lease| lease.live).count();
    assert_eq!((table.live(), table.waiters()), (live, model.leases.len() - live));
    assert_eq!((table.remembered(), table.keys_len()), (model.ended.len(), listed.len()));
}

fn count_what_the_model_shows(model: &mut Model, remembered: usize, events: &[Event], witness: &mut Witness) {
    for _ in 0..std::mem::take(&mut model.undone) {
        witness.count("not the first of several changes failed");
    }
    if model.ended.len() < remembered {
        witness.count("forgotten");
    }
    if model.first_to_admit().is_some() {
        witness.count("let in later");
    }
    if model.ended.len() == model.limits.remembered {
        witness.count("memory is full");
    }
    for lease in model.leases.iter().filter(|lease| model.at > lease.deadline) {
        witness.count("left over");
        if !lease.live && lease.first.claims.iter().all(|claim| model.fits(lease, &claim.0)) {
            witness.count("fitted, but its wait was over");
        }
    }
    let granted = |event: &Event| event.change == crate::Change::Granted;
    for three in events.windows(3) {
        if !granted(&three[0]) && granted(&three[1]) && granted(&three[2]) {
            witness.count("one end granted several");
            if three[1].keys[0].0 != three[2].keys[0].0 && three[0].keys.len() == 2 {
                witness.count("one end granted to two keys");
            }
        }
    }
}
