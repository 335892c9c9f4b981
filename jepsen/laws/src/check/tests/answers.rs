use super::story::{
    self, Story, acquire, gone, not_done, refused, release, renew, unknown, validate, verdict,
};
use super::*;

/// One is released, one held to the end beside another, one certainly not acquired.
fn fair() -> Story {
    let mut story = Story::held();
    story.looks("a", 11..12);
    story.releases(1, 20..30);
    story.call(31..32, renew(1), gone(EndReason::Released));
    story.acquires(2, "b:s c", 40..50);
    story.acquires(3, "b:s", 40..50);
    let granted = story.granted(2);
    story.call(60..70, renew(2), granted);
    story.call(71..72, acquire(4, "c"), refused(ProblemKind::Held));
    story.call(73..74, acquire(4, "c"), not_done());
    let token = story.token(2);
    story.call(75..76, validate("b", token), verdict(VerdictName::Live, token.0));
    story.end(100, 200);
    story
}

#[test]
fn what_stays_until_its_end_is_right() {
    fair().keeps(&NO_GRANT_LOST);
}

#[test]
fn without_a_log_nothing_is_shown() {
    let mut story = fair();
    story.history.end.changes.clear();
    story.cannot_tell(&NO_GRANT_LOST);
}

#[test]
fn a_grant_that_is_not_in_the_log_is_found() {
    let mut story = fair();
    story.history.end.changes.remove(2);
    story.breaks(&NO_GRANT_LOST, "the log does not have it");
    story.history.end.changes.retain(|change| change.revision.0 > 103);
    story.history.end.changes_after.0 = 103;
    story.keeps(&NO_GRANT_LOST);
}

#[test]
fn a_grant_whose_place_another_change_took_is_found() {
    let mut story = fair();
    story.history.end.changes[2].lease_id = story::id(77);
    story.breaks(&NO_GRANT_LOST, "the log does not have it");
}

#[test]
fn a_grant_beyond_all_that_is_left_is_found() {
    let mut story = fair();
    story.acquires(5, "z", 80..90);
    story.history.end.changes.pop();
    story.breaks(&NO_GRANT_LOST, "it is beyond everything that exists at the end");
    // The logs may have been read only so far.
    story.end(100, 200).keeps(&NO_GRANT_LOST);
}

#[test]
fn a_view_that_lacks_a_holder_is_found_at_the_end_and_at_any_time() {
    let mut story = fair();
    story.history.end.keys[1].holders.remove(1);
    story.breaks(&NO_GRANT_LOST, "the final view of b at revision 104 lacks token 104");
    let mut story = fair();
    let Conclusion::Key { view } = &mut story.history.calls[1].conclusion else { panic!() };
    view.holders.clear();
    story.breaks(&LINEARIZABLE_READS, "of a at revision 101 lacks token 101");
}

#[test]
fn a_view_with_a_holder_that_is_none_is_found() {
    let mut story = fair();
    let mut view = story.view("a");
    view.holders = story.view("c").holders;
    view.holders[0].token = Token(101);
    view.fence = Token(101);
    let seen = story.call(90..91, story::look("a"), Conclusion::Key { view });
    story.breaks(&LINEARIZABLE_READS, "lists token 101, which does not live");
    story.history.calls.truncate(seen as usize);
    story.keeps(&NO_GRANT_LOST);
}

#[test]
fn a_later_answer_that_denies_a_grant_is_found() {
    use ProblemKind::{NotGranted, UnknownLease, WaitTimeout};
    for (invocation, conclusion, says) in [
        (renew(2), refused(UnknownLease), "was called unknown"),
        (renew(2), refused(NotGranted), "was called waiting"),
        (acquire(2, "b:s c"), refused(WaitTimeout), "was called over"),
        (acquire(2, "b:s c"), Conclusion::Waiting { ahead: 0 }, "was called waiting"),
        (renew(2), gone(EndReason::Expired), "was called over, Expired"),
        (renew(1), gone(EndReason::Expired), "was called over, Expired; by the log it ended as Released"),
        (renew(1), refused(UnknownLease), "was called unknown"),
    ] {
        let mut story = fair();
        story.call(90..91, invocation, conclusion);
        story.breaks(&NO_GRANT_LOST, says);
    }
    // What was under way when the grant was told may have come before it.
    let mut story = fair();
    story.call(0..11, renew(2), refused(UnknownLease));
    story.call(45..55, renew(2), refused(UnknownLease));
    story.keeps(&NO_GRANT_LOST);
}

#[test]
fn an_id_may_be_forgotten_after_its_end() {
    let mut story = fair();
    story.end(70_000, 80_000);
    story.call(59_990..60_000, renew(1), refused(ProblemKind::UnknownLease));
    story.keeps(&NO_GRANT_LOST);
    story.call(59_990..59_999, renew(1), refused(ProblemKind::UnknownLease));
    story.breaks(&NO_GRANT_LOST, "was called unknown");
}

#[test]
fn a_release_that_ended_nothing_is_found() {
    let mut story = fair();
    story.call(80..81, release(2), Conclusion::Done);
    story.breaks(&NO_GRANT_LOST, "was called over");
    let mut story = fair();
    let token = story.token(3);
    story.call(80..81, Invocation::Revoke { key: story::key("b"), token }, Conclusion::Done);
    story.breaks(&NO_GRANT_LOST, "was called over");
    let mut story = fair();
    story.call(80..81, release(2), unknown());
    story.call(80..81, release(3), not_done());
    story.keeps(&NO_GRANT_LOST);
}

#[test]
fn a_lease_that_is_alive_after_a_call_that_called_it_over_is_found() {
    use EndReason::{Abandoned, Released};
    let token = fair().token(2);
    for (invocation, conclusion, reason) in [
        (release(2), Conclusion::Done, Released),
        (renew(2), gone(Abandoned), Abandoned),
        (validate("b", token), verdict(VerdictName::Stale, 104), Abandoned),
        (validate("c", Token(1)), verdict(VerdictName::Stale, 106), Abandoned),
    ] {
        let mut story = fair();
        let alive = story.granted(2);
        story.log(85, 2, ChangeName::Ended, Some(reason));
        story.call(80..90, invocation, conclusion);
        story.end(100, 200);
        // It may be older.
        story.call(90..91, renew(2), alive.clone());
        story.keeps(&NO_GRANT_LOST);
        story.call(91..92, renew(2), alive);
        story.breaks(&NO_GRANT_LOST, "was called alive");
    }
}

#[test]
fn an_end_that_the_log_does_not_know_is_found() {
    let mut story = fair();
    let token = story.token(2);
    // Asked before anybody knew of the grant: it may not have been given yet.
    story.call(45..60, validate("b", token), verdict(VerdictName::Unknown, 103));
    story.keeps(&LINEARIZABLE_READS);
    story.call(80..90, validate("b", token), verdict(VerdictName::Stale, 103));
    story.breaks(&LINEARIZABLE_READS, "token 103 was called Stale with fence 103");
}

#[test]
fn what_was_called_not_done_and_is_done_is_found() {
    let mut story = fair();
    let other = story.granted(3);
    story.call(90..91, renew(4), other);
    story.breaks(&NO_GRANT_LOST, "the log does not have it");
    let mut story = fair();
    story.lease(4, "z");
    story.log(80, 4, ChangeName::Granted, None);
    story
        .end(100, 200)
        .breaks(&NO_GRANT_LOST, "is Granted at revision 105 of the log, and no call can have done that");
    // One of them is open: it may have been that.
    story.call(75..76, acquire(4, "z"), unknown());
    story.keeps(&NO_GRANT_LOST);
    let mut story = fair();
    story.lease(4, "b");
    story.log(80, 4, ChangeName::Queued, None);
    story
        .end(100, 200)
        .breaks(&NO_GRANT_LOST, "is Queued at revision 105 of the log, and no call can have done that");
}

#[test]
fn a_lease_that_stands_before_anybody_can_have_made_it_is_found() {
    let mut story = fair();
    story.call(80..81, acquire(5, "z"), not_done());
    story.lease(5, "z");
    story.log(80, 5, ChangeName::Granted, None);
    let Conclusion::Granted { grant, mirrored, .. } = story.granted(5) else { panic!() };
    let repeat = story.call(83..84, acquire(5, "z"), Conclusion::Granted { grant, standing: true, mirrored });
    story.end(100, 200).breaks(&NO_GRANT_LOST, "and no call can have done that");
    // It was open, or another was still under way.
    let before = story.history.calls[repeat as usize - 1].clone();
    story.history.calls[repeat as usize - 1].conclusion = unknown();
    story.keeps(&NO_GRANT_LOST);
    story.history.calls[repeat as usize - 1] = before;
    story.call(84..85, acquire(5, "z"), unknown());
    story.keeps(&NO_GRANT_LOST);
}

#[test]
fn a_change_that_was_known_before_its_cause_is_found() {
    let mut story = fair();
    story.call(80..81, release(3), not_done());
    story.log(80, 3, ChangeName::Ended, Some(EndReason::Released));
    let seen = story.looks("a", 82..84) as usize;
    let again = story.call(85..86, release(3), Conclusion::Done);
    story.end(100, 200).breaks(
        &NO_GRANT_LOST,
        "known at 0.084 s, before the first call that can have done that was sent at 0.085 s",
    );
    // The look may have seen what this one did.
    story.history.calls[seen].ended_us = story.history.calls[again as usize].sent_us;
    story.keeps(&NO_GRANT_LOST);
    let mut story = fair();
    story.call(80..81, acquire(5, "z"), not_done());
    story.lease(5, "z");
    story.log(80, 5, ChangeName::Granted, None);
    story.looks("a", 82..84);
    let granted = story.granted(5);
    story.call(85..86, acquire(5, "z"), granted);
    story.end(100, 200).breaks(
        &NO_GRANT_LOST,
        "known at 0.084 s, before the first call that can have done that was sent at 0.085 s",
    );
}
