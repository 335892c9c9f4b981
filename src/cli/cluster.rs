//! `ringfence cluster`: what operators do with a cluster.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_client::ClusterStatus;

use crate::cli::calls::Caller;
use crate::cli::output;
use crate::cli::text::Table;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the members and how they do, as one node sees them
    Status(Caller),
    /// Take in a node that was started with --join
    Add(Add),
    /// Take a node out
    Remove(Remove),
    /// Make another node the leader
    Transfer(Transfer),
}

/// Which node to take in.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Its --id
    id: u64,
    /// Where the other nodes reach it
    #[arg(value_name = "HOST:PORT")]
    peer: String,
    #[command(flatten)]
    caller: Caller,
}

/// Which node to take out.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    id: u64,
    /// Also where no majority of the nodes that are left answers: the cluster then stops until enough of them are back
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    caller: Caller,
}

/// Who is to lead.
#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// Its id [default: the node that lacks the least of the log]
    #[arg(long, value_name = "ID")]
    to: Option<u64>,
    #[command(flatten)]
    caller: Caller,
}

/// Does it. What changes the cluster is shown by its status afterwards.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let caller = match command {
        Command::Status(caller)
        | Command::Add(Add { caller, .. })
        | Command::Remove(Remove { caller, .. })
        | Command::Transfer(Transfer { caller, .. }) => caller,
    };
    caller.run(async |client, output| {
        match command {
            Command::Status(_) => {}
            Command::Add(Add { id, peer, .. }) => client.add_member(*id, peer).await?,
            Command::Remove(Remove { id, force: false, .. }) => client.remove_member(*id).await?,
            Command::Remove(Remove { id, force: true, .. }) => client.force_remove_member(*id).await?,
            Command::Transfer(Transfer { to, .. }) => client.transfer_leadership(*to).await?,
        }
        output::print(&output.show(&client.cluster().await?, text)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn text(status: &ClusterStatus) -> String {
    let known = |id: Option<u64>| id.map_or_else(|| "none is known".to_owned(), |id| id.to_string());
    let mut text = format!("cluster   {}\nleader    {}\n", status.cluster_id, known(status.leader));
    text += &format!("term      {}\nrevision  {}\n", status.term, status.revision);
    text += &format!("leases    {} live, {} waiting\n", status.live_leases, status.waiters);
    text += &format!("version   {} of node {}, which answers\n\n", status.version, status.node_id);
    let mut table = Table::new(["NODE", "ROLE", "LAG", "HTTP", "PEER"]);
    for (id, member) in &status.members {
        let role = match member.voter {
            _ if status.leader == Some(*id) => "leader",
            true => "voter",
            false => "learner",
        };
        let lag = member.lag_entries.map_or_else(|| "–".to_owned(), |entries| entries.to_string());
        let url = member.url.clone().unwrap_or_else(|| "–".to_owned());
        table.add([id.to_string(), role.to_owned(), lag, url, member.peer.clone()]);
    }
    text + &table.text()
}
