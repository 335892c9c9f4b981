//! `ringfence cluster`: membership, leadership and versions, for operators.

mod certificates;
mod troubles;
mod wait_ready;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use ringfence_client::{Client, ClusterStatus, Error, Upgraded};
use ringfence_wire::{ProblemKind, Revision};
use tokio::time::{Instant, sleep};

use self::troubles::Troubles;
use self::wait_ready::WaitReady;
use crate::cli::client::Call;
use crate::cli::output::{self, Output, Table, or_dash};

/// Exit status: not all is well with the cluster.
const NOT_WELL: u8 = 3;
/// How long `add` waits for the new member to vote. With little to send it takes a second.
const JOINS_WITHIN: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the members and their state as the node that answers sees them, and the lags as the leader does
    #[command(after_help = STATUS_HELP)]
    Status(Call),
    /// Wait until every node of --urls is ready to serve clients, for example between two restarts. Needs no right
    WaitReady(WaitReady),
    /// Add a node that was started with --join, or say where a member has moved
    Add(Add),
    /// Remove a member
    Remove(Remove),
    /// Transfer the leadership to another member
    Transfer(Transfer),
    /// Raise the rules by which the cluster decides, when all members run a program that supports newer ones
    Upgrade(Upgrade),
}

const STATUS_HELP: &str = "\
Exit status:
  0    all is well: there is a leader, all members answer it and the node that was asked, and can call it,
       none is refused, all snapshots were delivered, and these two nodes can use their files and certificates
  1    no node answers, or not in order
  2    invalid options
  3    not all is well: the last lines say what is not, on standard error with --output json";

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// The node's --id
    id: u64,
    /// The node's peer address, as other nodes reach it
    #[arg(value_name = "HOST:PORT")]
    peer: String,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The member's id
    id: u64,
    /// Remove the member even if no majority of the remaining voters answers. The cluster then stops until enough are back
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// The next leader [default: the member whose log is furthest ahead]
    #[arg(long, value_name = "ID")]
    to: Option<u64>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// The rules to raise to [default: the newest that all members support]
    #[arg(long, value_name = "RULES")]
    to: Option<u8>,
    /// Only check whether the rules can be raised
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    call: Call,
}

/// Prints the status of the cluster, after a change if `command` is one; of an upgrade, what it raised.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let call = match command {
        Command::WaitReady(arguments) => return wait_ready::run(arguments),
        Command::Upgrade(Upgrade { to, dry_run, call }) => {
            let text = if *dry_run { checked } else { raised };
            return call.print(text, async |client| {
                client.upgrade(*to, *dry_run).await.map_err(|error| match error {
                    Error::Rejected(problem) if problem.kind == ProblemKind::NotFound => anyhow!(
                        "the node that answered runs a program that cannot raise the rules: upgrade all nodes first"
                    ),
                    error => error.into(),
                })
            });
        }
        Command::Status(call) => {
            return call.run(async |client| {
                let (status, troubles) = as_the_leader_sees(client.cluster().await?, call).await;
                print(&status, &troubles, call.output)?;
                Ok(if troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOT_WELL) })
            });
        }
        Command::Add(Add { call, .. })
        | Command::Remove(Remove { call, .. })
        | Command::Transfer(Transfer { call, .. }) => call,
    };
    call.run(async |client| {
        // Finds a node that answers, too: an order is sent only once, and a frozen node would keep it.
        let status = client.cluster().await?;
        let before = match command {
            Command::Add(_) => as_the_leader_sees(status.clone(), call).await.1,
            _ => Troubles::default(),
        };
        match command {
            Command::Status(_) | Command::Upgrade(_) | Command::WaitReady(_) => {}
            Command::Add(Add { id, peer, .. }) => client.add_member(*id, peer).await?,
            Command::Remove(Remove { id, force: false, .. }) => client.remove_member(*id).await?,
            Command::Remove(Remove { id, force: true, .. }) => client.force_remove_member(*id).await?,
            Command::Transfer(Transfer { to, .. }) => client.transfer_leadership(*to).await?,
        }
        if let Command::Remove(Remove { id, .. }) = command
            && !status.members.contains_key(id)
        {
            eprintln!("ringfence: node {} did not know node {id} as a member", status.node_id);
        }
        let (status, troubles) = match command {
            Command::Add(Add { id, .. }) => joined(&client, *id, &before, call).await?,
            _ => as_the_leader_sees(client.cluster().await?, call).await,
        };
        print(&status, &troubles, call.output)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The status once the member votes and nothing is wrong with it, or something is that was not `before`; or else after a while.
async fn joined(
    client: &Client,
    id: u64,
    before: &Troubles,
    call: &Call,
) -> anyhow::Result<(ClusterStatus, Troubles)> {
    let until = Instant::now() + JOINS_WITHIN;
    loop {
        let (status, troubles) = as_the_leader_sees(client.cluster().await?, call).await;
        let votes = status.members.get(&id).is_some_and(|member| member.voter);
        if votes && !troubles.are_about(id) || troubles.are_new(id, before) {
            return Ok((status, troubles));
        }
        if Instant::now() >= until {
            if !votes {
                eprintln!("ringfence: node {id} does not vote yet: cluster status tells how it gets on");
            }
            return Ok((status, troubles));
        }
        sleep(LOOK).await;
    }
}

/// Prints a status and what is not well.
fn print(status: &ClusterStatus, troubles: &Troubles, output: Output) -> anyhow::Result<()> {
    output.print(status, text)?;
    for trouble in troubles.lines() {
        match output {
            Output::Text => output::print(&format!("\n{trouble}\n")).map(drop)?,
            Output::Json => eprintln!("ringfence: {trouble}"),
        }
    }
    Ok(())
}

/// Adds the lags, which only the leader knows, and who answers it; and what is not well, by the leader first. Tells why the
/// leader's word is missing.
async fn as_the_leader_sees(mut status: ClusterStatus, call: &Call) -> (ClusterStatus, Troubles) {
    let (mut troubles, mut own) = (Troubles::default(), Troubles::default());
    own.see(&status);
    if status.leader != Some(status.node_id) {
        match ask_leader(&status, call).await {
            Ok(of_leader) => {
                for (id, member) in &mut status.members {
                    let seen = of_leader.members.get(id);
                    member.lag_entries = seen.and_then(|seen| seen.lag_entries);
                    member.cannot_call = seen.is_some_and(|seen| seen.cannot_call);
                    member.snapshot_failure = seen.and_then(|seen| seen.snapshot_failure.clone());
                    // Of itself the leader says nothing.
                    member.silent_ms = seen.and_then(|seen| seen.silent_ms).or(member.silent_ms);
                }
                troubles.see(&of_leader);
            }
            Err(why) => {
                troubles.add(format!("the lags are missing, as only the leader knows them: {why}"));
            }
        }
    }
    troubles.append(own);
    (status, troubles)
}

async fn ask_leader(status: &ClusterStatus, call: &Call) -> Result<ClusterStatus, String> {
    let leader = status.leader.and_then(|id| Some((id, status.members.get(&id)?.url.clone()?)));
    let (id, url) =
        leader.ok_or_else(|| format!("node {} knows no leader, or not its URL", status.node_id))?;
    match ask(&url, call).await {
        Ok(of_leader) if of_leader.leader == Some(of_leader.node_id) => Ok(of_leader),
        Ok(_) => Err(format!("node {id}, at {url}, does not lead")),
        Err(error) => Err(format!("node {id}, at {url}, does not answer: {error:#}")),
    }
}

async fn ask(url: &str, call: &Call) -> anyhow::Result<ClusterStatus> {
    Ok(call.client_of(&[url])?.cluster().await?)
}

fn raised(upgraded: &Upgraded) -> String {
    let Upgraded { from, to } = upgraded;
    match from == to {
        true => format!("nothing to raise: the cluster uses rules {from} already\n"),
        false => format!("raised the rules from {from} to {to}\n"),
    }
}

fn checked(upgraded: &Upgraded) -> String {
    let Upgraded { from, to } = upgraded;
    match from == to {
        true => raised(upgraded),
        false => format!("the rules can be raised from {from} to {to}\n"),
    }
}

fn text(status: &ClusterStatus) -> String {
    let leader = status.leader.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    let mut text = format!("cluster   {}\nleader    {leader}\n", status.cluster_id);
    text += &match status.revision {
        Revision(0) => {
            format!("term      {}\nrevision  none: not started, see the log of the leader\n", status.term)
        }
        revision => format!("term      {}\nrevision  {revision}\n", status.term),
    };
    text += &format!("leases    {} live, {} waiting\n", status.live_leases, status.waiters);
    text += &format!("version   {}, answered by node {}\n", status.version, status.node_id);
    let rules = match status.rules_supported {
        Some(newest) if newest > status.rules => format!(", can be raised to {newest}"),
        Some(_) => String::new(),
        None => ", not known whether they can be raised".to_owned(),
    };
    text += &format!("rules     {}{rules}\n\n", status.rules);
    let mut table = Table::new(["NODE", "ROLE", "LAG", "VERSION", "RULES", "HTTP", "PEER"]);
    for (id, member) in &status.members {
        let role = match member.voter {
            _ if status.leader == Some(*id) => "leader",
            true => "voter",
            false => "learner",
        };
        let (lag, url) = (or_dash(member.lag_entries), or_dash(member.url.as_ref()));
        let (version, rules) = (or_dash(member.version.as_ref()), or_dash(member.rules));
        table.add([id.to_string(), role.to_owned(), lag, version, rules, url, member.peer.clone()]);
    }
    text + &table.text() + &certificates::text(status)
}
