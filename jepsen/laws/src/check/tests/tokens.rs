use super::story::{self, Story, renew, validate, verdict};
use super::*;

/// Two leases after each other, two beside each other.
fn four() -> Story {
    let mut story = Story::held();
    let fence = story.token(1).0;
    story.call(11..12, validate("a", Token(fence)), verdict(VerdictName::Live, fence));
    story.releases(1, 20..30);
    story.acquires(2, "a b", 40..50);
    story.acquires(3, "c:s", 60..70);
    story.acquires(4, "c:s", 60..80);
    story.looks("c", 81..82);
    let granted = story.granted(4);
    story.call(83..84, renew(4), granted);
    story.end(100, 200);
    story
}

#[test]
fn tokens_and_fences_that_rise_are_right() {
    four().keeps(&TOKENS);
}

#[test]
fn a_single_grant_shows_nothing() {
    let mut story = Story::held();
    story.end(1, 2).cannot_tell(&TOKENS);
}

#[test]
fn two_leases_with_one_token_are_found() {
    let mut story = four();
    let mut other = story.grant(4);
    other.token = story.token(3);
    story.history.calls.retain(
        |call| !matches!(&call.conclusion, Conclusion::Granted { grant, .. } if grant.lease_id == other.lease_id),
    );
    story.history.end.changes.clear();
    let conclusion = Conclusion::Granted { grant: other, standing: false, mirrored: None };
    story.call(60..80, story::acquire(4, "c:s"), conclusion);
    story.breaks(&TOKENS, "both have token 104");
    story.breaks(&GRANTED_TOKENS, "both have token 104");
}

#[test]
fn a_token_below_what_was_known_is_found_on_any_key() {
    let mut story = four();
    story.acquires(5, "z", 300..310);
    let Conclusion::Granted { grant, .. } = &mut story.history.calls.last_mut().unwrap().conclusion else {
        panic!()
    };
    grant.token = Token(50);
    grant.keys[0].fence = Token(50);
    story.breaks(&TOKENS, "has token 50, but revision");
    story.breaks(&GRANTED_TOKENS, "has token 50, but revision");
}

#[test]
fn what_is_under_way_at_the_same_time_may_be_in_any_order() {
    let mut story = Story::held();
    story.acquires(2, "b", 0..10);
    // The larger token is answered before the smaller one's request has ended, and both were sent by then.
    story.history.calls[0].ended_us = 90_000;
    story.history.calls[1].sent_us = 9_000;
    story.end(100, 200).keeps(&TOKENS);
}

#[test]
fn a_fence_that_falls_is_found_but_one_node_alone_may_lag() {
    let mut story = four();
    story.looks("a", 90..91);
    let lagging = story::key("b");
    let mut view = story.view("b");
    (view.fence, view.revision) = (Token(103), Revision(102));
    view.holders.clear();
    let invocation = Invocation::Key { key: lagging, local: true };
    story.call(92..93, invocation.clone(), Conclusion::Key { view: view.clone() });
    story.keeps(&TOKENS);
    story.call(94..95, story::look("b"), Conclusion::Key { view });
    // The holder of b was told 103 as well: that is no fall. One less is.
    story.keeps(&TOKENS);
    let mut view = story.view("b");
    (view.fence, view.revision) = (Token(102), Revision(101));
    view.holders.clear();
    story.call(96..97, story::look("b"), Conclusion::Key { view });
    story.breaks(&TOKENS, "the fence of b fell from 103 to 102");
}

#[test]
fn an_answer_that_contradicts_itself_is_found() {
    let mut story = four();
    let mut grant = story.grant(4);
    grant.keys[0].fence = Token(999);
    let odd = story.call(90..91, renew(4), Conclusion::Granted { grant, standing: true, mirrored: None });
    story.breaks(&TOKENS, "was told with the fence 999");
    story.history.calls.truncate(odd as usize);
    story.call(90..91, validate("a", Token(101)), verdict(VerdictName::Live, 103));
    story.breaks(&TOKENS, "called live below the fence");
    let mut story = four();
    story.history.end.keys[0].fence.0 += 1;
    story.breaks(&TOKENS, "and should have");
    let mut story = four();
    story.history.end.keys[0].revision = Revision(1);
    story.breaks(&TOKENS, "has a holder with token");
}

#[test]
fn a_log_that_does_not_rise_is_found() {
    let mut story = four();
    story.history.end.changes.swap(1, 2);
    story.breaks(&TOKENS, "follows change");
    let mut story = four();
    story.history.end.changes[0].token = Some(Token(7));
    story.breaks(&TOKENS, "its token 7");
    let mut story = four();
    story.history.end.changes[2].keys[0].fence = Token(1);
    story.breaks(&TOKENS, "in the log, the fence of a is 1 at revision 103");
    let mut story = four();
    story.history.end.changes[1].keys[0].fence = Token(900);
    story.breaks(&TOKENS, "in the log, the fence of a is 900");
}
