//! What a lock costs a script: a command under a lock, by a new process each time; and the size, memory and start of the
//! program.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ringfence_harness::{Cluster, EtcdCluster};

use crate::args::Program;
use crate::figures::{Figure, digits, ratio};
use crate::usage;

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Path of etcd
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// Path of etcdctl
    #[arg(long, default_value = "etcdctl")]
    etcdctl: PathBuf,
    /// Number of runs of each command
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

/// The figures.
pub(crate) struct Shell {
    lock_ms: Figure,
    /// `None` where etcd is not installed.
    etcdctl_ms: Option<Figure>,
    /// The same process without a lock.
    bare_ms: Figure,
    founded_ms: Figure,
    restarted_ms: Figure,
    idle_bytes: u64,
    program_bytes: u64,
    stripped_bytes: Option<u64>,
}

/// Measures all, the commands in turns.
pub(crate) async fn shell(plan: &Plan) -> Result<Shell> {
    let program = plan.ringfence.path()?;
    let begun = Instant::now();
    let cluster = Cluster::builder(&program).start().await?;
    let mut founded_ms = Figure::default();
    founded_ms.push(ms(begun));
    let mut restarted_ms = Figure::default();
    for _ in 0..3 {
        cluster.kill_all()?;
        let begun = Instant::now();
        cluster.all_ready().await?;
        restarted_ms.push(ms(begun));
    }
    let pids: Vec<u32> = cluster.nodes().iter().filter_map(|node| node.pid()).collect();
    let idle_bytes = usage::resident_bytes(&pids)? / pids.len() as u64;

    let urls: Vec<String> = cluster.nodes().iter().map(|node| node.url()).collect();
    let mut lock = Command::new(&program);
    lock.env("RINGFENCE_URLS", urls.join(",")).args(["lock", "bench/shell", "--", "true"]);
    let mut bare = Command::new(&program);
    bare.args(["completions", "bash"]);
    let etcd = match timed(Command::new(&plan.etcdctl).arg("version")) {
        Ok(_) => EtcdCluster::start(&plan.etcd).await.map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    let etcd = etcd.inspect_err(|error| eprintln!("left out: etcd: {error:#}")).ok();
    let mut etcdctl = etcd.as_ref().map(|etcd| {
        let endpoints = etcd.addresses().map(|address| address.to_string()).join(",");
        let mut command = Command::new(&plan.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoints, "lock", "bench/shell", "true"]);
        command
    });
    let (mut lock_ms, mut bare_ms, mut etcdctl_ms) =
        (Figure::default(), Figure::default(), Figure::default());
    for run in 0..=plan.runs {
        let times = [Some(&mut lock), etcdctl.as_mut(), Some(&mut bare)].map(|command| command.map(timed));
        // The first run of each reads its program from the disk.
        if run > 0 {
            for (figure, time) in [&mut lock_ms, &mut etcdctl_ms, &mut bare_ms].into_iter().zip(times) {
                time.transpose()?.into_iter().for_each(|time| figure.push(time));
            }
        }
    }
    Ok(Shell {
        lock_ms,
        etcdctl_ms: etcdctl.map(|_| etcdctl_ms),
        bare_ms,
        founded_ms,
        restarted_ms,
        idle_bytes,
        program_bytes: program.metadata()?.len(),
        stripped_bytes: stripped_bytes(&program),
    })
}

/// How long a command takes, in ms. It must succeed.
fn timed(command: &mut Command) -> Result<f64> {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(ms(begun))
}

/// The size without debug information; `None` where binutils are not installed.
fn stripped_bytes(program: &Path) -> Option<u64> {
    let stripped = tempfile::NamedTempFile::new().ok()?;
    let strip = Command::new("strip").arg("-o").arg(stripped.path()).arg(program).status().ok()?;
    strip.success().then(|| stripped.path().metadata().ok()).flatten().map(|file| file.len())
}

fn ms(since: Instant) -> f64 {
    since.elapsed().div_duration_f64(Duration::from_millis(1))
}

impl fmt::Display for Shell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "A command under a lock, three nodes, one at a time: ms, median (least to most)")?;
        writeln!(out, "ringfence lock KEY -- true   {}", self.lock_ms.spread())?;
        if let Some(etcdctl_ms) = &self.etcdctl_ms {
            writeln!(out, "etcdctl lock KEY true        {}", etcdctl_ms.spread())?;
            writeln!(out, "ratio                        {}", ratio(&self.lock_ms, etcdctl_ms))?;
        }
        writeln!(out, "ringfence, without a cluster {}", self.bare_ms.spread())?;
        let mib = |bytes: u64| digits(bytes as f64 / f64::from(1 << 20));
        writeln!(out, "\nThree nodes, from their start until all are ready: ms")?;
        writeln!(out, "a new cluster                {}", self.founded_ms.spread())?;
        writeln!(out, "all killed, and started      {}", self.restarted_ms.spread())?;
        writeln!(out, "\nMiB")?;
        writeln!(out, "memory of an idle node       {}", mib(self.idle_bytes))?;
        writeln!(out, "program                      {}", mib(self.program_bytes))?;
        match self.stripped_bytes {
            Some(bytes) => writeln!(out, "program, stripped            {}", mib(bytes)),
            None => writeln!(out, "program, stripped            - (`strip` is not installed)"),
        }
    }
}
