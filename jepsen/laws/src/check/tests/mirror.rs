use super::scene::{acquire, call, change, granted, key, numbered, view};
use super::*;
use ChangeName::{Ended, Granted};

fn entry(rev: u64, fence: u64, token: u64) -> Option<MirrorEntry> {
    Some(MirrorEntry { rev: Revision(rev), fence: Token(fence), token: Token(token), held: token > 0 })
}

fn sight(sent_us: u64, entry: Option<MirrorEntry>) -> MirrorSight {
    MirrorSight { sent_us, ended_us: sent_us + 1, key: key(), entry }
}

fn fault(nemesis: &str, from_us: u64, to_us: u64) -> Fault {
    Fault { nemesis: nemesis.to_owned(), what: String::new(), nodes: Vec::new(), from_us, to_us }
}

/// Lease 1 holds the key from revision 3 to 5, and lease 2 from 8 on.
fn run(sights: impl IntoIterator<Item = MirrorSight>) -> History {
    let mut history = History { mirror: sights.into_iter().collect(), ..History::default() };
    history.end.changes = vec![
        change(3, 1, Granted, Some(3), 3),
        change(5, 1, Ended, Some(3), 6),
        change(8, 2, Granted, Some(8), 8),
        change(9, 3, Granted, Some(9), 8),
    ];
    history.end.changes[3].keys.clear();
    history
}

fn only(found: Found) -> String {
    assert_eq!(found.breaches.len(), 1, "{found:?}");
    found.breaches[0].what.clone()
}

#[test]
fn old_states_are_never_ahead() {
    let found = judge(
        &MIRROR_NEVER_AHEAD,
        &run([
            sight(1, None),
            sight(20, entry(4, 3, 3)),
            sight(30, entry(6, 7, 0)),
            sight(40, entry(9, 8, 8)),
        ]),
    );
    assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
    assert_eq!(found.counts["hashes compared with the state at their revision"], 3);
    assert_eq!(judge(&MIRROR_NEVER_AHEAD, &run([sight(1, None)])).verdict(), Verdict::Unknown);
}

#[test]
fn a_hash_that_is_no_state_of_its_revision_is_found() {
    // A fence of a later view; the token of another; a word that is not true.
    assert!(
        only(judge(&MIRROR_NEVER_AHEAD, &run([sight(20, entry(4, 6, 3))])))
            .contains("it had fence 3 and token 3")
    );
    only(judge(&MIRROR_NEVER_AHEAD, &run([sight(20, entry(4, 3, 4))])));
    let mut lies = sight(20, entry(4, 3, 3));
    lies.entry.as_mut().unwrap().held = false;
    only(judge(&MIRROR_NEVER_AHEAD, &run([lies])));
}

#[test]
fn a_revision_that_the_table_had_not_reached_is_found() {
    let invocation = Invocation::Key { key: key(), local: false };
    let mut history = numbered([call(30, 31, invocation, Conclusion::Key { view: view(4, 5, &[], 0) })]);
    history.mirror = vec![sight(20, entry(8, 8, 8))];
    assert!(only(judge(&MIRROR_NEVER_AHEAD, &history)).contains("the table had 4 or less"));
    history.mirror = vec![sight(30, entry(8, 8, 8))];
    assert_eq!(judge(&MIRROR_NEVER_AHEAD, &history).verdict(), Verdict::Valid);
}

#[test]
fn what_rises_never_falls() {
    let sights =
        [sight(1, None), sight(10, entry(3, 3, 3)), sight(20, entry(3, 3, 3)), sight(30, entry(5, 6, 0))];
    let found = judge(&MIRROR_NEVER_FALLS, &run(sights));
    assert_eq!((found.verdict(), found.counts["sights after others"]), (Verdict::Valid, 2), "{found:?}");
    assert_eq!(judge(&MIRROR_NEVER_FALLS, &run([sight(1, None)])).verdict(), Verdict::Unknown);
}

#[test]
fn a_fall_is_found_unless_redis_lost_its_data_in_between() {
    let falls = [
        (entry(8, 8, 8), entry(5, 6, 0)),
        (entry(8, 8, 8), None),
        (entry(8, 8, 8), entry(7, 8, 0)),
        // Of a later state, and yet with a lower fence.
        (entry(8, 8, 8), entry(9, 7, 7)),
    ];
    for (before, after) in falls {
        let mut history = run([sight(10, before), sight(20, after)]);
        assert!(only(judge(&MIRROR_NEVER_FALLS, &history)).contains("revision 8 with fence 8 was in Redis"));
        history.faults = vec![fault("redis-stop", 12, 15), fault("kill", 12, 15), fault("redis-kill", 1, 5)];
        only(judge(&MIRROR_NEVER_FALLS, &history));
        history.faults.push(fault("redis-empty", 12, 15));
        assert_eq!(judge(&MIRROR_NEVER_FALLS, &history).verdict(), Verdict::Unknown);
    }
    let mut at_end = run([sight(10, entry(8, 8, 8))]);
    at_end.end.mirror.insert(key(), None);
    assert!(only(judge(&MIRROR_NEVER_FALLS, &at_end)).contains("and at the end nothing"));
}

#[test]
fn what_falls_after_a_loss_is_found_as_well() {
    let sights = [
        sight(10, entry(8, 8, 8)),
        sight(30, entry(4, 3, 3)),
        sight(40, entry(5, 6, 0)),
        sight(50, entry(4, 3, 3)),
    ];
    let mut history = run(sights);
    history.faults = vec![fault("redis-rollback", 20, 25)];
    assert!(only(judge(&MIRROR_NEVER_FALLS, &history)).contains("revision 5 with fence 6"));
}

#[test]
fn redis_is_equal_in_the_end() {
    let mut history = run([]);
    history.end.mirror.insert(key(), entry(8, 8, 8));
    history.end.keys = vec![view(9, 8, &[8], 0)];
    assert_eq!(judge(&MIRROR_EQUAL_AT_END, &history).verdict(), Verdict::Valid);
    for wrong in [None, entry(8, 8, 0), entry(8, 7, 8), entry(8, 8, 9), entry(5, 6, 0)] {
        history.end.mirror.insert(key(), wrong);
        only(judge(&MIRROR_EQUAL_AT_END, &history));
    }
    let free = entry(8, 8, 8).map(|entry| MirrorEntry { held: false, ..entry });
    history.end.mirror.insert(key(), free);
    only(judge(&MIRROR_EQUAL_AT_END, &history));
    history.end.mirror.clear();
    assert_eq!(judge(&MIRROR_EQUAL_AT_END, &history).verdict(), Verdict::Unknown);
}

#[test]
fn a_free_key_keeps_the_fence_it_was_freed_at() {
    let mut history = run([]);
    history.end.changes.push(change(12, 2, Ended, Some(8), 13));
    history.end.keys = vec![view(20, 21, &[], 0)];
    history.end.mirror.insert(key(), entry(12, 13, 0));
    assert_eq!(judge(&MIRROR_EQUAL_AT_END, &history).verdict(), Verdict::Valid);
    // As it was freed before; as it was held; ahead; neither.
    for wrong in [entry(5, 6, 0), entry(8, 8, 8), entry(21, 22, 0), entry(13, 13, 0), None] {
        history.end.mirror.insert(key(), wrong);
        only(judge(&MIRROR_EQUAL_AT_END, &history));
    }
    history.faults = vec![fault("kill", 1, 2)];
    assert_eq!(judge(&MIRROR_EQUAL_AT_END, &history).breaches, [], "it may never have been written");
}

#[test]
fn a_mirrored_grant_is_seen_by_whoever_reads_afterwards() {
    let answered = |mirrored| {
        let Conclusion::Granted { grant, standing, .. } = granted(2, 8, 8) else { unreachable!() };
        call(5, 9, acquire(2), Conclusion::Granted { grant, standing, mirrored: Some(mirrored) })
    };
    let with = |mirrored, sight| History { mirror: vec![sight], ..numbered([answered(mirrored)]) };
    assert_eq!(judge(&BEFORE_ANSWER, &with(true, sight(10, entry(8, 8, 8)))).verdict(), Verdict::Valid);
    for shown in [None, entry(5, 6, 0)] {
        let mut history = with(true, sight(10, shown.clone()));
        assert_eq!(judge(&BEFORE_ANSWER, &history).breaches[0].calls, [0]);
        history.faults = vec![fault("redis-empty", 7, 8)];
        assert_eq!(judge(&BEFORE_ANSWER, &history).verdict(), Verdict::Unknown);
        assert_eq!(judge(&BEFORE_ANSWER, &with(true, sight(9, shown.clone()))).verdict(), Verdict::Unknown);
        assert_eq!(judge(&BEFORE_ANSWER, &with(false, sight(10, shown))).verdict(), Verdict::Unknown);
    }
}

#[test]
fn a_repeat_may_be_told_of_what_redis_has_lost_since_its_lease_was_first_asked_for() {
    let answered = |when: (u64, u64), now: bool| {
        let Conclusion::Granted { grant, .. } = granted(2, 8, 8) else { unreachable!() };
        call(when.0, when.1, acquire(2), Conclusion::Granted { grant, standing: !now, mirrored: Some(true) })
    };
    let told = |first, again| numbered([answered((5, 9), first), answered((30, 35), again)]);
    let lost = |history: History, from, to| History {
        mirror: vec![sight(40, entry(5, 6, 0))],
        faults: vec![fault("redis-rollback", from, to)],
        ..history
    };
    // It stood there while the first call was under way, was lost, and is remembered.
    assert_eq!(judge(&BEFORE_ANSWER, &lost(told(true, false), 20, 25)).breaches, []);
    // Had it been granted only by the second, it could not be remembered from before.
    assert_eq!(judge(&BEFORE_ANSWER, &lost(told(false, true), 20, 25)).breaches[0].calls, [1]);
    // Nor had it been lost before anybody asked.
    assert_eq!(judge(&BEFORE_ANSWER, &lost(told(true, false), 2, 4)).breaches.len(), 1);
}

#[test]
fn a_fence_that_rose_after_the_grant_may_be_on_its_way() {
    let shown = |standing, wait_ms| {
        let Conclusion::Granted { grant, .. } = granted(2, 8, 8) else { unreachable!() };
        let conclusion = Conclusion::Granted { grant, standing, mirrored: Some(true) };
        let mut history = numbered([call(5, 9, acquire(2), conclusion)]);
        let Invocation::Acquire { wait_ms: waits, .. } = &mut history.calls[0].invocation else {
            unreachable!()
        };
        *waits = wait_ms;
        history.mirror = vec![sight(10, entry(8, 6, 8))];
        judge(&BEFORE_ANSWER, &history)
    };
    only(shown(false, 0));
    assert_eq!(shown(true, 0).verdict(), Verdict::Valid);
    assert_eq!(shown(false, 100).verdict(), Verdict::Valid);
}
