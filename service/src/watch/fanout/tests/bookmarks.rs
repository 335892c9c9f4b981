//! Bookmarks, and what comes before them.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_watch_without_events_gets_bookmarks_by_time_and_by_number_of_changes() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    keep(&mut history, 1..=1, &["a"]);
    let number = fanout.enter(Caller::anybody(), "x", Revision(1), &history);
    sent(&mut fanout, number, &history);
    let mut bookmark = |seconds, position, history: &mut History| {
        keep(history, history.last().0 + 1..=position, &["a"]);
        round(&mut fanout, history);
        fanout.send_bookmarks(Instant::now() + Duration::from_secs(seconds), true, history);
        while fanout.has_any_to_wake() {
            fanout.wake_some();
        }
        sent(&mut fanout, number, history).0
    };
    assert_eq!(bookmark(14, 64, &mut history), "");
    assert_eq!(bookmark(15, 64, &mut history), "id: 64\n\n");
    assert_eq!(bookmark(0, 64 + 63, &mut history), "");
    assert_eq!(
        bookmark(0, 64 + 64, &mut history),
        "id: 128\n\n",
        "a quarter of the history, but at least 64"
    );
    assert_eq!(bookmark(0, 40_000, &mut history), "id: 40000\n\n");
    assert_eq!(bookmark(0, 49_000, &mut history), "");
    assert_eq!(bookmark(0, 54_000, &mut history), "id: 54000\n\n");
}

/// A removed node once sent bookmarks for ever, which clients took for "nothing has changed".
#[test]
fn without_contact_a_watch_gets_no_bookmark_and_ends_with_the_reason() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let number = fanout.enter(Caller::anybody(), "x", Revision(0), &history);
    sent(&mut fanout, number, &history);
    keep(&mut history, 1..=1_000, &["a"]);
    round(&mut fanout, &history);
    fanout.send_bookmarks(Instant::now() + 2 * QUIET, false, &history);
    assert_eq!(sent(&mut fanout, number, &history), (String::new(), false));
    fanout.send_bookmarks(Instant::now() + 2 * QUIET, true, &history);
    assert_eq!(sent(&mut fanout, number, &history), ("id: 1000\n\n".to_owned(), false));
    fanout.end_without_contact();
    fanout.end_without_contact();
    let end = "end: 1000 NoContact\n\n";
    assert_eq!(sent(&mut fanout, number, &history), (end.to_owned(), true));
}

/// Its thread or its machine may have slept meanwhile, or its client have read slowly.
#[test]
fn a_bookmark_is_judged_when_it_is_sent() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let number = fanout.enter(Caller::anybody(), "x", Revision(0), &history);
    sent(&mut fanout, number, &history);
    keep(&mut history, 1..=10, &["a"]);
    round(&mut fanout, &history);
    fanout.send_bookmarks(Instant::now() + 2 * QUIET, true, &history);
    assert_eq!(fanout.next(number, &Context::from_waker(Waker::noop()), false, None), Next::Nothing);
    assert_eq!(sent(&mut fanout, number, &history).0, "", "it is due again at the next look");
    fanout.send_bookmarks(Instant::now() + 2 * QUIET, true, &history);
    keep(&mut history, 11..=11, &["a"]);
    round(&mut fanout, &history);
    assert_eq!(sent(&mut fanout, number, &history).0, "id: 11\n\n", "what is true then");
}

/// It once jumped over changes of which a round had made text, but no piece yet.
#[test]
fn a_bookmark_comes_after_what_waits_to_be_sent() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let number = fanout.enter(Caller::anybody(), "x", Revision(0), &history);
    sent(&mut fanout, number, &history);
    fanout.send_bookmarks(Instant::now() + 2 * QUIET, true, &history);
    keep(&mut history, 1..=1, &["x"]);
    keep(&mut history, 2..=2 + STEP as u64, &["a"]);
    assert!(fanout.step(&history, history.last()), "there is more to do");
    assert_eq!(sent(&mut fanout, number, &history).0, "");
    round(&mut fanout, &history);
    assert_eq!(revisions(&mut fanout, number, &history), [1]);
}

/// Two tasks drive it for a moment if the thread of one hangs.
#[test]
fn a_round_that_another_has_overtaken_does_nothing() {
    let (mut fanout, mut history) = (Fanout::default(), History::default());
    let number = fanout.enter(Caller::anybody(), "x", Revision(0), &history);
    sent(&mut fanout, number, &history);
    keep(&mut history, 1..=1, &["x"]);
    keep(&mut history, 2..=2 + STEP as u64, &["a"]);
    assert!(fanout.step(&history, history.last()), "there is more to do");
    assert!(!fanout.step(&history, Revision(1)));
    assert_eq!(sent(&mut fanout, number, &history).0, "", "no piece was made of half a round");
    round(&mut fanout, &history);
    assert_eq!(revisions(&mut fanout, number, &history), [1]);
}
