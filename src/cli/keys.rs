//! `ringfence get`, `ls`, `watch`, `validate` and `revoke`: what everybody may see of keys, and what an operator may do.

use std::pin::pin;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use ringfence_client::{Consistency, Error, Event, KeyList, KeyView, Revision, Token, Verdict, VerdictName};
use ringfence_wire::Holder;
use serde_json::json;

use crate::cli::calls::Caller;
use crate::cli::output;
use crate::cli::text::{Table, mode, seconds};

/// The exit status where a token is not known to be live.
const NOT_LIVE: u8 = 1;

/// Which node's state is read.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Freshness {
    /// The state of the node that is asked, which may be old
    #[arg(long)]
    local: bool,
}

/// Which key to show.
#[derive(Debug, Args)]
pub(crate) struct Get {
    key: String,
    #[command(flatten)]
    freshness: Freshness,
    #[command(flatten)]
    caller: Caller,
}

/// Which keys to list.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// What they begin with
    #[arg(default_value = "")]
    prefix: String,
    #[command(flatten)]
    freshness: Freshness,
    #[command(flatten)]
    caller: Caller,
}

/// Which keys to watch.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// What they begin with
    #[arg(default_value = "")]
    prefix: String,
    /// From the change after this revision on [default: from now on]
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    #[command(flatten)]
    caller: Caller,
}

/// A token that was granted for a key.
#[derive(Debug, Args)]
pub(crate) struct Granted {
    key: String,
    token: u64,
}

/// What to validate.
#[derive(Debug, Args)]
pub(crate) struct Validate {
    #[command(flatten)]
    granted: Granted,
    #[command(flatten)]
    freshness: Freshness,
    #[command(flatten)]
    caller: Caller,
}

/// What to revoke.
#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    granted: Granted,
    #[command(flatten)]
    caller: Caller,
}

impl From<Freshness> for Consistency {
    fn from(freshness: Freshness) -> Self {
        if freshness.local { Self::Local } else { Self::Linearizable }
    }
}

/// Shows a key.
pub(crate) fn get(arguments: &Get) -> anyhow::Result<ExitCode> {
    let Get { key, freshness, caller } = arguments;
    caller.run(async |client, output| {
        let view = client.key(key, (*freshness).into()).await?;
        output::print(&output.show(&view, key_text)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Lists all keys with a prefix.
pub(crate) fn list(arguments: &List) -> anyhow::Result<ExitCode> {
    let List { prefix, freshness, caller } = arguments;
    caller.run(async |client, output| {
        let list = client.list(prefix.as_str()).consistency((*freshness).into()).all().await?;
        output::print(&output.show(&list, list_text)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints events as they come, one a line, until it is ended or nobody reads them.
pub(crate) fn watch(arguments: &Watch) -> anyhow::Result<ExitCode> {
    let Watch { prefix, after, caller } = arguments;
    caller.run(async |client, output| {
        let mut watch = client.watch(prefix.as_str());
        if let Some(after) = after {
            watch = watch.after(Revision(*after));
        }
        let mut unread = pin!(output::unread());
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = &mut unread => return Ok(ExitCode::SUCCESS),
            };
            let event = match event {
                Err(error @ Error::HistoryGone { .. }) => {
                    bail!("{error}; `ringfence ls -o json` shows the keys as they are, and the revision to go on --after");
                }
                event => event?,
            };
            if !output::print(&output.show(&event, event_text)?)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    })
}

/// Tells what is known of a token; succeeds only if it is live.
pub(crate) fn validate(arguments: &Validate) -> anyhow::Result<ExitCode> {
    let Validate { granted, freshness, caller } = arguments;
    caller.run(async |client, output| {
        let verdict = client.validate(&granted.key, Token(granted.token), (*freshness).into()).await?;
        output::print(&output.show(&verdict, verdict_text)?)?;
        Ok(if verdict.verdict == VerdictName::Live { ExitCode::SUCCESS } else { ExitCode::from(NOT_LIVE) })
    })
}

/// Ends a lease.
pub(crate) fn revoke(arguments: &Revoke) -> anyhow::Result<ExitCode> {
    let Revoke { granted, caller } = arguments;
    caller.run(async |client, output| {
        client.revoke(&granted.key, Token(granted.token)).await?;
        let done = json!({ "key": granted.key, "token": granted.token });
        let text =
            |_: &_| "revoked; the writer may go on for all that: raise the guard's number, too\n".to_owned();
        output::print(&output.show(&done, text)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn holder(holder: &Option<Holder>) -> String {
    // Whatever it is, it must not be taken for more than a word of one line, nor reach the terminal.
    holder.as_ref().map_or_else(|| "–".to_owned(), |holder| holder.as_str().escape_debug().to_string())
}

fn key_text(view: &KeyView) -> String {
    let mut text = format!("key       {}\nfence     {}\nrevision  {}\n", view.key, view.fence, view.revision);
    if view.holders.is_empty() {
        text += "\nnobody holds it\n";
    } else {
        let mut table = Table::new(["TOKEN", "MODE", "LIVES", "HOLDER"]);
        for held in &view.holders {
            table.add([
                held.token.to_string(),
                mode(held.mode, held.limit),
                seconds(held.expires_in_ms),
                holder(&held.holder),
            ]);
        }
        text = text + "\n" + &table.text() + &more(view.more_holders);
    }
    if !view.waiters.is_empty() {
        let mut table = Table::new(["WAITS", "MODE", "HOLDER"]);
        for waiter in &view.waiters {
            table.add([seconds(Some(waiter.waited_ms)), mode(waiter.mode, None), holder(&waiter.holder)]);
        }
        text = text + "\n" + &table.text() + &more(view.more_waiters);
    }
    text
}

fn more(count: u64) -> String {
    if count == 0 { String::new() } else { format!("and {count} more\n") }
}

fn list_text(list: &KeyList) -> String {
    let mut table = Table::new(["KEY", "MODE", "HOLDERS", "TOKEN", "LIVES", "WAITERS", "HOLDER"]);
    for view in &list.keys {
        let [mode, token, lives, holder] = match view.holders.first() {
            Some(oldest) => [
                mode(oldest.mode, oldest.limit),
                oldest.token.to_string(),
                seconds(oldest.expires_in_ms),
                holder(&oldest.holder),
            ],
            None => std::array::from_fn(|_| "–".to_owned()),
        };
        let count = |shown: usize, more: u64| (shown as u64 + more).to_string();
        let holders = count(view.holders.len(), view.more_holders);
        let waiters = count(view.waiters.len(), view.more_waiters);
        table.add([view.key.to_string(), mode, holders, token, lives, waiters, holder]);
    }
    table.text()
}

fn event_text(event: &Event) -> String {
    let Event { kind, change: event } = event;
    let kind = kind.as_str();
    let token = event.token.map_or_else(|| "–".to_owned(), |token| token.to_string());
    let keys: Vec<String> =
        event.keys.iter().map(|key| format!("{} (fence {})", key.key, key.fence)).collect();
    format!("{}  {kind:<8}  token {token}  {}  {}\n", event.revision, holder(&event.holder), keys.join(" "))
}

fn verdict_text(verdict: &Verdict) -> String {
    let name = match verdict.verdict {
        VerdictName::Stale => "stale: it is dead for good",
        VerdictName::Live => "live: at one instant of this call; it licenses no later write",
        VerdictName::Unknown => "unknown: not known to be dead, which is no reason to accept it",
    };
    format!("{name}\nfence     {}\n", verdict.fence)
}
