#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::super::story::{Story, wait};
use super::*;
use crate::history::Asked;

/// One holds; of a batch, two take places, and the first of them is granted; the place of the other runs out.
fn right() -> Story {
    let mut story = Story::new();
    story.acquires(1, "a", 0..10);
    for lease in [2, 3] {
        story.lease(lease, "a");
        story.log(20, lease, ChangeName::Queued, None);
        let mut asked = wait(lease, "a", 0);
        if let Asked::Acquire { keep_place, .. } = &mut asked {
            *keep_place = true;
        }
        story.call(20..30, asked, Came::Waiting { ahead: 1 });
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
fn a_batch_whose_places_are_in_order_and_kept_is_right() {
    right().keeps(&BATCH_PLACES);
}

#[test]
fn places_in_two_entries_or_in_another_order_are_found() {
    let mut story = right();
    story.history.end.changes[2].index += 1;
    story.breaks(&BATCH_PLACES, "of one batch took effect in entry");
    let mut story = right();
    let changes = &mut story.history.end.changes;
    let (one, other) = (changes[1].lease_id, changes[2].lease_id);
    (changes[1].lease_id, changes[2].lease_id) = (other, one);
    story.breaks(&BATCH_PLACES, "of one batch took effect in entry");
}

#[test]
fn a_place_that_is_gone_too_soon_or_was_never_taken_is_found() {
    let mut story = right();
    story.history.end.changes.last_mut().unwrap().at_ms -= 1;
    story.breaks(&BATCH_PLACES, "was gone at 5019 ms");
    let mut story = right();
    let lost = story.history.end.changes[2].lease_id;
    story.history.end.changes.retain(|change| change.lease_id != lost);
    story.breaks(&BATCH_PLACES, "the log does not begin so with its lease");
}

#[test]
fn without_places_from_batches_nothing_is_shown() {
    let mut story = right();
    story.history.calls.iter_mut().for_each(|call| call.batch = None);
    story.cannot_tell(&BATCH_PLACES);
}
