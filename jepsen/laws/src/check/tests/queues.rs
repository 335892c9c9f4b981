use super::story::{Story, acquire, not_done, refused, unknown, wait};
use super::*;

/// One holds, two wait, one tries in vain; then each in turn.
fn fair() -> Story {
    let mut story = Story::held();
    story.waits(2, "a", 20..1_000);
    story.waits(3, "a b", 1_001..2_000);
    story.call(2_001..2_002, acquire(4, "b"), refused(ProblemKind::Held));
    story.releases(1, 900..910);
    story.log(900, 2, ChangeName::Granted, None);
    story.together();
    story.releases(2, 1_500..1_510);
    story.log(1_500, 3, ChangeName::Granted, None);
    story.together();
    story.waits(5, "a", 2_100..2_200);
    story.log(2_201, 5, ChangeName::Left, None);
    story.end(3_000, 4_000);
    story
}

#[test]
fn a_queue_that_is_served_in_order_is_right() {
    fair().keeps(&QUEUE_ORDER);
    fair().keeps(&NO_LATE_WAITER);
}

#[test]
fn without_a_queue_nothing_is_shown() {
    let mut story = Story::held();
    story.releases(1, 20..30);
    story.acquires(2, "a", 40..50);
    story.end(100, 200).cannot_tell(&QUEUE_ORDER);
    story.cannot_tell(&NO_LATE_WAITER);
}

#[test]
fn a_waiter_that_overtakes_is_found_in_the_log() {
    let mut story = Story::held();
    story.waits(2, "a", 20..100);
    story.waits(3, "a", 30..100);
    story.releases(1, 50..60);
    story.log(50, 3, ChangeName::Granted, None);
    story.together();
    story.history.calls.clear();
    story.breaks(&QUEUE_ORDER, "who waited before it");
}

#[test]
fn a_try_that_overtakes_a_waiter_for_two_keys_is_found() {
    let mut story = Story::held();
    story.waits(2, "a b", 20..100);
    story.acquires(3, "b", 30..40);
    story.history.calls.clear();
    story.breaks(&QUEUE_ORDER, "against those who waited before it");
}

#[test]
fn waiters_and_holders_are_counted_together_against_the_limit() {
    let mut story = Story::new();
    story.acquires(1, "a:3", 0..10);
    story.acquires(9, "b", 0..10);
    // It waits for b, and its place on a counts.
    story.waits(2, "a:3 b", 20..100);
    story.acquires(3, "a:3", 30..40);
    story.log(50, 9, ChangeName::Ended, Some(ringfence_wire::EndReason::Expired));
    story.log(50, 2, ChangeName::Granted, None);
    story.together();
    story.keeps(&QUEUE_ORDER);
    story.acquires(4, "a:3", 60..70);
    story.breaks(&EXCLUSION, "held it");

    let mut story = Story::new();
    story.acquires(1, "a:2", 0..10);
    story.acquires(9, "b", 0..10);
    story.waits(2, "a:2 b", 20..100);
    story.acquires(3, "a:2", 30..40);
    story.breaks(&QUEUE_ORDER, "who waited before it");
}

#[test]
fn a_waiter_that_is_passed_over_is_found() {
    let mut story = Story::held();
    story.waits(2, "a", 20..100);
    story.releases(1, 50..60);
    story.breaks(&QUEUE_ORDER, "was passed over");
    // Who waits for another key as well is not.
    let mut story = Story::held();
    story.acquires(9, "b", 0..10);
    story.waits(2, "a b", 20..100);
    story.releases(1, 50..60);
    story.log(70, 9, ChangeName::Ended, Some(ringfence_wire::EndReason::Expired));
    story.log(70, 2, ChangeName::Granted, None);
    story.together();
    story.keeps(&QUEUE_ORDER);
}

#[test]
fn who_may_stand_there_from_before_the_log_excuses() {
    let mut story = fair();
    // The grants of 1 and 2 and the place of 3 are cut off: 3 may be older than anybody.
    story.history.end.changes.drain(..2);
    story.history.end.changes_after = Revision(102);
    story.waits(6, "a", 2_100..2_200);
    story.releases(3, 2_300..2_310);
    story.log(2_300, 6, ChangeName::Granted, None);
    story.together();
    story.keeps(&QUEUE_ORDER);
    // Nothing is known of z before the log: an unknown lease may block its first waiter.
    story.waits(7, "z", 2_400..2_500);
    story.waits(8, "z", 2_400..2_500);
    story.log(2_450, 7, ChangeName::Left, None);
    story.keeps(&QUEUE_ORDER);
    story.history.end.changes_after = Revision(0);
    story.breaks(&QUEUE_ORDER, "was passed over");
}

#[test]
fn a_waiter_from_before_the_log_is_held_against_nobody_who_came_later() {
    let mut story = Story::held();
    story.waits(2, "a", 20..100);
    story.waits(3, "a", 30..100);
    story.releases(1, 50..60);
    story.log(50, 2, ChangeName::Granted, None);
    story.together();
    story.releases(2, 70..80);
    story.log(70, 3, ChangeName::Granted, None);
    story.together();
    story.history.end.changes.drain(..2);
    story.history.end.changes_after = Revision(102);
    story.keeps(&QUEUE_ORDER);
}

#[test]
fn an_overtaking_is_found_though_the_log_says_otherwise() {
    for (first, second, wrong) in
        [("a", "a", true), ("a:s", "a", true), ("a", "a:s", true), ("a:s", "a:s", false), ("a", "b", false)]
    {
        let mut story = Story::new();
        story.waits(1, first, 0..50);
        story.acquires(2, second, 51..60);
        story.log(70, 1, ChangeName::Granted, None);
        let granted = story.granted(1);
        story.call(52..80, wait(1, first, 28), granted);
        story.end(100, 200);
        if wrong {
            story.breaks(&QUEUE_ORDER, "those who waited before it");
        } else {
            story.keeps(&QUEUE_ORDER);
        }
        // As if the first had joined behind the second: but its client was told that it waits before.
        let changes = &mut story.history.end.changes;
        changes.swap(0, 1);
        (changes[0].revision, changes[1].revision) = (changes[1].revision, changes[0].revision);
        changes[0].token = Some(changes[0].revision.into());
        story.breaks(&NO_GRANT_LOST, "was called waiting");
    }
}

#[test]
fn a_grant_after_a_wait_that_ran_out_is_found() {
    let mut story = fair();
    story.call(2_201..2_202, acquire(5, "a"), refused(ProblemKind::WaitTimeout));
    story.keeps(&NO_LATE_WAITER);
    let mut story = fair();
    story.call(2_201..2_202, acquire(3, "a b"), refused(ProblemKind::WaitTimeout));
    story.breaks(&NO_LATE_WAITER, "was told wait-timeout");
    // By then the id may have been forgotten.
    story.call(61_999..62_000, acquire(3, "a b"), refused(ProblemKind::WaitTimeout));
    story.keeps(&NO_LATE_WAITER);
}

#[test]
fn a_grant_later_than_all_waits_is_found_in_the_log() {
    let mut story = fair();
    story.lease(6, "z");
    story.log(5_000, 6, ChangeName::Queued, None);
    story.call(5_000..5_100, wait(6, "z", 100), unknown());
    story.log(5_100, 6, ChangeName::Granted, None);
    story.keeps(&NO_LATE_WAITER);
    story.history.end.changes.last_mut().unwrap().at_ms += 1;
    story.breaks(&NO_LATE_WAITER, "could wait 100 ms in all");
    // A repeat may have prolonged the wait, if it may have come.
    story.call(5_050..5_100, wait(6, "z", 100), not_done());
    story.breaks(&NO_LATE_WAITER, "could wait 100 ms in all");
    story.call(5_050..5_100, wait(6, "z", 100), unknown());
    story.keeps(&NO_LATE_WAITER);
}

#[test]
fn a_place_that_is_kept_may_be_granted_for_5_s_more() {
    let mut story = fair();
    story.lease(6, "z");
    story.log(5_000, 6, ChangeName::Queued, None);
    let mut invocation = wait(6, "z", 100);
    if let Invocation::Acquire { keep_place, .. } = &mut invocation {
        *keep_place = true;
    }
    story.call(5_000..5_100, invocation, Conclusion::Waiting { ahead: 0 });
    story.log(10_100, 6, ChangeName::Granted, None);
    story.keeps(&NO_LATE_WAITER);
    story.history.end.changes.last_mut().unwrap().at_ms += 1;
    story.breaks(&NO_LATE_WAITER, "could wait 5100 ms in all");
}

#[test]
fn a_repeat_keeps_a_place_that_another_keeps_for_5_s_more() {
    let mut story = fair();
    story.lease(6, "z");
    story.log(5_000, 6, ChangeName::Queued, None);
    let mut invocation = wait(6, "z", 0);
    if let Invocation::Acquire { keep_place, .. } = &mut invocation {
        *keep_place = true;
    }
    story.call(5_000..5_010, invocation, Conclusion::Waiting { ahead: 0 });
    story.call(5_020..5_120, wait(6, "z", 100), Conclusion::Waiting { ahead: 0 });
    story.log(15_100, 6, ChangeName::Granted, None);
    story.keeps(&NO_LATE_WAITER);
    story.history.end.changes.last_mut().unwrap().at_ms += 1;
    story.breaks(&NO_LATE_WAITER, "could wait 10100 ms in all");
}

#[test]
fn a_late_answer_is_found_where_no_fault_is_near() {
    let mut story = fair();
    story.lease(6, "z");
    story.log(5_000, 6, ChangeName::Granted, None);
    let granted = story.granted(6);
    story.call(5_000..25_101, wait(6, "z", 100), granted);
    story.breaks(&NO_LATE_WAITER, "to wait 100 ms, granted at 25.101 s");
    let (from_us, to_us) = (5_000_000, 6_000_000);
    let (nemesis, what) = ("pause".to_owned(), "node 1 is stopped".to_owned());
    story.history.faults.push(Fault { nemesis, what, nodes: vec![1], from_us, to_us });
    story.keeps(&NO_LATE_WAITER);
}

/// One holds; of a batch, two take places, and the first of them is granted; the place of the other runs out.
fn batch() -> Story {
    let mut story = Story::held();
    for lease in [2, 3] {
        story.lease(lease, "a");
        story.log(20, lease, ChangeName::Queued, None);
        let mut invocation = wait(lease, "a", 0);
        if let Invocation::Acquire { keep_place, .. } = &mut invocation {
            *keep_place = true;
        }
        story.call(20..30, invocation, Conclusion::Waiting { ahead: 1 });
        story.history.calls.last_mut().unwrap().batch = Some(7);
    }
    story.together();
    story.releases(1, 900..910);
    story.log(900, 2, ChangeName::Granted, None);
    story.log(5_020, 3, ChangeName::Left, None);
    story.end(6_000, 7_000);
    story
}

#[test]
fn a_batch_whose_places_are_in_order_and_kept_is_batch() {
    batch().keeps(&BATCH_PLACES);
}

#[test]
fn places_in_two_entries_or_in_another_order_are_found() {
    let mut story = batch();
    story.history.end.changes[2].index += 1;
    story.breaks(&BATCH_PLACES, "of one batch took effect in entry");
    let mut story = batch();
    let changes = &mut story.history.end.changes;
    let (one, other) = (changes[1].lease_id, changes[2].lease_id);
    (changes[1].lease_id, changes[2].lease_id) = (other, one);
    story.breaks(&BATCH_PLACES, "of one batch took effect in entry");
}

#[test]
fn a_place_that_is_gone_too_soon_or_was_never_taken_is_found() {
    let mut story = batch();
    story.history.end.changes.last_mut().unwrap().at_ms -= 1;
    story.breaks(&BATCH_PLACES, "was gone at 5019 ms");
    let mut story = batch();
    let lost = story.history.end.changes[2].lease_id;
    story.history.end.changes.retain(|change| change.lease_id != lost);
    story.breaks(&BATCH_PLACES, "the log does not begin so with its lease");
}

#[test]
fn without_places_from_batches_nothing_is_shown() {
    let mut story = batch();
    story.history.calls.iter_mut().for_each(|call| call.batch = None);
    story.cannot_tell(&BATCH_PLACES);
}
