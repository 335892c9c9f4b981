mod bookmarks;

use ringfence_wire::{Key, PrincipalName};

use super::*;
use crate::watch::group::MOST_BYTES;
use crate::watch::tests::{Plain, event};

type Fanout = super::Fanout<Plain>;

/// Everything that watch `number` sends now, and whether that is the end.
fn sent(fanout: &mut Fanout, number: u64, history: &History) -> (String, bool) {
    let mut all = String::new();
    for _ in 0..10_000 {
        match fanout.next(number, &Context::from_waker(Waker::noop()), true, Some(history)) {
            Next::Text(text) => all += std::str::from_utf8(&text).unwrap(),
            Next::Nothing if fanout.has_blocked_readers() => fanout.allow_reads(),
            Next::Nothing => return (all, false),
            Next::End => return (all, true),
        }
    }
    panic!("the watch sends without end");
}

/// The revisions of the events that watch `number` sends now.
fn revisions(fanout: &mut Fanout, number: u64, history: &History) -> Vec<u64> {
    let (text, _) = sent(fanout, number, history);
    let blocks = text.split("\n\n").filter(|block| block.contains("data: "));
    let ids = blocks.filter_map(|block| block.lines().find_map(|line| line.strip_prefix("id: ")));
    ids.map(|id| id.parse().unwrap()).collect()
}

fn keep(history: &mut History, revisions: std::ops::RangeInclusive<u64>, keys: &[&str]) {
    revisions.for_each(|revision| history.keep(event(revision, keys)));
}

fn round(fanout: &mut Fanout, history: &History) -> u32 {
    while fanout.step(history, history.last()) {}
    let mut woken = 0;
    while fanout.has_any_to_wake() {
        woken += fanout.wake_some();
    }
    woken
}

#[test]
fn a_change_matches_once_for_each_prefix_of_any_of_its_keys() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let prefixes = ["", "a", "a/", "a/\u{e4}", "a/\u{e4}b", "b", "a", "a/x"];
    let numbers = prefixes.map(|prefix| fanout.enter(Caller::anybody(), prefix, Revision(0), &history));
    for number in numbers {
        sent(&mut fanout, number, &history);
    }
    keep(&mut history, 1..=1, &["a/\u{e4}", "a/\u{e4}b", "a"]);
    keep(&mut history, 2..=2, &["c"]);
    keep(&mut history, 3..=3, &["b/a"]);
    assert_eq!((round(&mut fanout, &history), fanout.position), (7, Revision(3)));
    let all: Vec<_> = numbers.map(|number| revisions(&mut fanout, number, &history)).to_vec();
    assert_eq!(all, [vec![1, 2, 3], vec![1], vec![1], vec![1], vec![1], vec![3], vec![1], vec![]]);
    assert_eq!(round(&mut fanout, &history), 0);
}

#[test]
fn watches_are_woken_some_at_a_time() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    for _ in 0..AT_ONCE + 1 {
        let number = fanout.enter(Caller::anybody(), "a", Revision(0), &history);
        sent(&mut fanout, number, &history);
    }
    keep(&mut history, 1..=1, &["a"]);
    fanout.step(&history, Revision(1));
    assert_eq!((fanout.wake_some(), fanout.has_any_to_wake()), (AT_ONCE as u32, true));
    assert_eq!((fanout.wake_some(), fanout.has_any_to_wake()), (1, false));
    assert!(fanout.watches.values().all(|watch| watch.waker.is_none()));
}

#[test]
fn a_round_is_made_of_short_steps_and_ends_at_its_target() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    fanout.enter(Caller::anybody(), "", Revision(0), &history);
    let steps = STEP as u64 + 1;
    keep(&mut history, 1..=steps + 5, &["a"]);
    assert_eq!((fanout.step(&history, Revision(steps)), fanout.position), (true, Revision(steps - 1)));
    assert_eq!((fanout.step(&history, Revision(steps)), fanout.position), (false, Revision(steps)));
    round(&mut fanout, &history);
    // Long changes make smaller steps.
    keep(&mut history, steps + 6..=steps + 206, &[&"k".repeat(Key::MAX_BYTES)]);
    assert!(fanout.step(&history, history.last()));
    assert!(fanout.position < Revision(steps + 140), "{:?}", fanout.position);
}

/// Regression: a step counted only the text that it encoded. With a change of many keys and watched prefixes of all lengths
/// it took most of a second.
#[test]
fn a_step_is_short_with_any_number_of_prefixes_and_may_end_within_a_change() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let keys: Vec<String> =
        (0..64).map(|key| char::from(b'0' + key).to_string().repeat(Key::MAX_BYTES)).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    // None of these matches, so no text is encoded.
    let others = "z".repeat(Key::MAX_BYTES);
    let others: Vec<u64> = (1..=others.len())
        .map(|length| fanout.enter(Caller::anybody(), &others[..length], Revision(0), &history))
        .collect();
    keep(&mut history, 1..=3, &keys);
    let (mut steps, mut numbers) = (1, Vec::new());
    while fanout.step(&history, Revision(3)) {
        steps += 1;
        if steps == 3 {
            assert_eq!(fanout.position, Revision(0), "the first change is not done");
            // The cursor has passed the keys of some of these, not of others.
            let prefixes = [keys[0], "1", "", &keys[63][..9]];
            numbers.extend(
                prefixes.map(|prefix| fanout.enter(Caller::anybody(), prefix, Revision(0), &history)),
            );
        }
    }
    // 3 changes of 64 keys with 512 prefixes each.
    assert!(steps >= 12, "{steps} steps");
    for number in numbers {
        assert_eq!(revisions(&mut fanout, number, &history), [1, 2, 3]);
    }
    for number in others {
        assert_eq!(revisions(&mut fanout, number, &history), [0; 0]);
    }
}

/// Regression: the first watch after a step that had ended within a change took over its place within that change. It
/// missed keys of the next change, or the step panicked on a key shorter than that place.
#[test]
fn a_first_watch_starts_at_the_beginning_of_a_change() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let prefix = "k".repeat(500);
    let last = fanout.enter(Caller::anybody(), &prefix, Revision(0), &history);
    let long: Vec<String> = (0..64).map(|key| format!("{prefix}{key:012}")).collect();
    keep(&mut history, 1..=2, &long.iter().map(String::as_str).collect::<Vec<_>>());
    while !fanout.cursor.is_begun() {
        assert!(fanout.step(&history, history.last()), "no step has ended within a change");
    }
    fanout.leave(last);
    let first = fanout.enter(Caller::anybody(), "", Revision(2), &history);
    keep(&mut history, 3..=3, &["a", "b"]);
    keep(&mut history, 4..=4, &["c"]);
    round(&mut fanout, &history);
    assert_eq!(revisions(&mut fanout, first, &history), [3, 4]);
}

#[test]
fn text_kept_for_slow_readers_is_bounded_over_all_prefixes() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let prefixes: Vec<String> = (0..400).map(|number| format!("{number:03}/")).collect();
    let numbers: Vec<u64> = prefixes
        .iter()
        .map(|prefix| fanout.enter(Caller::anybody(), prefix, Revision(0), &history))
        .collect();
    let mut most = 0;
    for revision in 1..=60_000_u64 {
        let prefix = &prefixes[revision as usize % prefixes.len()];
        keep(&mut history, revision..=revision, &[&format!("{prefix}{}", "k".repeat(500))]);
        if revision % 1_000 == 0 {
            round(&mut fanout, &history);
            most = most.max(fanout.kept);
            assert_eq!(fanout.kept, fanout.groups.values().map(Group::bytes).sum::<usize>());
        }
    }
    assert!((MOST_KEPT / 2..=MOST_KEPT).contains(&most), "{most} bytes");
    numbers.into_iter().for_each(|number| fanout.leave(number));
    assert_eq!(fanout.kept, 0);
}

#[test]
fn a_watch_that_starts_behind_or_ahead_of_the_position_gets_each_change_once() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let first = fanout.enter(Caller::anybody(), "a", Revision(0), &history);
    keep(&mut history, 1..=4, &["a"]);
    round(&mut fanout, &history);
    keep(&mut history, 5..=9, &["a"]);
    // The position is 4.
    let (behind, ahead) = (
        fanout.enter(Caller::anybody(), "a", Revision(2), &history),
        fanout.enter(Caller::anybody(), "a", Revision(7), &history),
    );
    assert_eq!(revisions(&mut fanout, behind, &history), [3, 4]);
    assert_eq!(revisions(&mut fanout, ahead, &history), [0; 0]);
    assert_eq!(round(&mut fanout, &history), 2, "both waiting watches are woken");
    assert_eq!(revisions(&mut fanout, behind, &history), [5, 6, 7, 8, 9]);
    assert_eq!(revisions(&mut fanout, ahead, &history), [8, 9]);
    assert_eq!(revisions(&mut fanout, first, &history), (1..=9).collect::<Vec<_>>());
    keep(&mut history, 10..=10, &["a"]);
    round(&mut fanout, &history);
    for number in [first, behind, ahead] {
        assert_eq!(revisions(&mut fanout, number, &history), [10]);
    }
    assert!(matches!(fanout.groups["a"].after(Revision(0), fanout.position), Available::InHistory(_)));
}

#[test]
fn a_slow_reader_gets_the_rest_from_the_history() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let number = fanout.enter(Caller::anybody(), "", Revision(0), &history);
    sent(&mut fanout, number, &history);
    let long = "k".repeat(Key::MAX_BYTES);
    let changes = 3 * (MOST_BYTES / Key::MAX_BYTES) as u64;
    keep(&mut history, 1..=changes, &[&long]);
    round(&mut fanout, &history);
    assert!(matches!(fanout.groups[""].after(Revision(0), fanout.position), Available::InHistory(_)));
    assert_eq!(revisions(&mut fanout, number, &history), (1..=changes).collect::<Vec<_>>());
}

#[test]
fn a_watch_reads_on_behind_changes_of_others_that_were_dropped() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let by =
        |name: &str, revision, key: &str| Event { by: PrincipalName::new(name), ..event(revision, &[key]) };
    history.keep(by("few", 1, "few/a"));
    let long = format!("many/{}", "k".repeat(500));
    let last = 3 * ((8 << 20) / long.len() as u64);
    (2..last).for_each(|revision| history.keep(by("many", revision, &long)));
    history.keep(by("few", last, "few/a"));
    assert_eq!(history.after(Revision(1), "").map(Iterator::count), None);
    let watch = fanout.enter(Caller::anybody(), "few/", Revision(0), &history);
    round(&mut fanout, &history);
    assert_eq!(revisions(&mut fanout, watch, &history), [1, last]);
    assert_eq!(fanout.watches[&watch].at, Revision(last));
    let lagging = fanout.enter(Caller::anybody(), "many/", Revision(0), &history);
    assert!(sent(&mut fanout, lagging, &history).1, "it is cut off");
}

#[test]
fn lagging_watches_share_a_budget_of_reads_per_turn() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    keep(&mut history, 1..=20_000, &["a"]);
    let numbers =
        ["a", "x", "a"].map(|prefix| fanout.enter(Caller::anybody(), prefix, Revision(0), &history));
    let next = |fanout: &mut Fanout, number| {
        fanout.next(number, &Context::from_waker(Waker::noop()), true, Some(&history))
    };
    for number in numbers {
        assert!(matches!(next(&mut fanout, number), Next::Text(_)), "the head");
    }
    fanout.allow_reads();
    assert!(matches!(next(&mut fanout, numbers[0]), Next::Text(text) if text.len() < 2 * STEP_BYTES));
    // A watch without matches uses up the rest.
    assert_eq!(next(&mut fanout, numbers[1]), Next::Nothing);
    assert_eq!(fanout.watches[&numbers[1]].at, Revision((u64::from(READS) - 1) * STEP as u64));
    assert_eq!(next(&mut fanout, numbers[2]), Next::Nothing);
    assert!(fanout.has_blocked_readers());
    fanout.allow_reads();
    assert!(!fanout.has_blocked_readers() && fanout.watches[&numbers[2]].waker.is_none(), "it was woken");
    assert!(matches!(next(&mut fanout, numbers[2]), Next::Text(_)));
}

#[test]
fn a_watch_whose_place_the_history_dropped_is_cut_off_when_it_reads_or_is_checked() {
    for (reads, is_replaced) in [(true, true), (false, true), (true, false), (false, false)] {
        let (mut fanout, mut history) = (Fanout::default(), History::default());
        let numbers = ["a", "a"].map(|prefix| fanout.enter(Caller::anybody(), prefix, Revision(0), &history));
        keep(&mut history, 1..=1, &["a"]);
        round(&mut fanout, &history);
        let [slow, ended] = numbers.map(|number| revisions(&mut fanout, number, &history));
        assert_eq!((slow, ended), (vec![1], vec![1]));
        if is_replaced {
            history.start_after(Revision(90_000));
        } else {
            keep(&mut history, 2..=90_000, &["a"]);
        }
        // This one starts at the end of the history.
        let new = fanout.enter(Caller::anybody(), "a", Revision(90_000), &history);
        round(&mut fanout, &history);
        if !reads {
            fanout.send_bookmarks(Instant::now(), true, &history);
            assert!(fanout.watches[&numbers[0]].is_ended && !fanout.watches[&new].is_ended);
        }
        let (text, is_ended) = sent(&mut fanout, numbers[0], &history);
        let reason = if is_replaced { CutOffReason::StateReplaced } else { CutOffReason::TooSlow };
        let end = format!("end: 1 {reason:?}\n\n");
        assert_eq!((text, is_ended), (end, true));
        assert_eq!(sent(&mut fanout, numbers[0], &history), (String::new(), true), "only once");
        keep(&mut history, 90_001..=90_001, &["a"]);
        round(&mut fanout, &history);
        assert_eq!(revisions(&mut fanout, new, &history), [90_001]);
    }
}

/// After a panic of the task that drives it.
#[test]
fn a_fan_out_that_begins_anew_knows_no_earlier_watch() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let early = fanout.enter(Caller::anybody(), "a", Revision(0), &history);
    let mut fanout = fanout.anew();
    let late = fanout.enter(Caller::anybody(), "a", Revision(0), &history);
    keep(&mut history, 1..=1, &["a"]);
    round(&mut fanout, &history);
    assert_eq!(fanout.next(early, &Context::from_waker(Waker::noop()), true, Some(&history)), Next::End);
    fanout.leave(early);
    assert_eq!(revisions(&mut fanout, late, &history), [1]);
}

#[test]
fn a_watch_with_events_to_send_gets_no_bookmark() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let number = fanout.enter(Caller::anybody(), "a", Revision(0), &history);
    sent(&mut fanout, number, &history);
    keep(&mut history, 1..=1, &["a"]);
    round(&mut fanout, &history);
    fanout.send_bookmarks(Instant::now() + 2 * QUIET, true, &history);
    let (text, _) = sent(&mut fanout, number, &history);
    assert!(text.starts_with("id: 1\n") && text.matches("id: ").count() == 1, "{text}");
}

#[test]
fn fan_out_is_late_when_half_of_the_history_is_newer() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    fanout.enter(Caller::anybody(), "a", Revision(0), &history);
    keep(&mut history, 1..=100, &["a"]);
    round(&mut fanout, &history);
    keep(&mut history, 101..=200, &["a"]);
    assert!(!fanout.are_late(&history));
    keep(&mut history, 201..=201, &["a"]);
    assert!(fanout.are_late(&history));
}

#[test]
fn watches_that_leave_free_everything() {
    let (mut fanout, history) = (Fanout::default(), History::default());
    let numbers =
        ["a", "b", "a", "abc"].map(|prefix| fanout.enter(Caller::anybody(), prefix, Revision(0), &history));
    assert_eq!(fanout.lengths, BTreeMap::from([(1, 2), (3, 1)]));
    fanout.leave(numbers[0]);
    assert_eq!((fanout.lengths[&1], fanout.groups.len()), (2, 3));
    for number in numbers {
        fanout.leave(number);
    }
    assert!(fanout.watches.is_empty() && fanout.groups.is_empty() && fanout.lengths.is_empty());
}
