use super::scene::{acquire, call, change, granted, numbered, sight};
use super::*;

fn grant(token: u64, sent_us: u64) -> Call {
    call(sent_us, sent_us + 5_000, acquire(token), granted(token, token, token))
}

/// Grants with these tokens, asked for at these times and stamped with these, and sights.
fn run(grants: &[(u64, u64, u64)], sights: Vec<Sight>) -> Found {
    let mut history = numbered(grants.iter().map(|&(token, sent_us, _)| grant(token, sent_us)));
    for &(token, _, at_ms) in grants {
        let change = change(token, token, ChangeName::Granted, Some(token), token);
        history.end.changes.push(Change { at_ms, ..change });
    }
    history.sights = sights;
    judge(&CLUSTER_TIME, &history)
}

#[test]
fn time_that_lags_or_follows_is_fine() {
    let found = run(&[(1, 0, 500), (2, 1_000_000, 1_500), (3, 9_000_000, 1_600)], vec![]);
    assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
    // A node may show an earlier state later on.
    let found = run(&[(1, 0, 500), (2, 1_000_000, 1_500)], vec![sight(3_000_000, 1, 900)]);
    assert_eq!(found.verdict(), Verdict::Valid, "{found:?}");
    assert_eq!(run(&[], vec![sight(3, 1, 900)]).verdict(), Verdict::Unknown);
}

#[test]
fn time_that_goes_on_faster_than_real_time_is_found_in_grants_and_in_sights() {
    let found = run(&[(1, 0, 500), (2, 1_000_000, 1_700)], vec![]);
    assert_eq!(found.breaches[0].calls, [0, 1], "{found:?}");
    let found = run(&[(1, 0, 500)], vec![sight(1_000_000, 1, 1_700)]);
    assert_eq!(found.breaches[0].calls, [0], "{found:?}");
    // 101 ms are a tick.
    assert_eq!(run(&[(1, 0, 500)], vec![sight(1_000_000, 1, 1_601)]).verdict(), Verdict::Valid);
}

#[test]
fn time_that_runs_backwards_along_the_log_is_found() {
    let found = run(&[(1, 0, 500), (2, 1_000_000, 499)], vec![]);
    assert!(found.breaches[0].what.contains("later revision 2 499 ms"), "{found:?}");
    let found = run(&[(1, 0, 500)], vec![sight(1_000_000, 2, 400)]);
    assert_eq!(found.breaches.len(), 1, "{found:?}");
}
