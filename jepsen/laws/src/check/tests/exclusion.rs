use super::story::{Story, look, renew, validate, verdict};
use super::*;

/// Alone after each other, and two beside each other within their limit.
fn fair() -> Story {
    let mut story = Story::held();
    story.releases(1, 20..30);
    story.acquires(2, "a b", 40..50);
    story.acquires(3, "c:2", 60..70);
    story.acquires(4, "c:s", 60..70);
    story.looks("c", 80..81);
    story.end(100, 200);
    story
}

#[test]
fn compatible_holders_are_right() {
    fair().keeps(&EXCLUSION);
}

#[test]
fn keys_that_are_granted_once_show_nothing() {
    let mut story = Story::held();
    story.acquires(2, "b", 0..10);
    story.end(1, 2).cannot_tell(&EXCLUSION);
}

#[test]
fn a_grant_beside_another_is_found_in_the_log() {
    for words in ["c:s", "c:9", "c", "b", "x b", "a:s"] {
        let mut story = fair();
        story.acquires(5, words, 90..91);
        story.history.calls.clear();
        story.history.end.keys.clear();
        story.breaks(&EXCLUSION, "the log says so");
    }
}

#[test]
fn a_grant_beside_another_is_found_without_a_log() {
    let mut story = fair();
    story.acquires(5, "b", 90..91);
    let granted = story.granted(2);
    story.history.end.changes.clear();
    story.history.end.keys.clear();
    // The other was told of its life before it knew of this one: it may have ended between.
    story.keeps(&EXCLUSION);
    story.call(91..95, renew(2), granted.clone());
    story.keeps(&EXCLUSION);
    story.call(92..95, renew(2), granted);
    story.breaks(&EXCLUSION, "while [103] held it: their clients were told so");
}

#[test]
fn a_verdict_is_a_sign_of_life() {
    let mut story = fair();
    story.acquires(5, "b", 90..91);
    story.history.end.changes.clear();
    story.history.end.keys.clear();
    let token = story.token(2);
    story.call(92..95, validate("b", token), verdict(VerdictName::Live, token.0));
    story.breaks(&EXCLUSION, "their clients were told so");
}

#[test]
fn a_view_with_too_many_holders_is_found() {
    let mut story = fair();
    let mut view = story.view("c");
    view.holders[0].limit = std::num::NonZeroU32::new(1);
    story.history.end.changes.clear();
    let seen = story.call(90..91, look("c"), Conclusion::Key { view });
    story.breaks(&EXCLUSION, "lists holders [104, 105]");
    story.history.calls.truncate(seen as usize);
    story.keeps(&EXCLUSION);
}
