//! The page of a run, for people: one file, which loads nothing.
//!
//! ```text
//!  history ──▶ calls      one column per word, in the order they were sent ┐
//!          ──▶ holds      from when to when each token was held            ├──▶ data (JSON) ──▶ page.html + page.css + *.js
//!          ──▶ leaders    who led, and what each node was                  │
//!  results ──▶ findings   what broke which law, and where to look          ┘
//! ```
//! Here the history becomes what can be drawn; the scripts in the page draw it, only as much of it as is in sight. All that
//! comes from outside (keys, labels, errors) is in the data alone, where no `<` stands raw, and scripts write it as text.

mod calls;
mod findings;
mod holds;
mod leaders;
#[cfg(test)]
pub(crate) mod tests;

use std::io::Write;

use serde::Serialize;

use crate::check::{Results, Verdict};
use crate::history::{About, Fault, History, NodeEnd};

/// Where style, data and script go is marked in it.
const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
/// In the order they build on each other.
const SCRIPTS: [&str; 6] = [
    include_str!("report/model.js"),
    include_str!("report/view.js"),
    include_str!("report/plots.js"),
    include_str!("report/lanes.js"),
    include_str!("report/tables.js"),
    include_str!("report/main.js"),
];

/// All that the page knows.
#[derive(Serialize)]
struct Data<'a> {
    about: &'a About,
    verdict: Verdict,
    /// How long the run went on, final reads included.
    span_us: u64,
    healed_us: u64,
    missing: &'a [String],
    nodes: Vec<Node<'a>>,
    laws: Vec<findings::Law<'a>>,
    /// Calls of breaches, in full.
    details: findings::Details<'a>,
    keys: Vec<&'a str>,
    calls: calls::Columns<'a>,
    holds: Vec<holds::Hold>,
    faults: &'a [Fault],
    leads: Vec<leaders::Stretch>,
    roles: Vec<leaders::Stretch>,
}

#[derive(Serialize)]
struct Node<'a> {
    id: u64,
    serves: bool,
    panics: &'a [String],
}

/// Writes the page.
pub fn write(history: &History, results: &Results, out: &mut impl Write) -> anyhow::Result<()> {
    let mut rest = PAGE;
    let data = as_text_of_a_script(&serde_json::to_string(&data(history, results))?);
    let parts = [("/*STYLE*/", STYLE.to_owned()), ("/*DATA*/", data), ("/*SCRIPT*/", SCRIPTS.concat())];
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        write!(out, "{before}{text}")?;
        rest = after;
    }
    Ok(write!(out, "{rest}")?)
}

fn data<'a>(history: &'a History, results: &'a Results) -> Data<'a> {
    let order = calls::Order::new(history);
    let keys = calls::keys(history);
    let (leads, roles) = leaders::stretches(&history.sights);
    Data {
        about: &history.about,
        verdict: results.verdict,
        span_us: span_us(history),
        healed_us: history.end.healed_us,
        missing: &history.end.missing,
        nodes: history.end.nodes.iter().map(node).collect(),
        laws: findings::laws(results, &order),
        details: findings::details(results, &order),
        calls: calls::columns(&order, &keys),
        holds: holds::holds(history, &order, &keys),
        keys: keys.into_keys().collect(),
        faults: &history.faults,
        leads,
        roles,
    }
}

fn node(node: &NodeEnd) -> Node<'_> {
    Node { id: node.id, serves: node.serves, panics: &node.panics }
}

fn span_us(history: &History) -> u64 {
    let calls = history.calls.iter().map(|call| call.ended_us);
    let faults = history.faults.iter().map(|fault| fault.to_us);
    let sights = history.sights.iter().map(|sight| sight.ended_us);
    calls.chain(faults).chain(sights).chain([history.end.read_us, 1]).max().unwrap_or(1)
}

/// JSON that means the same and ends no script: in JSON these characters stand in strings only, where an escape may be
/// instead.
pub fn as_text_of_a_script(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}
