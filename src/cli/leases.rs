//! `ringfence acquire`, `renew` and `release`: leases for scripts that cannot use `lock`.

use std::io;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use ringfence_client::{Error, Grant, Lease, LeaseId};
use rustix::io::{read, retry_on_intr};
use tokio::time::timeout;

use crate::cli::acquire_options::AcquireOptions;
use crate::cli::client::{Call, LOST, NOT_ACQUIRED, RELEASE_TIMEOUT};
use crate::cli::lock::waiting::conflict;
use crate::cli::output::{Output, Table, mode, seconds};

/// More than a lease_id and spaces around it.
const MAX_LINE: usize = 256;

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 75 if the lease was not acquired.")]
pub(crate) struct Acquire {
    /// Keys to acquire, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    options: AcquireOptions,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// The lease_id that `acquire` printed; `-` reads it from standard input, because others see arguments
    lease_id: LeaseIdSource,
    /// A new time-to-live [default: unchanged]
    #[arg(long, value_name = "TIME")]
    ttl: Option<humantime::Duration>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 76 if the lease had already ended in another way than by a release.")]
pub(crate) struct Release {
    /// The lease_id that `acquire` printed; `-` reads it from standard input, because others see arguments
    lease_id: LeaseIdSource,
    #[command(flatten)]
    call: Call,
}

/// Where a lease_id comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseIdSource {
    Argument(LeaseId),
    Input,
}

impl FromStr for LeaseIdSource {
    type Err = <LeaseId as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "-" { Ok(Self::Input) } else { text.parse().map(Self::Argument) }
    }
}

impl LeaseIdSource {
    pub(crate) fn get(self) -> anyhow::Result<LeaseId> {
        match self {
            Self::Argument(lease_id) => Ok(lease_id),
            Self::Input => {
                let line = read_line().context("cannot read the lease_id from standard input")?;
                line.trim().parse().context("standard input: the lease_id")
            }
        }
    }
}

/// Reads a line of standard input, and nothing after it: that is for the command of `hold`.
fn read_line() -> io::Result<String> {
    let (input, mut line, mut byte) = (io::stdin(), Vec::new(), [0]);
    while line.len() < MAX_LINE && retry_on_intr(|| read(&input, &mut byte))? > 0 && byte != *b"\n" {
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

pub(crate) fn acquire(arguments: &Acquire) -> anyhow::Result<ExitCode> {
    let Acquire { keys, options, call } = arguments;
    call.run(async |client| {
        let lease = match options.lock(&client, keys).no_renew().acquire().await {
            Ok(lease) => lease,
            Err(error) => {
                let taken = conflict(&error, &client, keys).await;
                // The client is releasing a grant that may have come too late.
                client.close(RELEASE_TIMEOUT).await;
                let Some(why) = taken else { return Err(error.into()) };
                eprintln!("ringfence: {why}");
                return Ok(ExitCode::from(NOT_ACQUIRED));
            }
        };
        hand_out(lease, call.output).await.map(|()| ExitCode::SUCCESS)
    })
}

/// Prints a lease, and leaves it to the reader of its id.
pub(crate) async fn hand_out(lease: Lease, output: Output) -> anyhow::Result<()> {
    match output.print(&lease.grant(), text) {
        Ok(true) => {
            lease.into_id();
            Ok(())
        }
        // Nobody could release a lease whose id was not read.
        unread => {
            let _ = timeout(RELEASE_TIMEOUT, lease.release()).await;
            unread.and_then(|_| bail!("the lease_id could not be printed, so the lease was released"))
        }
    }
}

pub(crate) fn renew(arguments: &Renew) -> anyhow::Result<ExitCode> {
    let Renew { lease_id, ttl, call } = arguments;
    let lease_id = lease_id.get()?;
    call.print(text, async |client| Ok(client.renew(lease_id, ttl.map(Into::into)).await?))
}

/// Releases. Prints nothing, unless the lease was lost before.
pub(crate) fn release(arguments: &Release) -> anyhow::Result<ExitCode> {
    let lease_id = arguments.lease_id.get()?;
    arguments.call.run(async |client| match client.release(lease_id).await {
        Err(error @ Error::Lost(_)) => {
            eprintln!("ringfence: {error}; another holder may have been active since");
            Ok(ExitCode::from(LOST))
        }
        released => released.map(|()| ExitCode::SUCCESS).map_err(Into::into),
    })
}

fn text(grant: &Grant) -> String {
    let mut text = format!("lease_id  {}\ntoken     {}\n", grant.lease_id, grant.token);
    text += &format!("expires   in {} unless renewed\n\n", seconds(grant.expires_in_ms));
    let mut table = Table::new(["KEY", "MODE", "FENCE"]);
    for granted in &grant.keys {
        table.add([granted.key.to_string(), mode(granted.mode, granted.limit), granted.fence.to_string()]);
    }
    text + &table.text()
}
