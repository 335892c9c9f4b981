//! `ringfence get`, `ls`, `watch`, `validate` and `revoke`.

use std::cmp::Reverse;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueEnum};
use ringfence_client::{
    Client, Consistency, Error, Event, KeyList, KeyView, Revision, Token, Verdict, VerdictName,
};
use ringfence_wire::{Holder, ProblemKind};
use serde_json::json;

use crate::cli::client::Call;
use crate::cli::output::{Table, mode, or_dash, reader_gone, seconds};

/// Exit status of `validate`: the token is not known to be live.
const NOT_LIVE: u8 = 1;

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Freshness {
    /// Read the state of the node that answers, which may lag
    #[arg(long)]
    local: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The key to show
    key: String,
    #[command(flatten)]
    freshness: Freshness,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List only keys with this prefix
    #[arg(default_value = "")]
    prefix: String,
    /// List only keys with waiters
    #[arg(long)]
    contended: bool,
    /// Order of the list
    #[arg(long, value_name = "ORDER", default_value = "key")]
    sort: Order,
    #[command(flatten)]
    freshness: Freshness,
    #[command(flatten)]
    call: Call,
}

/// An order of keys.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// By their names
    Key,
    /// Those with most waiters first
    Waiters,
    /// Those whose oldest holder has held them longest first
    Held,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Watch only keys with this prefix
    #[arg(default_value = "")]
    prefix: String,
    /// Start after this revision [default: now]
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Granted {
    /// A key of the lease
    key: String,
    /// The token of the lease
    token: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 only if the token is live.")]
pub(crate) struct Validate {
    #[command(flatten)]
    granted: Granted,
    #[command(flatten)]
    freshness: Freshness,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    granted: Granted,
    #[command(flatten)]
    call: Call,
}

impl From<Freshness> for Consistency {
    fn from(freshness: Freshness) -> Self {
        if freshness.local { Self::Local } else { Self::Linearizable }
    }
}

pub(crate) fn get(arguments: &Get) -> anyhow::Result<ExitCode> {
    let Get { key, freshness, call } = arguments;
    call.print(key_text, async |client| Ok(client.key(key, (*freshness).into()).await?))
}

pub(crate) fn list(arguments: &List) -> anyhow::Result<ExitCode> {
    let List { prefix, contended, sort, freshness, call } = arguments;
    call.print(list_text, async |client| {
        let listed = client.list(prefix.as_str()).consistency((*freshness).into()).all().await;
        let mut list = match listed {
            Err(Error::Rejected(problem)) if problem.kind == ProblemKind::Forbidden => {
                bail!("{}{}", problem.detail, may_list(&client).await)
            }
            listed => listed?,
        };
        list.keys.retain(|view| !contended || waiters(view) > 0);
        match sort {
            Order::Key => {}
            Order::Waiters => list.keys.sort_by_key(|view| Reverse(waiters(view))),
            // Tokens only rise. A key that is only waited for comes last.
            Order::Held => {
                list.keys.sort_by_key(|view| view.holders.first().map_or(u64::MAX, |oldest| oldest.token.0));
            }
        }
        Ok(list)
    })
}

/// What may be listed instead, as the end of a sentence.
async fn may_list(client: &Client) -> String {
    let Ok(access) = client.access().await else { return String::new() };
    let may_read = access.allow.iter().filter(|allowed| allowed.may.iter().any(|right| right == "read"));
    let instead: Vec<_> = may_read
        .filter_map(|allowed| match allowed.keys.strip_prefix('=') {
            Some(key) => Some(format!("`ringfence get {key}`")),
            None if allowed.keys == "*" => None,
            None => Some(format!("`ringfence ls {}`", allowed.keys)),
        })
        .collect();
    if instead.is_empty() { String::new() } else { format!("; it may {}", instead.join(", ")) }
}

fn waiters(view: &KeyView) -> u64 {
    view.waiters.len() as u64 + view.more_waiters
}

/// Prints events, one per line, until it is killed or its reader is gone.
pub(crate) fn watch(arguments: &Watch) -> anyhow::Result<ExitCode> {
    let Watch { prefix, after, call } = arguments;
    call.run(async |client| {
        let mut watch =
            client.watch(prefix.as_str()).telling(|why| eprintln!("ringfence: no events now: {why}"));
        if let Some(after) = after {
            watch = watch.after(Revision(*after));
        }
        let mut reader_gone = pin!(reader_gone());
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = &mut reader_gone => return Ok(ExitCode::SUCCESS),
            };
            let event = match event {
                Err(error @ Error::HistoryGone { .. }) => {
                    bail!(
                        "{error}; list the keys with `ringfence ls -o json` and watch --after its revision"
                    );
                }
                event => event?,
            };
            if !call.output.print(&event, event_text)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    })
}

pub(crate) fn validate(arguments: &Validate) -> anyhow::Result<ExitCode> {
    let Validate { granted, freshness, call } = arguments;
    call.run(async |client| {
        let verdict = client.validate(&granted.key, Token(granted.token), (*freshness).into()).await?;
        call.output.print(&verdict, verdict_text)?;
        Ok(if verdict.verdict == VerdictName::Live { ExitCode::SUCCESS } else { ExitCode::from(NOT_LIVE) })
    })
}

pub(crate) fn revoke(arguments: &Revoke) -> anyhow::Result<ExitCode> {
    let Revoke { granted, call } = arguments;
    let text = |_: &_| {
        "revoked. The holder may still write: raise the number of the guard to the new fence of the key, too\n".into()
    };
    call.print(text, async |client| {
        client.revoke(&granted.key, Token(granted.token)).await?;
        Ok(json!({ "key": granted.key, "token": granted.token }))
    })
}

/// Escaped: a holder is any text that a client chose, and must not forge lines or control the terminal.
fn holder(holder: &Option<Holder>) -> String {
    or_dash(holder.as_ref().map(|holder| holder.as_str().escape_debug()))
}

fn key_text(view: &KeyView) -> String {
    let mut text = format!("key       {}\nfence     {}\nrevision  {}\n", view.key, view.fence, view.revision);
    if view.holders.is_empty() {
        text += "\nnot held\n";
    } else {
        let mut table = Table::new(["TOKEN", "MODE", "EXPIRES IN", "BY", "HOLDER"]);
        for held in &view.holders {
            table.add([
                held.token.to_string(),
                mode(held.mode, held.limit),
                seconds(held.expires_in_ms),
                or_dash(held.by.as_ref()),
                holder(&held.holder),
            ]);
        }
        text = text + "\n" + &table.text() + &more(view.more_holders);
    }
    if !view.waiters.is_empty() {
        let mut table = Table::new(["WAITING", "MODE", "BY", "HOLDER"]);
        for waiter in &view.waiters {
            table.add([
                seconds(Some(waiter.waited_ms)),
                mode(waiter.mode, None),
                or_dash(waiter.by.as_ref()),
                holder(&waiter.holder),
            ]);
        }
        text = text + "\n" + &table.text() + &more(view.more_waiters);
    }
    text
}

fn more(count: u64) -> String {
    if count == 0 { String::new() } else { format!("and {count} more\n") }
}

fn list_text(list: &KeyList) -> String {
    let mut table = Table::new(["KEY", "MODE", "HOLDERS", "TOKEN", "EXPIRES IN", "WAITERS", "HOLDER"]);
    for view in &list.keys {
        let oldest = view.holders.first();
        table.add([
            view.key.to_string(),
            or_dash(oldest.map(|oldest| mode(oldest.mode, oldest.limit))),
            (view.holders.len() as u64 + view.more_holders).to_string(),
            or_dash(oldest.map(|oldest| oldest.token)),
            seconds(oldest.and_then(|oldest| oldest.expires_in_ms)),
            waiters(view).to_string(),
            holder(&oldest.and_then(|oldest| oldest.holder.clone())),
        ]);
    }
    table.text()
}

fn event_text(event: &Event) -> String {
    let Event { kind, change: event } = event;
    let keys = event.keys.iter().map(|key| format!("{} (fence {})", key.key, key.fence));
    format!(
        "{}  {:<8}  token {}  {}  {}\n",
        event.revision,
        kind.as_str(),
        or_dash(event.token),
        holder(&event.holder),
        keys.collect::<Vec<_>>().join(" ")
    )
}

fn verdict_text(verdict: &Verdict) -> String {
    let name = match verdict.verdict {
        VerdictName::Stale => "stale: this token can never be valid again",
        VerdictName::Live => "live during this call; it may be stale by the time of a later write",
        VerdictName::Unknown => "unknown: not known to be stale, which is no reason to accept it",
    };
    format!("{name}\nfence     {}\n", verdict.fence)
}
