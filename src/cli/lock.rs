//! `ringfence lock`: runs a command while it holds a lease.

pub(crate) mod waiting;

use std::ffi::OsString;
use std::pin::pin;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use ringfence_client::{Client, Error, Lease};
use ringfence_wire::MAX_TTL_MS;

use crate::cli::acquire_options::AcquireOptions;
use crate::cli::client::{Connection, NOT_ACQUIRED, RELEASE_TIMEOUT};
use crate::cli::leases::hand_out;
use crate::cli::output::Output;
use crate::cli::under_lease::{
    self, Ending, Listen, MIN_TTL, Postgres, Task, died_of, exit, unless_signalled,
};
use crate::job;
use crate::signals::Signals;
use crate::stderr::Stderr;

#[derive(Debug, Args)]
#[command(
    override_usage = "ringfence lock [OPTIONS] <KEY>... -- <COMMAND> [ARGUMENT]...\n       ringfence lock [OPTIONS] <KEY>... --detach",
    after_help = "\
The environment of COMMAND has RINGFENCE_TOKEN, RINGFENCE_KEYS (one key per line) and RINGFENCE_FENCE (one fence per line, in \
the order of the keys). Send the token with every write, to a resource that checks it: nothing else stops a writer that is \
paused together with this program. The fences are those of the grant. While others share a key, its fence rises; `ringfence get \
KEY` shows the latest. RINGFENCE_HELD has the leases of all `ringfence lock` and `hold` that COMMAND runs under (one TOKEN KEY per line): \
waiting for one's own key fails.

If COMMAND exits by itself, the descendants that it leaves behind continue without the lease. If COMMAND dies of a signal, or \
ringfence ends it (because of a signal, --max, or a lease that may be lost), ringfence ends all descendants too, in any process \
group or session. It sends the signal, and SIGKILL after --kill-after. It releases the keys when the last descendant has \
exited. It cannot signal a descendant that became another user (sudo), and waits for it. A process that a server runs for \
COMMAND (docker, systemd-run, ssh) is not a descendant.

With --postgres, COMMAND is a program that uses PostgreSQL, and need not know of tokens: a late write of it fails in the database. psql touches \
the keys before COMMAND starts. It finds the database by the variables of libpq, or by URL; everybody sees arguments, so a password is in \
PGPASSWORD or a password file. It waits for what older holders have open, and ringfence says which backend that is. Then the connections of COMMAND \
claim by PGOPTIONS, which libpq and node-postgres read, unless it passes options of its own; RINGFENCE_PGOPTIONS is the same, percent-encoded, \
for `?options=` in a connection string. `ringfence guard postgres` says how a table is protected by_connection.

A COMMAND that takes neither connects to 127.0.0.1 at the PORT of --postgres-proxy, without TLS, with its own user, password and database. The \
proxy adds the claims, and copies what comes and goes. It serves only processes of the user who runs ringfence, not those that became another \
one, and closes their connections when the lease or COMMAND ends. It connects to where psql did: without encryption, or by TLS with \
sslmode=verify-full and sslrootcert, and no certificate of its own. It starts nothing where psql encrypts in another way.

With --listen, GET /leader at ADDR answers 200 with token, keys, fences and expires_in_ms while the lease certainly lives and COMMAND runs; an \
operator's revocation is known with the next renewal. Otherwise it answers 503, with the same of a holder where a node knows one. GET /livez \
answers 200 while ringfence works. Everybody who reaches ADDR may ask. An answer tells of its moment: only a token stops a late writer.

With --at-least, ringfence exits when COMMAND has ended, whatever its status, and the keys stay taken until that time has passed. So a \
job that cron starts on ten machines, whose clocks differ, runs once a minute: --try --at-least 50s. The lease expires when the time has \
passed, or up to --ttl later: it is never cut short. If ringfence itself is killed, the lease is lost, or no \
node answers within 6 s of the end of COMMAND, the keys are free sooner; in the last case ringfence says so, and until when the lease \
certainly lives, and exits with COMMAND's status.

SIGINT, SIGTERM and SIGQUIT to ringfence end COMMAND, and so does SIGHUP when the terminal has hung up. Any other SIGHUP, \
SIGUSR1, SIGUSR2 and SIGWINCH go to COMMAND alone. SIGTSTP stops COMMAND and its descendants, until SIGCONT. While \
Ctrl-Z stops ringfence, too, nobody renews the lease: COMMAND is killed before it ends.

Exit status:
  the status of COMMAND, or 128+N if it died of signal N
  75   another lease has a key, or the wait is over (see -E)
  76   the lease was lost: COMMAND was ended, or not started, or outlived it
  125  ringfence itself failed, or no node has decided in time
  126  COMMAND cannot be run
  127  COMMAND was not found"
)]
pub(crate) struct Arguments {
    /// Keys to acquire, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    options: AcquireOptions,
    #[command(flatten)]
    ending: Ending,
    #[command(flatten)]
    postgres: Postgres,
    #[command(flatten)]
    listen: Listen,
    /// Keep the keys for at least this time from the grant, also when COMMAND has ended; at most 24 h
    #[arg(long, value_name = "TIME")]
    at_least: Option<humantime::Duration>,
    /// Run no COMMAND: print the lease, as `ringfence acquire` does, and exit. It lasts for --ttl, unless `ringfence hold` takes it over
    #[arg(long, conflicts_with_all = ["command", "at_least", "listen", "max", "kill_after", "signal"])]
    detach: bool,
    /// Output format of --detach
    #[arg(short, long, value_name = "FORMAT", default_value = "text", conflicts_with = "command")]
    output: Output,
    /// Exit status if the lease is not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = NOT_ACQUIRED)]
    conflict_exit_code: u8,
    #[command(flatten)]
    connection: Connection,
    /// Command to run, without a shell
    #[arg(last = true, required_unless_present = "detach", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Prints its own errors.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    under_lease::run(async |signals, stderr| {
        let is_detached = arguments.detach;
        if !is_detached {
            job::check_proc()?;
            ensure!(
                arguments.options.ttl() >= MIN_TTL,
                "--ttl must be at least {} s for a command: with less, one late renewal would end it",
                MIN_TTL.as_secs()
            );
        }
        ensure!(
            !(arguments.postgres.is_wanted() && arguments.options.is_shared()),
            "--postgres does not go with --shared: the fence of a shared lease rises, and the setting of a connection does not"
        );
        let longest = Duration::from_millis(MAX_TTL_MS.into());
        ensure!(arguments.at_least.is_none_or(|least| *least <= longest), "--at-least must be at most 24 h");
        let client = arguments.connection.client()?;
        let leadership = arguments.listen.start(&arguments.connection, &arguments.keys)?;
        let lease = match acquire(arguments, &client, signals, stderr).await? {
            Ok(lease) => lease,
            Err(status) => return Ok(status),
        };
        if is_detached {
            return hand_out(lease, arguments.output).await.map(|()| exit(0));
        }
        let release = match arguments.at_least {
            Some(_) => "keep the keys for --at-least, or release them",
            None => "release the lease",
        };
        let Arguments { command, ending, postgres, .. } = arguments;
        let task = Task { command, ending, postgres, leadership: &leadership, release };
        task.run(lease, signals, stderr).await
    })
}

/// Waits for the lease. Without one, prints why, and returns the status to exit with.
async fn acquire(
    arguments: &Arguments,
    client: &Client,
    signals: &mut Signals,
    stderr: &Stderr,
) -> anyhow::Result<Result<Lease, ExitStatus>> {
    let acquired = unless_signalled(signals, try_acquire(arguments, client, stderr)).await;
    if !matches!(acquired, Ok(Ok(_))) {
        // The client is releasing the grant or the place in the queue. If that takes too long, it expires.
        client.close(RELEASE_TIMEOUT).await;
    }
    match acquired {
        Ok(Ok(lease)) => Ok(Ok(lease)),
        Ok(Err(NotAcquired::Conflict(why))) => {
            stderr.print(why);
            Ok(Err(exit(arguments.conflict_exit_code)))
        }
        Ok(Err(NotAcquired::Failed(error))) => Err(arguments.connection.explain(error.into())),
        Ok(Err(NotAcquired::IsOwn(error))) => Err(error),
        Err(signal) => Ok(Err(died_of(signal))),
    }
}

/// Why there is no lease.
enum NotAcquired {
    /// Another lease has a key.
    Conflict(String),
    Failed(Error),
    /// This process runs under a lease on one of the keys.
    IsOwn(anyhow::Error),
}

async fn try_acquire(arguments: &Arguments, client: &Client, stderr: &Stderr) -> Result<Lease, NotAcquired> {
    let Arguments { keys, options, .. } = arguments;
    let mut acquired = pin!(async {
        waiting::refuse_own(client, keys, options).await.map_err(NotAcquired::IsOwn)?;
        let mut lock = options.lock(client, keys);
        if let Some(least) = arguments.at_least {
            lock = lock.hold_at_least(*least);
        }
        match lock.acquire().await {
            Ok(lease) => Ok(lease),
            Err(error) => Err(match waiting::conflict(&error, client, keys).await {
                Some(why) => NotAcquired::Conflict(why),
                None => NotAcquired::Failed(error),
            }),
        }
    });
    let told = waiting::tell(client, keys, options, stderr);
    tokio::select! {
        biased;
        acquired = &mut acquired => return acquired,
        () = told => {}
    }
    acquired.await
}
