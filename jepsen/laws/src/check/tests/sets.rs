use super::story::{
    self, Story, end_if, expire_if, get, hung_up, not_done, other, refused, release, seen, set, token,
    unknown, valued,
};
use super::transactions::{TAKEN_BACK, WHOLE_SETS};
use super::*;
use crate::history::Seen;

/// One is set, seen, prolonged and deleted, and one after it expires. Two are set together. Beside them, one is acquired.
fn fair() -> Story {
    let mut story = Story::new();
    story.sets(&[(1, "a")], 0..10);
    story.tells(1, "a", 11..12);
    story.call(13..14, get("a"), seen(Seen::Value(valued(1, "a").value)));
    story.call(15..16, set(&[(2, "a")]), refused(ProblemKind::Held));
    story.call(17..18, expire_if(1, "a", 5_000), Conclusion::Done);
    story.deletes(1, "a", 20..30);
    story.call(31..32, end_if(1, "a"), other());
    story.call(31..32, token(1, "a"), other());
    story.call(31..32, get("a"), seen(Seen::Nothing));
    story.sets(&[(3, "a")], 40..50);
    story.tells(3, "a", 51..52);
    story.sets(&[(4, "b"), (5, "c")], 60..70);
    story.tells(4, "b", 71..72);
    story.tells(5, "c", 71..72);
    story.acquires(6, "d", 80..81);
    story.call(82..83, get("d"), seen(Seen::Other));
    story.call(82..83, set(&[(7, "d"), (8, "e")]), refused(ProblemKind::Held));
    story.expires(3, 10_041);
    story.end(20_000, 60_000);
    story
}

#[test]
fn what_was_set_obeys_the_laws_of_leases() {
    for law in [&NO_GRANT_LOST, &LINEARIZABLE_READS, &TOKENS, &EXCLUSION, &NO_EARLY_END] {
        fair().keeps(law);
    }
    let found = fair().judge(&BOUNDED_END);
    assert!(found.breaches.iter().all(|breach| !breach.what.contains(&valued(1, "a").value.to_string())));
    assert!(found.breaches.iter().any(|breach| breach.what.contains(&valued(4, "b").value.to_string())));
}

#[test]
fn a_grant_whose_token_was_told_and_that_is_not_in_the_log_is_found() {
    let mut story = fair();
    story.history.end.changes.remove(0);
    story.breaks(&NO_GRANT_LOST, "with token 101 was lost: the log does not have it");
}

#[test]
fn a_token_that_is_told_twice_or_changes_is_found() {
    let mut story = fair();
    story.sets(&[(9, "z")], 90..91);
    let token = story.token(4);
    story.call(92..93, story::token(9, "z"), Conclusion::Token { token });
    story.breaks(&TOKENS, "both have token");
    let mut story = fair();
    story.call(92..93, token_again(), Conclusion::Token { token: Token(999) });
    story.breaks(&ONE_GRANT_PER_LEASE, "granted more than once");
    // It was set after a higher one was known.
    let mut story = fair();
    story.sets(&[(9, "z")], 90..91);
    story.call(92..93, story::token(9, "z"), Conclusion::Token { token: Token(7) });
    story.breaks(&TOKENS, "has token 7, but revision");
}

fn token_again() -> Invocation {
    token(4, "b")
}

#[test]
fn two_who_hold_a_key_are_found_without_a_log() {
    let mut story = fair();
    story.sets(&[(9, "b")], 90..91);
    story.tells(9, "b", 92..93);
    story.breaks(&EXCLUSION, "the log says so");
    story.history.end.changes.clear();
    story.history.end.keys.clear();
    story.keeps(&EXCLUSION);
    story.call(94..95, expire_if(4, "b", 1_000), Conclusion::Done);
    story.breaks(&EXCLUSION, "their clients were told so");
}

#[test]
fn an_answer_that_denies_what_was_so_all_the_time_is_found() {
    for (law, invocation, conclusion, says) in [
        (&NO_GRANT_LOST, end_if(4, "b"), other(), "was called over"),
        (&NO_GRANT_LOST, expire_if(4, "b", 1_000), other(), "was called over"),
        (&LINEARIZABLE_READS, token(4, "b"), other(), "was called over"),
        (&LINEARIZABLE_READS, get("b"), seen(Seen::Nothing), "b was called free"),
        (&LINEARIZABLE_READS, get("d"), seen(Seen::Nothing), "d was called free"),
        (&LINEARIZABLE_READS, get("y"), seen(Seen::Other), "y was called held"),
        (&LINEARIZABLE_READS, get("a"), seen(Seen::Value(valued(1, "a").value)), "was called alive"),
        (&NO_GRANT_LOST, set(&[(9, "x"), (10, "y")]), refused(ProblemKind::Held), "x, y was called held"),
        (&LINEARIZABLE_READS, end_if(1, "a"), Conclusion::Done, "was called alive"),
        (&NO_GRANT_LOST, expire_if(1, "a", 1_000), Conclusion::Done, "was called alive"),
    ] {
        let mut story = fair();
        story.call(90..91, invocation, conclusion);
        story.breaks(law, says);
    }
}

#[test]
fn what_was_set_and_answered_ok_has_a_grant_of_its_own() {
    let mut story = fair();
    story.sets(&[(9, "z")], 90..91);
    story.end(20_000, 60_000).keeps(&NO_GRANT_LOST);
    // The log has one, and two were told OK.
    story.call(90..91, set(&[(10, "z")]), Conclusion::Done);
    story.breaks(&NO_GRANT_LOST, "and no grant in the log can be that");
    // One of them may not have been done.
    story.history.calls.last_mut().unwrap().conclusion = unknown();
    story.keeps(&NO_GRANT_LOST);
    // The grant must be of a revision that the call can have made.
    let mut story = fair();
    story.sets(&[(9, "z")], 90..91);
    story.looks("z", 92..93);
    story.history.calls.last_mut().unwrap().ended_us = 94_000;
    story.history.calls.retain(|call| call.invocation != set(&[(9, "z")]));
    story.end(20_000, 60_000);
    story.call(95..96, set(&[(9, "z")]), Conclusion::Done);
    story.breaks(&NO_GRANT_LOST, "and no grant in the log can be that");
}

#[test]
fn a_grant_after_the_answer_is_not_that_of_the_set() {
    let mut story = fair();
    story.call(90..91, set(&[(9, "z")]), Conclusion::Done);
    story.looks("z", 92..93);
    story.grants_set(&[(9, "z")], 95);
    story.end(20_000, 60_000);
    story.breaks(&NO_GRANT_LOST, "and no grant in the log can be that");
    story.history.calls.retain(|call| call.invocation != story::look("z"));
    story.keeps(&NO_GRANT_LOST);
}

#[test]
fn each_set_has_one_of_the_grants_that_it_can_have() {
    // The first may have either grant, the second that of its time alone.
    let mut story = fair();
    story.call(89..200, set(&[(10, "z")]), Conclusion::Done);
    story.sets(&[(9, "z")], 90..91);
    story.looks("z", 92..93);
    story.grants_set(&[(10, "z")], 95);
    story.end(20_000, 60_000).keeps(&NO_GRANT_LOST);
    story.history.end.changes.pop();
    story.history.calls.retain(|call| call.invocation != story::look("z"));
    story.breaks(&NO_GRANT_LOST, "and no grant in the log can be that");
}

#[test]
fn what_was_set_without_a_token_was_not_there_before() {
    for invocation in [set(&[(9, "z")]), end_if(9, "z")] {
        let is_set = matches!(invocation, Invocation::Set { .. });
        let mut story = fair();
        story.grants_set(&[(9, "z")], 90);
        let by = story.call(90..91, set(&[(9, "z")]), unknown()) as usize;
        story.log(95, 9, ChangeName::Ended, Some(EndReason::Released));
        let ended_by = story.call(95..96, end_if(9, "z"), unknown()) as usize;
        story.end(20_000, 60_000);
        let cause = if is_set { by } else { ended_by };
        let before = story.history.calls[cause].sent_us / 1_000;
        // At most, since other calls may be nearer.
        let (first, then) = if is_set { (Seen::Other, "held") } else { (Seen::Nothing, "free") };
        if !is_set {
            story.looks("z", 91..92);
            let Conclusion::Key { view } = &mut story.history.calls.last_mut().unwrap().conclusion else {
                panic!()
            };
            (view.revision, view.fence) = (Revision(108), Token(108));
            view.holders = fair().view("d").holders;
            view.holders[0].token = Token(108);
        }
        story.call(before - 2..before - 1, get("z"), seen(first));
        story.keeps(&EXCLUSION);
        story.breaks(&LINEARIZABLE_READS, &format!("z was called {then}"));
        // It may be that of a call that was sent before.
        let other = if is_set { set(&[(10, "z")]) } else { end_if(9, "z") };
        story.call(before - 2..before - 1, other, unknown());
        assert_eq!(story.judge(&LINEARIZABLE_READS).breaches, []);
    }
}

#[test]
fn a_grant_that_no_set_can_have_made_is_found() {
    for conclusion in [not_done(), refused(ProblemKind::Held)] {
        let mut story = fair();
        story.sets(&[(9, "z")], 90..91);
        story.end(20_000, 60_000);
        story.history.calls.last_mut().unwrap().conclusion = conclusion;
        story.breaks(
            &NO_GRANT_LOST,
            "z is Granted at revision 108 of the log, and no call can have done that",
        );
        story.history.calls.last_mut().unwrap().conclusion = unknown();
        story.keeps(&NO_GRANT_LOST);
    }
    // Nor if its token was told.
    let mut story = fair();
    story.history.calls[0].conclusion = not_done();
    story.breaks(&NO_GRANT_LOST, "is Granted at revision 101 of the log, and no call can have done that");
}

#[test]
fn a_value_or_a_token_of_what_nobody_set_is_malformed() {
    for (invocation, conclusion) in [
        (get("b"), seen(Seen::Value(story::id(77)))),
        (get("b"), seen(Seen::Value(valued(5, "c").value))),
        (get("d"), seen(Seen::Value(valued(7, "d").value))),
        (token(77, "b"), Conclusion::Token { token: Token(101) }),
    ] {
        let mut story = fair();
        story.keeps(&NOTHING_MALFORMED);
        story.call(90..91, invocation, conclusion);
        story.breaks(&NOTHING_MALFORMED, "a value that nobody");
    }
}

#[test]
fn keys_that_are_not_set_together_are_found() {
    let story = fair();
    assert_eq!(story.judge(&WHOLE_SETS).breaches, []);
    // In two entries, whether both tokens were told or one.
    for tokens in 1..3 {
        let mut story = fair();
        let change = story.history.end.changes.iter_mut().find(|change| change.revision.0 == 105).unwrap();
        change.index += 1;
        story.history.calls.retain(|call| tokens == 2 || call.invocation != token(5, "c"));
        story.breaks(&WHOLE_SETS, "in entry 104 of the log, and c not with it");
    }
    // One of them alone, and the call has no answer.
    let mut story = fair();
    story.history.end.changes.retain(|change| change.lease_id != story::id(5));
    story.history.calls.retain(|call| call.invocation != token(5, "c"));
    story.history.calls.iter_mut().filter(|call| call.invocation == set(&[(4, "b"), (5, "c")])).for_each(
        |call| {
            call.conclusion = unknown();
        },
    );
    story.breaks(&WHOLE_SETS, "in entry 104 of the log, and c not with it");
    let mut story = Story::new();
    story.sets(&[(1, "a")], 0..10);
    story.end(100, 200).cannot_tell(&WHOLE_SETS);
}

fn set_if(lease: u128, of: &str, only_if: (u128, &str)) -> Invocation {
    Invocation::Set {
        keys: vec![valued(lease, of)],
        ttl_ms: story::TTL_MS,
        only_if: Some(valued(only_if.0, only_if.1)),
    }
}

#[test]
fn a_set_on_a_condition_that_did_not_hold_is_found() {
    for (condition, holds) in [((4, "b"), true), ((1, "a"), false)] {
        let mut story = fair();
        story.grants_set(&[(9, "z")], 90);
        story.call(90..91, set_if(9, "z", condition), Conclusion::Done);
        story.tells(9, "z", 92..93);
        story.end(20_000, 60_000);
        if holds {
            story.keeps(&WHOLE_SETS);
        } else {
            story.breaks(&WHOLE_SETS, "was set at revision 108, only if a is");
        }
    }
    // That it did not hold is an answer about the lease.
    for (condition, says) in [((4, "b"), "was called over"), ((1, "a"), "")] {
        let mut story = fair();
        story.call(90..91, set_if(9, "z", condition), other());
        match says {
            "" => story.keeps(&LINEARIZABLE_READS),
            says => story.breaks(&LINEARIZABLE_READS, says),
        }
    }
}

#[test]
fn what_is_set_lives_as_long_as_its_client_was_told() {
    // Until 10,000 ms after it was sent, or 5,000 ms after it was shortened.
    let ended = |end_ms: u64, seen_ms: u64, shortens: Option<Conclusion>| {
        let mut story = Story::new();
        story.sets(&[(1, "a")], 0..10);
        story.tells(1, "a", 11..12);
        if let Some(conclusion) = shortens {
            story.call(1_000..1_010, expire_if(1, "a", 5_000), conclusion);
        }
        story.expires(1, end_ms);
        story.call(seen_ms - 1..seen_ms, get("a"), seen(Seen::Nothing));
        story.looks("a", seen_ms - 1..seen_ms);
        story.end(20_000, 60_000);
        story
    };
    ended(10_001, 10_001, None).keeps(&NO_EARLY_END);
    ended(10_001, 9_999, None).breaks(&NO_EARLY_END, "and was to live until 10.000 s");
    for conclusion in [Conclusion::Done, unknown(), hung_up()] {
        ended(5_001, 6_001, Some(conclusion.clone())).keeps(&NO_EARLY_END);
        ended(5_001, 5_999, Some(conclusion)).breaks(&NO_EARLY_END, "and was to live until 6.000 s");
    }
    for conclusion in [other(), not_done()] {
        ended(10_001, 6_001, Some(conclusion)).breaks(&NO_EARLY_END, "and was to live until 10.000 s");
    }
    // What was shortened before a longer time was told is not short.
    let mut story = ended(5_001, 9_999, Some(Conclusion::Done));
    story.call(1_020..1_030, expire_if(1, "a", 9_000), Conclusion::Done);
    story.breaks(&NO_EARLY_END, "and was to live until 10.020 s");
}

#[test]
fn an_end_that_no_client_asked_for_is_found() {
    let ended = |reason, conclusion| {
        let mut story = Story::new();
        story.grants_set(&[(1, "a")], 0);
        story.call(0..10, set(&[(1, "a")]), conclusion);
        story.tells(1, "a", 11..12);
        story.log(2_010, 1, ChangeName::Ended, Some(reason));
        story.end(20_000, 60_000);
        story
    };
    for reason in [EndReason::Released, EndReason::Abandoned] {
        ended(reason, Conclusion::Done).breaks(&NO_EARLY_END, "which no call asked for");
    }
    // It is taken back from a client that hung up, and not after that was told the token, or that it has another time.
    ended(EndReason::Abandoned, hung_up()).breaks(&NO_EARLY_END, "which no call asked for");
    for (keeps, conclusion) in [(token(1, "a"), unknown()), (expire_if(1, "a", 9_000), unknown())] {
        let mut story = ended(EndReason::Abandoned, hung_up());
        let told = story.history.calls.pop();
        story.call(20..30, keeps, conclusion);
        assert_eq!(story.judge(&NO_EARLY_END).breaches, [], "{told:?}");
    }
    let mut story = ended(EndReason::Released, hung_up());
    story.breaks(&NO_EARLY_END, "which no call asked for");
    story.call(1_000..1_010, end_if(1, "a"), unknown());
    assert_eq!(story.judge(&NO_EARLY_END).breaches, []);
}

#[test]
fn what_is_not_taken_back_from_a_client_that_hung_up_is_found() {
    // Granted at 0, its client hung up after 1 s: 2 s, and 5 s at most.
    let ended = |at_ms: u64, conclusion: Conclusion| {
        let mut story = Story::new();
        story.grants_set(&[(1, "a")], 0);
        story.call(0..1_000, set(&[(1, "a")]), conclusion);
        story.expires(1, at_ms);
        story.end(20_000, 60_000);
        story
    };
    ended(8_000, hung_up()).keeps(&TAKEN_BACK);
    let late = ended(8_001, hung_up());
    late.breaks(&TAKEN_BACK, "its client hung up, and it ended at 8001 ms");
    ended(8_001, unknown()).cannot_tell(&TAKEN_BACK);
    ended(8_001, Conclusion::Done).cannot_tell(&TAKEN_BACK);
    // Its token was told all the same: so it is kept.
    let mut story = ended(8_001, hung_up());
    story.tells(1, "a", 1_100..1_101);
    story.cannot_tell(&TAKEN_BACK);
    // Another may have set it, and was told so.
    let mut story = ended(8_001, hung_up());
    story.call(0..1_000, set(&[(2, "a")]), Conclusion::Done);
    story.cannot_tell(&TAKEN_BACK);
    for (from_us, to_us, near) in [(7_999_999, 8_500_000, true), (8_000_000, 8_500_000, false)] {
        let mut story = ended(8_001, hung_up());
        let (nemesis, what) = ("kill".to_owned(), "node 2 is killed".to_owned());
        story.history.faults.push(Fault { nemesis, what, nodes: vec![2], from_us, to_us });
        assert_eq!(story.judge(&TAKEN_BACK).breaches.is_empty(), near);
    }
    // The same of an acquire.
    let mut story = Story::new();
    story.lease(1, "a");
    story.log(0, 1, ChangeName::Granted, None);
    story.call(0..1_000, story::acquire(1, "a"), hung_up());
    story.expires(1, 8_001);
    story.end(20_000, 60_000).breaks(&TAKEN_BACK, "its client hung up");
    story.call(1_000..1_001, release(1), unknown());
    story.breaks(&TAKEN_BACK, "its client hung up");
}

#[test]
fn a_lease_that_the_client_library_may_have_asked_for_is_no_set() {
    let mut story = fair();
    story.lease(9, "a");
    story.log(90, 9, ChangeName::Granted, None);
    story.end(20_000, 60_000);
    story.breaks(&NO_GRANT_LOST, "and no call can have done that");
    story.call(90..91, story::acquire(10, "a"), unknown());
    story.history.calls.last_mut().unwrap().node = None;
    assert_eq!(story.judge(&NO_GRANT_LOST).breaches, []);
}
