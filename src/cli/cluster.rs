//! `ringfence cluster`: membership and leadership, for operators.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_client::ClusterStatus;

use crate::cli::client::Call;
use crate::cli::output::{Table, or_dash};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the members and their state, as the node that answers sees them
    Status(Call),
    /// Add a node that was started with --join
    Add(Add),
    /// Remove a member
    Remove(Remove),
    /// Transfer the leadership to another member
    Transfer(Transfer),
}

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

/// Prints the status of the cluster, after a change if `command` is one.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let (Command::Status(call)
    | Command::Add(Add { call, .. })
    | Command::Remove(Remove { call, .. })
    | Command::Transfer(Transfer { call, .. })) = command;
    call.print(text, async |client| {
        match command {
            Command::Status(_) => {}
            Command::Add(Add { id, peer, .. }) => client.add_member(*id, peer).await?,
            Command::Remove(Remove { id, force: false, .. }) => client.remove_member(*id).await?,
            Command::Remove(Remove { id, force: true, .. }) => client.force_remove_member(*id).await?,
            Command::Transfer(Transfer { to, .. }) => client.transfer_leadership(*to).await?,
        }
        Ok(client.cluster().await?)
    })
}

fn text(status: &ClusterStatus) -> String {
    let leader = status.leader.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    let mut text = format!("cluster   {}\nleader    {leader}\n", status.cluster_id);
    text += &format!("term      {}\nrevision  {}\n", status.term, status.revision);
    text += &format!("leases    {} live, {} waiting\n", status.live_leases, status.waiters);
    text += &format!("version   {}, answered by node {}\n\n", status.version, status.node_id);
    let mut table = Table::new(["NODE", "ROLE", "LAG", "HTTP", "PEER"]);
    for (id, member) in &status.members {
        let role = match member.voter {
            _ if status.leader == Some(*id) => "leader",
            true => "voter",
            false => "learner",
        };
        let (lag, url) = (or_dash(member.lag_entries), or_dash(member.url.as_ref()));
        table.add([id.to_string(), role.to_owned(), lag, url, member.peer.clone()]);
    }
    text + &table.text()
}
