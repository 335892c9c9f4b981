//! `ringfence acquire`, `renew` and `release`: leases by hand, or in scripts that cannot run under `lock`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use ringfence_client::{Error, Grant, LeaseId};
use tokio::time::timeout;

use crate::cli::calls::{Caller, NOT_ACQUIRED, TO_LEAVE};
use crate::cli::lock::LOST;
use crate::cli::output;
use crate::cli::text::{Table, mode, seconds};
use crate::cli::wish::Wish;

/// What to acquire. Nobody renews the lease then.
#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// Keys to hold, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    wish: Wish,
    #[command(flatten)]
    caller: Caller,
}

/// Which lease to renew.
#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// As acquire has told it
    lease_id: LeaseId,
    /// A new time-to-live [default: the one it has]
    #[arg(long, value_name = "TIME")]
    ttl: Option<humantime::Duration>,
    #[command(flatten)]
    caller: Caller,
}

/// Which lease to release.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 76 if the lease had ended before, and not by a release.")]
pub(crate) struct Release {
    /// As acquire has told it
    lease_id: LeaseId,
    #[command(flatten)]
    caller: Caller,
}

/// Acquires, and leaves the lease as it is.
pub(crate) fn acquire(arguments: &Acquire) -> anyhow::Result<ExitCode> {
    let Acquire { keys, wish, caller } = arguments;
    caller.run(async |client, output| {
        let lease = match wish.of(&client, keys).no_renew().acquire().await {
            Ok(lease) => lease,
            Err(error) => {
                // What may have been granted is being given back.
                let _ = timeout(TO_LEAVE, client.settle()).await;
                if !matches!(error, Error::Held { .. } | Error::TimedOut { .. }) {
                    return Err(error.into());
                }
                eprintln!("ringfence: {error}");
                return Ok(ExitCode::from(NOT_ACQUIRED));
            }
        };
        match output.show(&lease.grant(), text).and_then(|shown| output::print(&shown)) {
            Ok(true) => {
                lease.into_id();
                Ok(ExitCode::SUCCESS)
            }
            // Nobody could release what nobody knows of.
            unread => {
                let _ = timeout(TO_LEAVE, lease.release()).await;
                unread.and_then(|_| bail!("nobody reads which lease it is: it is released again"))
            }
        }
    })
}

/// Renews, and shows the grant.
pub(crate) fn renew(arguments: &Renew) -> anyhow::Result<ExitCode> {
    let Renew { lease_id, ttl, caller } = arguments;
    caller.run(async |client, output| {
        let grant = client.renew(*lease_id, ttl.map(Into::into)).await?;
        output::print(&output.show(&grant, text)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Releases, and says nothing unless the lease had been lost before.
pub(crate) fn release(arguments: &Release) -> anyhow::Result<ExitCode> {
    arguments.caller.run(async |client, _| match client.release(arguments.lease_id).await {
        Err(error @ Error::Lost(_)) => {
            eprintln!("ringfence: {error}; what was done since may have met another holder");
            Ok(ExitCode::from(LOST))
        }
        released => released.map(|()| ExitCode::SUCCESS).map_err(Into::into),
    })
}

fn text(grant: &Grant) -> String {
    let mut text = format!("lease_id  {}\ntoken     {}\n", grant.lease_id, grant.token);
    text += &format!("lives     {} unless renewed\n\n", seconds(grant.expires_in_ms));
    let mut table = Table::new(["KEY", "MODE", "FENCE"]);
    for granted in &grant.keys {
        table.add([granted.key.to_string(), mode(granted.mode, granted.limit), granted.fence.to_string()]);
    }
    text + &table.text()
}
