use super::scene::{numbered, read, rejected, unknown, write};
use super::*;

#[test]
fn a_chain_of_updates_with_a_stale_writer_rejected_is_valid() {
    let run = numbered([
        read(0, 1, 5, 0),
        write(2, 3, 5, 0, 1),
        read(4, 5, 9, 1),
        rejected(write(6, 7, 5, 1, 2), 9),
        // Its answer was lost, but somebody read it.
        unknown(write(8, 9, 9, 1, 3)),
        // It may have been done and overwritten by its holder.
        unknown(write(8, 9, 9, 1, 7)),
        read(10, 11, 9, 3),
        write(12, 13, 9, 3, 4),
    ]);
    let found = judge(&FENCED_REGISTER, &run);
    assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
    assert_eq!(found.counts["stale calls rejected"], 1);
}

#[test]
fn a_run_in_which_nobody_came_too_late_shows_nothing() {
    let found = judge(&FENCED_REGISTER, &numbered([read(0, 1, 5, 0), write(2, 3, 5, 0, 1)]));
    assert_eq!(found.verdict(), Verdict::Unknown);
    assert_eq!(judge(&FENCED_REGISTER, &History::default()).verdict(), Verdict::Unknown);
}

fn lost_updates(calls: impl IntoIterator<Item = Call>) -> Vec<String> {
    judge(&FENCED_REGISTER, &numbered(calls)).breaches.into_iter().map(|breach| breach.what).collect()
}

#[test]
fn a_lost_update_is_found() {
    // No fence tells: both writers show the same.
    let found =
        lost_updates([read(0, 1, 5, 0), read(0, 1, 5, 0), write(2, 3, 5, 0, 1), write(2, 3, 5, 0, 2)]);
    assert!(found[0].contains("an update is lost"), "{found:?}");
    // One of them is known by its reader only.
    let lost = [unknown(write(2, 3, 5, 0, 1)), read(4, 5, 5, 1), write(6, 7, 5, 0, 2)];
    assert!(lost_updates(lost)[0].contains("an update is lost"));
}

#[test]
fn a_stale_write_that_is_accepted_is_found() {
    let found = lost_updates([read(0, 1, 9, 0), write(2, 3, 5, 0, 1)]);
    assert!(found[0].contains("a stale write with token 5"), "{found:?}");
    assert!(lost_updates([read(0, 1, 9, 0), read(2, 3, 5, 0)])[0].contains("a stale read"));
    // While the other is under way, either may come first.
    assert!(lost_updates([read(0, 2, 9, 0), write(2, 3, 5, 0, 1)]).is_empty());
}

#[test]
fn a_guard_that_rejects_the_newest_is_found() {
    let found = lost_updates([write(0, 1, 5, 0, 1), rejected(write(2, 3, 9, 1, 2), 9)]);
    assert!(found[0].contains("rejected token 9, though its number is 9"), "{found:?}");
}

#[test]
fn what_was_rejected_or_never_written_must_not_be_read() {
    let found = lost_updates([rejected(write(0, 1, 5, 0, 1), 9), read(2, 3, 9, 1)]);
    assert!(found[0].contains("was rejected, and found"), "{found:?}");
    assert!(lost_updates([read(2, 3, 9, 4)])[0].contains("nobody has written"));
}

#[test]
fn a_register_that_falls_back_to_an_older_write_is_found() {
    let found = lost_updates([write(0, 1, 5, 0, 1), write(2, 3, 5, 1, 2), read(4, 5, 9, 1)]);
    assert!(found[0].contains("write 2 was there, and later write 1"), "{found:?}");
    assert!(lost_updates([write(0, 1, 5, 0, 1), read(4, 5, 9, 0)])[0].contains("write 1 was there"));
}

fn lost_elements(calls: impl IntoIterator<Item = Call>) -> Vec<String> {
    judge(&LOCKED_SET, &numbered(calls)).breaches.into_iter().map(|breach| breach.what).collect()
}

#[test]
fn a_set_that_only_grows_is_valid() {
    let run = numbered([
        read(0, 1, 5, 0),
        write(2, 3, 5, 0, 1),
        rejected(write(4, 5, 4, 0, 2), 5),
        unknown(write(6, 7, 6, 1, 3)),
        unknown(write(6, 7, 6, 1, 8)),
        write(10, 11, 7, 3, 4),
        read(12, 13, 8, 4),
    ]);
    let found = judge(&LOCKED_SET, &run);
    assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
    assert_eq!(found.counts["elements added"], 2);
}

#[test]
fn without_a_read_after_all_additions_nothing_is_said() {
    assert_eq!(judge(&LOCKED_SET, &History::default()).verdict(), Verdict::Unknown);
    let found = judge(&LOCKED_SET, &numbered([read(0, 3, 5, 0), write(2, 3, 5, 0, 1)]));
    assert_eq!(found.verdict(), Verdict::Unknown, "{found:?}");
}

#[test]
fn an_addition_that_is_not_there_in_the_end_is_found() {
    // Both wrote back what they had read.
    let found = lost_elements([write(0, 1, 5, 0, 1), write(0, 1, 6, 0, 2), read(2, 3, 7, 2)]);
    assert!(found[0].contains("an update is lost"), "{found:?}");
    let found = lost_elements([write(0, 1, 5, 0, 1), write(2, 3, 5, 1, 2), read(4, 5, 6, 1)]);
    assert!(found[0].contains("write 2 was there, and later write 1"), "{found:?}");
}

#[test]
fn an_element_that_vanishes_between_reads_is_found() {
    let found = lost_elements([unknown(write(0, 9, 5, 0, 1)), read(2, 3, 5, 1), read(4, 5, 6, 0)]);
    assert!(found[0].contains("write 1 was there, and later write 0"), "{found:?}");
}

#[test]
fn an_element_that_was_refused_or_never_added_is_found() {
    assert!(
        lost_elements([rejected(write(0, 1, 5, 0, 1), 9), read(2, 3, 6, 1)])[0]
            .contains("was rejected, and found")
    );
    assert!(lost_elements([read(2, 3, 6, 4)])[0].contains("nobody has written it"));
}
