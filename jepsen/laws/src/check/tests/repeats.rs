use super::story::{Story, acquire, release, renew, unknown};
use super::*;

/// An acquire whose answer was lost, its repeat, a renewal and a release.
fn repeated() -> Story {
    let mut story = Story::new();
    story.lease(1, "a");
    story.log(5, 1, ChangeName::Granted, None);
    story.call(0..10, acquire(1, "a"), unknown());
    let Conclusion::Granted { grant, .. } = story.granted(1) else { panic!() };
    let again = Conclusion::Granted { grant, standing: true, mirrored: None };
    story.call(11..20, acquire(1, "a"), again.clone());
    story.call(21..30, renew(1), again);
    story.releases(1, 40..50);
    story.end(100, 200);
    story
}

#[test]
fn a_repeat_that_is_told_the_same_is_right() {
    repeated().keeps(&ONE_GRANT_PER_LEASE);
}

#[test]
fn without_a_repeat_nothing_is_shown() {
    let mut story = Story::held();
    story.end(1, 2).cannot_tell(&ONE_GRANT_PER_LEASE);
}

#[test]
fn a_second_token_is_found_unless_the_lease_was_forgotten() {
    let mut story = repeated();
    story.history.end.changes.clear();
    let mut grant = story.grant(1);
    grant.token.0 += 9;
    let twice = Conclusion::Granted { grant, standing: false, mirrored: None };
    story.call(59_998..59_999, acquire(1, "a"), twice.clone());
    story.breaks(&ONE_GRANT_PER_LEASE, "granted more than once");
    story.history.calls.pop();
    story.call(70_000..70_001, acquire(1, "a"), twice);
    story.keeps(&ONE_GRANT_PER_LEASE);
}

#[test]
fn a_second_life_is_found_in_the_log() {
    for (at_ms, what) in [(60_040, ChangeName::Granted), (60_040, ChangeName::Queued)] {
        let mut story = repeated();
        story.log(at_ms, 1, what, None);
        story.breaks(&ONE_GRANT_PER_LEASE, "is Ended at revision 102 and then");
        story.history.end.changes.last_mut().unwrap().at_ms += 1;
        story.keeps(&ONE_GRANT_PER_LEASE);
    }
    let mut story = Story::new();
    story.lease(1, "a");
    story.log(1, 1, ChangeName::Granted, None);
    story.log(1, 1, ChangeName::Granted, None);
    story.breaks(&ONE_GRANT_PER_LEASE, "is Granted at revision 101 and then Granted at 102");
}

#[test]
fn a_repeat_that_is_told_of_a_new_grant_is_found() {
    let mut story = repeated();
    let Conclusion::Granted { grant, .. } = story.history.calls[1].conclusion.clone() else { panic!() };
    let created = Conclusion::Granted { grant, standing: false, mirrored: None };
    let together = story.call(15..25, acquire(1, "a"), created.clone());
    story.keeps(&ONE_GRANT_PER_LEASE);
    story.history.calls.truncate(together as usize);
    story.call(21..25, acquire(1, "a"), created);
    story.breaks(&ONE_GRANT_PER_LEASE, "answered as granted now");
}

#[test]
fn an_answer_about_another_lease_is_found() {
    let mut story = repeated();
    story.acquires(2, "b", 60..61);
    let other = story.granted(2);
    story.call(62..63, renew(1), other);
    story.breaks(&ONE_GRANT_PER_LEASE, "the answer is of");
}

#[test]
fn a_grant_after_a_release_is_found_for_an_id_never_seen() {
    let mut story = repeated();
    story.call(300..310, release(2), Conclusion::Done);
    story.acquires(2, "b", 305..320);
    story.keeps(&ONE_GRANT_PER_LEASE);
    story.call(300..310, release(3), Conclusion::Done);
    story.acquires(3, "b", 311..320);
    story.breaks(&ONE_GRANT_PER_LEASE, "an acquire sent after that was granted");
}
