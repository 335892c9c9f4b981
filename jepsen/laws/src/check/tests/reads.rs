use super::scene::{acquire, call, change, granted, key, lease, look, numbered, sight, view};
use super::*;
use ChangeName::{Ended, Granted, Queued};

fn get(sent_us: u64, ended_us: u64, view: KeyView) -> Call {
    call(sent_us, ended_us, Invocation::Key { key: key(), local: false }, Conclusion::Key { view })
}

fn validate(sent_us: u64, ended_us: u64, token: u64, verdict: VerdictName, fence: u64) -> Call {
    let conclusion = Conclusion::Verdict { verdict: TokenVerdict { verdict, fence: Token(fence) } };
    call(
        sent_us,
        ended_us,
        Invocation::Validate { key: key(), token: Token(token), local: false },
        conclusion,
    )
}

/// The same call, for the node's own state.
fn local(mut call: Call) -> Call {
    match &mut call.invocation {
        Invocation::Key { local, .. }
        | Invocation::Validate { local, .. }
        | Invocation::Lease { local, .. } => *local = true,
        _ => {}
    }
    call
}

fn release(sent_us: u64, ended_us: u64, n: u64) -> Call {
    call(sent_us, ended_us, Invocation::Release { lease: lease(n) }, Conclusion::Done)
}

/// Lease 1 is granted at 1 (10 to 20 us), lease 2 waits from 2 on (25 to 60 us); the release of lease 1 (40 to 50 us)
/// is 3, and lets it in at 4. At 100 us the key is read.
fn with_logs(calls: impl IntoIterator<Item = Call>) -> History {
    let story = [
        call(10, 20, acquire(1), granted(1, 1, 1)),
        call(25, 60, acquire(2), granted(2, 4, 4)),
        release(40, 50, 1),
        get(100, 101, view(4, 4, &[4], 0)),
    ];
    let mut history = numbered(story.into_iter().chain(calls));
    let mut ended = change(3, 1, Ended, Some(1), 4);
    ended.reason = Some(ringfence_wire::EndReason::Released);
    history.end.changes = vec![
        change(1, 1, Granted, Some(1), 1),
        change(2, 2, Queued, None, 1),
        ended,
        change(4, 2, Granted, Some(4), 4),
    ];
    history
}

fn check(calls: impl IntoIterator<Item = Call>) -> Found {
    judge(&LINEARIZABLE_READS, &with_logs(calls))
}

/// What is wrong, where the logs tell nothing.
fn without_logs(law: &Checker, calls: impl IntoIterator<Item = Call>) -> Vec<String> {
    let found = judge(law, &numbered(calls));
    found.breaches.into_iter().map(|breach| breach.what).collect()
}

#[test]
fn answers_that_are_the_table_at_one_instant_are_valid() {
    use VerdictName::{Live, Stale, Unknown};
    let found = check([
        get(11, 12, view(0, 1, &[], 0)),
        get(13, 14, view(1, 1, &[1], 0)),
        get(42, 43, view(2, 1, &[1], 1)),
        validate(30, 31, 1, Live, 1),
        validate(30, 31, 4, Unknown, 1),
        // While it is released.
        validate(41, 49, 1, Live, 1),
        validate(41, 49, 1, Stale, 4),
        validate(70, 71, 1, Stale, 4),
        validate(70, 71, 4, Live, 4),
        call(70, 71, look(2), granted(2, 4, 4)),
        call(41, 42, look(2), Conclusion::Waiting { ahead: 0 }),
        call(70, 71, look(1), Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None }),
        // They lag.
        local(get(70, 71, view(1, 1, &[1], 0))),
        local(validate(70, 71, 1, Unknown, 1)),
        local(validate(70, 71, 1, Stale, 4)),
    ]);
    assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
    assert_eq!(found.counts["views compared with the log"], 5);
    assert_eq!((found.counts["verdicts"], found.counts["local verdicts"]), (6, 2));
}

#[test]
fn each_answer_that_the_table_never_had_then_is_found() {
    use VerdictName::{Live, Stale, Unknown};
    for wrong in [
        // Who holds it, who waits, and its fence.
        get(30, 31, view(2, 1, &[1], 0)),
        get(30, 31, view(2, 2, &[2], 1)),
        get(70, 71, view(4, 4, &[4], 1)),
        get(70, 71, view(4, 3, &[3], 0)),
        get(70, 71, view(4, 4, &[4, 5], 0)),
        get(70, 71, view(3, 3, &[], 1)),
        // From a state that was over, or had not come yet.
        get(70, 71, view(3, 4, &[], 1)),
        get(15, 16, view(4, 4, &[4], 0)),
        local(get(15, 16, view(4, 4, &[4], 0))),
        validate(70, 71, 1, Live, 1),
        validate(70, 71, 4, Stale, 4),
        validate(30, 31, 1, Stale, 1),
        validate(30, 31, 4, Live, 4),
        validate(30, 31, 1, Stale, 2),
        validate(30, 31, 1, Live, 2),
        validate(30, 31, 1, Unknown, 1),
        validate(30, 31, 4, Stale, 1),
        local(validate(30, 31, 1, Live, 1)),
        local(validate(30, 31, 1, Stale, 1)),
        local(validate(30, 31, 9, Stale, 1)),
        call(70, 71, look(1), granted(1, 1, 1)),
        call(70, 71, look(2), granted(2, 3, 3)),
        call(70, 71, look(2), granted(2, 4, 3)),
        call(70, 71, look(2), Conclusion::Waiting { ahead: 0 }),
        call(70, 71, look(2), Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None }),
        call(30, 31, look(1), Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None }),
        local(call(15, 16, look(2), granted(2, 4, 4))),
    ] {
        let found = check([wrong.clone()]);
        let shown = found.breaches.iter().any(|breach| breach.calls.contains(&id_of(&wrong)));
        assert!(shown, "{wrong:?}: {found:?}");
    }
}

/// Its id among the calls of [`with_logs`].
fn id_of(wrong: &Call) -> u64 {
    [10, 25, 40, 100].iter().filter(|&&sent_us| sent_us < wrong.sent_us).count() as u64
}

#[test]
fn nothing_lower_than_before_is_shown_though_no_log_tells() {
    let seen = [get(1, 2, view(9, 8, &[8], 0))];
    for (law, lower, word) in [
        (&LINEARIZABLE_READS, get(3, 4, view(8, 8, &[8], 0)), "is old: 9 was known"),
        (&TOKENS, validate(3, 4, 9, VerdictName::Stale, 7), "the fence of k fell from 8 to 7"),
        (&TOKENS, call(3, 4, look(1), granted(1, 7, 7)), "the fence of k fell from 8 to 7"),
    ] {
        let found = without_logs(law, seen.clone().into_iter().chain([lower.clone()]));
        assert!(found.iter().any(|what| what.contains(word)), "{found:?}");
        let at_once = Call { sent_us: 2, ..lower };
        assert!(without_logs(law, seen.clone().into_iter().chain([at_once])).is_empty());
    }
    let lower = validate(3, 4, 9, VerdictName::Stale, 7);
    assert!(without_logs(&GRANTED_TOKENS, seen.clone().into_iter().chain([lower])).is_empty());
    // What a node has applied stands.
    let seen = local(seen[0].clone());
    let found = without_logs(&LINEARIZABLE_READS, [seen, get(3, 4, view(8, 8, &[8], 0))]);
    assert!(found.iter().any(|what| what.contains("is old: 9 was known")), "{found:?}");
}

#[test]
fn every_shared_holder_must_be_shown_while_it_lives_and_no_longer() {
    let check = |wrong: &[Call]| {
        let both = [get(1, 2, view(2, 1, &[1, 2], 0)), get(10, 11, view(3, 1, &[1], 0))];
        let mut history =
            numbered(both.into_iter().chain([get(30, 31, view(3, 1, &[1], 0))]).chain(wrong.to_vec()));
        history.end.changes = vec![
            change(1, 1, Granted, Some(1), 1),
            change(2, 2, Granted, Some(2), 1),
            change(3, 2, Ended, Some(2), 1),
        ];
        judge(&LINEARIZABLE_READS, &history).breaches.len()
    };
    assert_eq!(check(&[call(20, 21, look(1), granted(1, 1, 1))]), 0);
    assert_eq!(check(&[call(20, 21, look(2), granted(2, 2, 1))]), 1);
    assert_eq!(check(&[local(get(20, 21, view(2, 1, &[1], 0)))]), 1);
}

#[test]
fn what_a_node_has_applied_is_never_unseen() {
    let mut history = numbered([get(3, 4, view(8, 8, &[8], 0))]);
    history.sights.push(sight(2, 9, 0));
    assert_eq!(judge(&LINEARIZABLE_READS, &history).breaches.len(), 1);
}

#[test]
fn a_view_that_contradicts_itself_is_found() {
    assert_eq!(without_logs(&TOKENS, [get(1, 2, view(9, 8, &[], 0))]).len(), 1);
    assert_eq!(without_logs(&TOKENS, [get(1, 2, view(9, 9, &[8], 0))]).len(), 1);
}

#[test]
fn a_run_without_reads_or_without_logs_is_unknown() {
    assert_eq!(judge(&LINEARIZABLE_READS, &History::default()).verdict(), Verdict::Unknown);
    let mut history = with_logs([]);
    assert_eq!(judge(&LINEARIZABLE_READS, &history).verdict(), Verdict::Valid);
    history.end.changes_after = Revision(4);
    history.end.changes.clear();
    assert_eq!(judge(&LINEARIZABLE_READS, &history).verdict(), Verdict::Unknown);
    let found = judge(&LINEARIZABLE_READS, &numbered([call(1, 2, acquire(1), granted(1, 1, 1))]));
    assert_eq!(found.verdict(), Verdict::Unknown);
}
