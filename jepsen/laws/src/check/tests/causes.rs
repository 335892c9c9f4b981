use super::story::{self, Story, acquire, gone, not_done, release, unknown, validate, verdict, wait};
use super::*;

const MS: u64 = 1_000;

/// One is released, one revoked, one abandoned, and one expires.
fn fair() -> Story {
    let mut story = Story::held();
    story.looks("a", 11..12);
    story.releases(1, 20..30);
    story.acquires(2, "a", 40..50);
    let token = story.token(2);
    story.log(60, 2, ChangeName::Ended, Some(EndReason::Revoked));
    story.call(60..70, Invocation::Revoke { key: story::key("a"), token }, Conclusion::Done);
    story.acquires(3, "a", 80..90);
    story.expires(3, 10_081);
    story.call(10_100..10_101, release(3), gone(EndReason::Expired));
    story.lease(4, "b");
    story.log(100, 4, ChangeName::Granted, None);
    story.call(100..200, acquire(4, "b"), unknown());
    story.log(2_300, 4, ChangeName::Ended, Some(EndReason::Abandoned));
    story.end(20_000, 60_000);
    story
}

#[test]
fn ends_in_their_time_are_right() {
    fair().keeps(&NO_EARLY_END);
    fair().keeps(&BOUNDED_END);
}

#[test]
fn without_an_end_nothing_is_shown() {
    let mut story = Story::held();
    story.end(1, 2).cannot_tell(&NO_EARLY_END);
    story.cannot_tell(&BOUNDED_END);
}

#[test]
fn an_end_that_is_known_before_the_clients_time_is_found() {
    let token = {
        let mut story = fair();
        story.acquires(5, "x y", 30_000..30_010);
        story.token(5)
    };
    type Sign = fn(&Story) -> Conclusion;
    let signs: [(Invocation, Sign); 5] = [
        (story::renew(5), |_| gone(EndReason::Expired)),
        (validate("x", token), |story| verdict(VerdictName::Stale, story.view("x").fence.0)),
        (validate("y", Token(1)), |story| verdict(VerdictName::Stale, story.view("y").fence.0)),
        (story::look("y"), |story| Conclusion::Key { view: story.view("y") }),
        (Invocation::Key { key: story::key("y"), local: true }, |story| Conclusion::Key {
            view: story.view("y"),
        }),
    ];
    for (invocation, conclusion) in signs {
        let mut story = fair();
        story.acquires(5, "x y", 30_000..30_010);
        story.expires(5, 40_001);
        // Its client counts from when it sent the request.
        let conclusion = conclusion(&story);
        let told = story.call(39_990..40_000, invocation, conclusion);
        story.keeps(&NO_EARLY_END);
        story.history.calls[told as usize].ended_us -= 1;
        story.breaks(&NO_EARLY_END, "and was to live until 40.000 s");
    }
}

#[test]
fn a_renewal_moves_the_time() {
    let mut story = fair();
    story.acquires(5, "x", 30_000..30_010);
    let granted = story.granted(5);
    story.expires(5, 40_001);
    story.call(34_000..34_010, story::renew(5), granted);
    story.call(43_000..43_010, story::renew(5), gone(EndReason::Expired));
    story.breaks(&NO_EARLY_END, "and was to live until 44.000 s");
}

#[test]
fn a_call_that_asked_for_the_end_excuses_it_from_then_on() {
    type Excuse = fn(Token) -> Invocation;
    let excuses: [(EndReason, Excuse); 3] = [
        (EndReason::Released, |_| release(5)),
        (EndReason::Revoked, |token| Invocation::Revoke { key: story::key("x"), token }),
        (EndReason::Abandoned, |_| acquire(5, "x")),
    ];
    for (reason, excuse) in excuses {
        let mut story = fair();
        story.acquires(5, "x", 30_000..30_010);
        story.log(35_000, 5, ChangeName::Ended, Some(reason));
        story.looks("x", 35_000..35_010);
        story.breaks(&NO_EARLY_END, "which no call asked for");
        let invocation = excuse(story.token(5));
        let by = story.call(35_005..36_000, invocation, unknown()) as usize;
        story.keeps(&NO_EARLY_END);
        // Sent too late, or certainly not done, it does not.
        story.history.calls[by].sent_us = 35_010 * MS + 1;
        story.breaks(&NO_EARLY_END, "and was to live until 35.010 s");
        story.history.calls[by].sent_us = 35_005 * MS;
        story.history.calls[by].conclusion = not_done();
        story.breaks(&NO_EARLY_END, "which no call asked for");
        story.history.calls[by].conclusion = unknown();
        // Nor if the log says that its time ran out.
        story.history.end.changes.last_mut().unwrap().reason = Some(EndReason::Expired);
        story.breaks(&NO_EARLY_END, "and was to live until 40.000 s");
    }
}

#[test]
fn an_end_that_nobody_asked_for_is_found() {
    for reason in [EndReason::Released, EndReason::Revoked, EndReason::Abandoned] {
        let mut story = fair();
        story.acquires(5, "x", 30_000..30_010);
        story.log(50_000, 5, ChangeName::Ended, Some(reason));
        story.call(30_020..30_030, release(5), not_done());
        story.breaks(&NO_EARLY_END, "which no call asked for");
        story.history.end.changes.pop();
        story.keeps(&NO_EARLY_END);
    }
}

/// A client hung up, and then came `newer`; the lease ends as abandoned.
fn hung_up(newer: impl FnOnce(&mut Story)) -> Story {
    let mut story = fair();
    story.lease(5, "x");
    story.log(30_000, 5, ChangeName::Granted, None);
    story.call(30_000..30_010, acquire(5, "x"), unknown());
    newer(&mut story);
    story.log(32_010, 5, ChangeName::Ended, Some(EndReason::Abandoned));
    story
}

fn standing(story: &Story) -> Conclusion {
    let Conclusion::Granted { grant, mirrored, .. } = story.granted(5) else { panic!() };
    Conclusion::Granted { grant, standing: true, mirrored }
}

#[test]
fn a_connection_that_closed_means_nothing_after_a_repeat_or_a_renewal() {
    for newer in [acquire(5, "x"), story::renew(5)] {
        hung_up(|story| {
            story.call(30_020..30_030, newer.clone(), standing(story));
        })
        .breaks(&NO_EARLY_END, "ended as Abandoned, which no call asked for");
        let again = hung_up(|story| {
            story.call(30_020..30_030, newer.clone(), standing(story));
            story.call(30_025..30_040, acquire(5, "x"), unknown());
        });
        match newer {
            Invocation::Renew { .. } => {
                again.breaks(&NO_EARLY_END, "ended as Abandoned, which no call asked for")
            }
            // Who hung up again, even at the same time, may have been the last.
            _ => again.keeps(&NO_EARLY_END),
        }
    }
    // Only to look at it does not keep it.
    let looks = Invocation::Lease { lease: story::id(5), local: false };
    hung_up(|story| {
        story.call(30_020..30_030, looks, standing(story));
    })
    .keeps(&NO_EARLY_END);
}

#[test]
fn a_repeat_that_may_have_overtaken_what_it_repeats_proves_nothing() {
    // It made the grant itself: the other may still be on its way.
    hung_up(|story| {
        let granted = story.granted(5);
        story.call(30_020..30_030, acquire(5, "x"), granted);
    })
    .keeps(&NO_EARLY_END);
    // One of two that nobody answered made it, and the other came late.
    hung_up(|story| {
        story.call(30_011..30_019, acquire(5, "x"), unknown());
        story.call(30_020..30_030, acquire(5, "x"), standing(story));
    })
    .keeps(&NO_EARLY_END);
    // What was certainly not done has made nothing.
    hung_up(|story| {
        story.call(30_011..30_019, acquire(5, "x"), not_done());
        story.call(30_020..30_030, acquire(5, "x"), standing(story));
    })
    .breaks(&NO_EARLY_END, "ended as Abandoned, which no call asked for");
}

#[test]
fn an_expiry_within_the_time_to_live_is_found_in_the_log() {
    let mut story = fair();
    story.acquires(5, "x", 30_000..30_010);
    story.expires(5, 40_000);
    story.history.calls.last_mut().unwrap().conclusion = unknown();
    story.breaks(&NO_EARLY_END, "expired at 40000 ms");
    story.history.end.changes.last_mut().unwrap().at_ms += 1;
    story.keeps(&NO_EARLY_END);
    let mut story = fair();
    story.acquires(5, "x", 30_000..30_010);
    story.expires(5, 35_000);
    story.history.calls.last_mut().unwrap().conclusion = unknown();
    story.breaks(&NO_EARLY_END, "expired at 35000 ms");
    story.call(30_020..30_030, Invocation::Renew { lease: story::id(5), ttl_ms: Some(100) }, unknown());
    story.keeps(&NO_EARLY_END);
}

#[test]
fn a_lease_that_outlives_everybody_s_wish_is_found() {
    let mut story = fair();
    story.acquires(5, "x", 3_000..3_010);
    // Healed at 20 s, 10 s to live, 10 s of grace.
    story.end(20_000, 40_000).cannot_tell(&BOUNDED_END);
    story.end(20_000, 40_001).breaks(&BOUNDED_END, "and had to end by 40.000 s");
    // Somebody may have renewed it until 25 s.
    let renewed = story.call(24_000..25_000, story::renew(5), unknown()) as usize;
    story.end(20_000, 45_000).keeps(&BOUNDED_END);
    story.end(20_000, 45_001).breaks(&BOUNDED_END, "and had to end by 45.000 s");
    story.history.calls[renewed].conclusion = not_done();
    story.end(20_000, 45_000).breaks(&BOUNDED_END, "and had to end by 40.000 s");
    // Or it was granted at the end of a wait that nobody knows of.
    story.call(24_000..25_000, wait(5, "x", 3_000), unknown());
    story.end(20_000, 48_000).keeps(&BOUNDED_END);
}

#[test]
fn a_waiter_that_never_leaves_is_found() {
    let mut story = fair();
    story.waits(5, "x", 3_000..4_000);
    story.end(20_000, 31_000);
    assert!(judge(&BOUNDED_END, &story.history).breaches.is_empty());
    story.history.end.read_us += 1;
    story.breaks(&BOUNDED_END, "and had to end by 31.000 s");
}

#[test]
fn a_lease_held_at_the_end_by_nobody_known_is_not_judged() {
    let mut story = fair();
    story.lease(9, "z");
    story.log(100, 9, ChangeName::Granted, None);
    story.end(20_000, 60_000).keeps(&BOUNDED_END);
}
