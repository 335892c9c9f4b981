//! `ringfence inspect`: the data of a stopped node, to compare nodes and to investigate.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use ringfence_raft::{
    EntryView, EventView, EventsView, LogView, OwnerView, Position, Says, SnapshotView, SnapshotsView,
    StateView, StoppedNode,
};
use ringfence_wire::{ChangeName, EndReason, Mode};

use crate::cli::output::Output;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Data directory of a stopped node. It is not changed
    #[arg(long, env = "RINGFENCE_DATA", value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text", global = true)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the entries of the log
    Log,
    /// Show the snapshots on disk
    Snapshot,
    /// Show a summary of the lease table, with a checksum that is equal on nodes with equal tables
    State {
        /// Show the table after this log entry [default: the last entry known to be committed]
        #[arg(long, value_name = "N")]
        index: Option<u64>,
    },
    /// Show the changes of the lease table, as far back as the log goes
    Events {
        /// Show changes up to this log entry [default: the last entry known to be committed]
        #[arg(long, value_name = "N")]
        index: Option<u64>,
    },
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { what, data, output } = arguments;
    let node = StoppedNode::open(data.as_deref().context("--data is missing")?)?;
    match *what {
        What::Log => output.print(&node.log()?, log),
        What::Snapshot => output.print(&node.snapshots()?, snapshots),
        What::State { index } => output.print(&node.state(index)?, state),
        What::Events { index } => output.print(&node.events(index)?, events),
    }
    .map(drop)
}

/// `name  value` lines.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn of(owner: &OwnerView) -> Self {
        let mut lines = Self::default();
        lines.add("node", owner.node_id);
        lines.add("incarnation", owner.incarnation);
        lines.add("cluster", owner.cluster_id.map_or_else(|| "none".to_owned(), |id| id.to_string()));
        lines
    }

    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "{name:<12} {value}").expect("writing to a String cannot fail");
    }
}

fn position(position: Option<Position>) -> String {
    position.map_or_else(|| "none".to_owned(), |Position { term, index }| format!("{index} of term {term}"))
}

fn log(view: &LogView) -> String {
    let mut lines = Lines::of(&view.owner);
    match view.vote {
        None => lines.add("vote", "none"),
        Some(vote) => {
            let won = if vote.committed { ", elected" } else { "" };
            lines.add("vote", format!("node {} in term {}{won}", vote.voted_for, vote.term));
        }
    }
    lines.add("purged to", position(view.purged));
    lines.add("committed", position(view.committed));
    let Lines(mut text) = lines;
    text += "\n   index   term\n";
    for EntryView { position: Position { term, index }, says } in &view.entries {
        let says = match says {
            Says::Blank => "new leader".to_owned(),
            Says::Membership { voters, .. } => format!("voters {voters:?}"),
            Says::Commands { rules, at_ms, requests } => {
                let mut says = format!("at {at_ms} ms, rules {rules}");
                for request in requests {
                    let by = request.name().map_or(String::new(), |name| format!("{name}: "));
                    for command in &request.commands {
                        let command = serde_json::to_string(command).expect("commands are plain data");
                        says += &format!("\n{:18}{by}{command}", "");
                    }
                }
                says
            }
        };
        text += &format!("{index:>8} {term:>6}   {says}\n");
    }
    text
}

fn state(view: &StateView) -> String {
    let mut lines = Lines::of(&view.owner);
    lines.add("after entry", position(Some(view.position)));
    lines.add("rules", view.rules);
    lines.add("clock", format!("{} ms", view.at_ms));
    lines.add("first rev.", view.first_revision.0);
    lines.add("revision", view.revision.0);
    lines.add("live leases", view.live_leases);
    lines.add("waiters", view.waiters);
    lines.add("remembered", view.remembered);
    lines.add("blake3", &view.blake3);
    lines.0
}

fn events(view: &EventsView) -> String {
    let mut lines = Lines::of(&view.owner);
    lines.add("up to entry", position(Some(view.position)));
    lines.add("after rev.", view.after_revision.0);
    let Lines(mut text) = lines;
    text += "\n   index   term     clock   revision\n";
    for event in &view.events {
        let Position { term, index } = event.position;
        let (at_ms, revision) = (event.at_ms, event.revision.0);
        text += &format!("{index:>8} {term:>6} {at_ms:>9} {revision:>10}   {}\n", what_happened(event));
    }
    text
}

/// `granted 0192…, token 7, "worker 3": a (fence 7), b shared (fence 5)`.
fn what_happened(event: &EventView) -> String {
    let what = match event.change {
        ChangeName::Granted => "granted",
        ChangeName::Queued => "queued",
        ChangeName::Ended => "ended",
        ChangeName::Left => "left",
    };
    let why = match (event.change, event.reason) {
        (_, Some(EndReason::Released)) => " (released)",
        (_, Some(EndReason::Expired)) => " (expired)",
        (_, Some(EndReason::Revoked)) => " (revoked)",
        (_, Some(EndReason::Abandoned)) => " (abandoned)",
        (ChangeName::Left, None) => " (wait timed out)",
        (_, None) => "",
    };
    let mut text = format!("{what}{why} {}", event.lease_id);
    if let Some(token) = event.token {
        text += &format!(", token {token}");
    }
    if let Some(holder) = &event.holder {
        text += &format!(", {:?}", holder.as_str());
    }
    let keys = event.keys.iter().map(|key| {
        let mode = match key.mode {
            Mode::Exclusive => String::new(),
            Mode::Shared { limit: None } => " shared".to_owned(),
            Mode::Shared { limit: Some(limit) } => format!(" shared({limit})"),
        };
        format!("{}{mode} (fence {})", key.key, key.fence)
    });
    text + ": " + &keys.collect::<Vec<_>>().join(", ")
}

fn snapshots(view: &SnapshotsView) -> String {
    let mut text: Vec<String> = view.snapshots.iter().map(snapshot).collect();
    text.extend(view.unusable.iter().map(|reason| format!("unusable     {reason}\n")));
    if text.is_empty() { "none\n".to_owned() } else { text.join("\n") }
}

fn snapshot(view: &SnapshotView) -> String {
    let mut lines = Lines(state(&view.state));
    lines.add("bytes", view.bytes);
    for (id, member) in &view.members {
        lines.add("member", format!("{id} at {} ({})", member.peer, member.incarnation));
    }
    lines.0
}
