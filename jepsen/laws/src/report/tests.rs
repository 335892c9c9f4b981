pub(crate) mod invented;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{data, write};
use crate::check::Results;
use crate::history::{Call, Conclusion, History, Invocation};

fn page(history: &History, results: &Results) -> String {
    let mut out = Vec::new();
    write(history, results, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A browser, where one is installed.
fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|path| path.join(name).is_file())
    })
}

/// The document as it stands after the page's scripts have run.
fn open_in(browser: &str, folder: &Path, page: &str) -> String {
    let path = folder.join("index.html");
    std::fs::write(&path, page).unwrap();
    let profile: PathBuf = folder.join("profile");
    // A page that hangs, as behind an alert, is a page that fails.
    let output = Command::new("timeout")
        .args(["120", browser])
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", path.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_stands_in_keys_labels_and_errors_cannot_end_the_script() {
    let mut history = invented::history(5, 500);
    history.calls[3].conclusion = Conclusion::Unknown { why: invented::EVIL.to_owned() };
    history.about.command = invented::EVIL.to_owned();
    let results = invented::broken(&mut history);
    let page = page(&history, &results);
    assert_eq!(page.matches("</script").count(), 2, "the data's own and the program's own");
    assert!(!page.contains("<img") && !page.contains('\u{2028}'));
    let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let text = &page[start..start + page[start..].find("</script").unwrap()];
    let read: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(read, serde_json::to_value(data(&history, &results)).unwrap(), "it reads as it was meant");
    assert_eq!(read["about"]["command"], invented::EVIL);
}

#[test]
fn the_page_loads_nothing() {
    let history = invented::history(5, 0);
    let page = page(&history, &invented::results(&history));
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none'"));
    for word in
        ["http://", "https://", "src=", "@import", "url(", "fetch(", "/*STYLE*/", "/*DATA*/", "/*SCRIPT*/"]
    {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn a_hold_is_sure_as_long_as_its_client_counts() {
    let history = invented::history(5, 500);
    let results = invented::results(&history);
    let data = serde_json::to_value(data(&history, &results)).unwrap();
    let holds = data["holds"].as_array().unwrap();
    let sure = |hold: &serde_json::Value| (hold["from"].as_u64().unwrap(), hold["sure"].as_u64().unwrap());
    assert!(holds.len() > 50);
    for hold in holds {
        let ((from, sure), to) = (sure(hold), hold["to"].as_u64().unwrap());
        assert!(from <= sure && sure <= to, "{hold}");
        assert!(sure - from <= 10_000_000, "no lease is renewed for so long: {hold}");
    }
    for end in ["released", "expired"] {
        assert!(holds.iter().any(|hold| hold["end"] == end), "some are {end}");
    }
    // Each was exclusive, and the invented cluster keeps the law.
    for key in 0..data["keys"].as_array().unwrap().len() {
        let of_key: Vec<_> = holds.iter().filter(|hold| hold["keys"][0] == key).collect();
        for two in of_key.windows(2) {
            assert!(sure(two[0]).1 <= sure(two[1]).0, "{} and {}", two[0], two[1]);
        }
    }
}

#[test]
fn a_grant_that_no_client_was_told_of_is_never_sure_and_begins_when_its_revision_was_known() {
    let mut history = invented::history(5, 500);
    let told = |call: &&mut Call| {
        matches!(
            (&call.invocation, &call.conclusion),
            (Invocation::Acquire { .. }, Conclusion::Granted { .. })
        )
    };
    let call = history.calls.iter_mut().find(told).unwrap();
    let Conclusion::Granted { grant, .. } =
        std::mem::replace(&mut call.conclusion, Conclusion::Unknown { why: String::new() })
    else {
        unreachable!("it was granted")
    };
    let (asked_us, lease) = (call.sent_us, grant.lease_id);
    // Its renewals would tell of it as well.
    history
        .calls
        .retain(|call| !matches!(call.invocation, Invocation::Renew { lease: of, .. } if of == lease));
    let sights = history.sights.iter().map(|sight| (sight.revision.0, sight.ended_us));
    let others = history.calls.iter().filter_map(|call| match &call.conclusion {
        Conclusion::Granted { grant, .. } => Some((grant.token.0, call.ended_us)),
        _ => None,
    });
    let seen = sights.chain(others).filter(|(revision, _)| *revision >= grant.token.0);
    let seen_us = seen.map(|(_, ended_us)| ended_us).min().unwrap();
    let results = invented::results(&history);
    let data = serde_json::to_value(data(&history, &results)).unwrap();
    let holds = data["holds"].as_array().unwrap();
    let hold = holds.iter().find(|hold| hold["token"] == grant.token.0).unwrap();
    assert_eq!((&hold["from"], &hold["sure"]), (&seen_us.into(), &seen_us.into()));
    assert!(seen_us > asked_us && hold["call"].is_null(), "{hold}");
}

#[test]
fn the_page_runs_in_a_browser_without_an_error() {
    let Some(browser) = browser() else {
        eprintln!("skipped: needs Chromium");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut history = invented::history(5, 3_000);
    let results = invented::broken(&mut history);
    let dom = open_in(browser, folder.path(), &page(&history, &results));
    assert!(dom.contains("data-page=\"drawn\""), "the script went through to its end: {:.2000}", dom);
    assert!(dom.contains("was granted to process 1004 while"), "the finding is on the page");
    assert!(!dom.contains("<img"), "keys are text");
}

/// `RINGFENCE_PAGES=folder cargo test -p ringfence-jepsen --lib pages` leaves pages to look at there.
#[test]
#[ignore = "slow"]
fn pages_of_all_verdicts_and_sizes_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = std::env::var_os("RINGFENCE_PAGES").map_or(folder.path().to_owned(), PathBuf::from);
    let write = |name: &str, history: &History, results: &Results| {
        let page = page(history, results);
        std::fs::write(folder.join(name), &page).unwrap();
        page.len()
    };
    let valid = invented::history(5, 4_000);
    let small = write("valid.html", &valid, &invented::results(&valid));
    let mut broken = invented::history(6, 4_000);
    let results = invented::broken(&mut broken);
    write("broken.html", &broken, &results);
    let empty = History::default();
    write("empty.html", &empty, &crate::check::judge(&empty, &[]));
    let big = invented::history(7, 100_000);
    let large = write("big.html", &big, &invented::results(&big));
    assert!(large > 10 * small && large < 25_000_000, "a hundred thousand calls are {large} bytes");
}
