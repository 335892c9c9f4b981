//! Logs that nobody takes: a pipe that is not read, and a device that is full.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use rustix::fs::OFlags;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::unix::pipe::{self, Receiver};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Fault, Scene};
use crate::grey::stage::{Setup, Stage, tool};

/// How often somebody calls who is no peer, which a node logs.
const CALLS_EACH: Duration = Duration::from_millis(500);

/// All nodes log to pipes that are read no more, and are full.
#[derive(Debug, Default)]
pub(in crate::grey) struct Unread {
    readers: JoinSet<()>,
    full: Vec<File>,
    calls: usize,
}

/// All nodes log to a device that is full.
#[derive(Debug, Default)]
pub(in crate::grey) struct Full {
    calls: usize,
}

impl Fault for Unread {
    fn setup(&self) -> Setup {
        let shell: fn(u64, &Path) -> String =
            |id, folder| format!("exec \"$@\" 1<>'{0}' 2<>'{0}'", fifo(folder, id).display());
        Setup { shell: Some(shell), ..Setup::default() }
    }

    async fn arrange(&mut self, stage: &Stage) -> anyhow::Result<()> {
        for id in stage.ids() {
            tool("mkfifo", [fifo(&stage.folder, id)]).await?;
            self.read(stage, id)?;
        }
        Ok(())
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        self.readers.shutdown().await;
        for id in scene.stage.ids() {
            let mut pipe = filler(&fifo(&scene.stage.folder, id))?;
            while pipe.write(b"\n").is_ok() {}
            self.full.push(pipe);
        }
        Ok(Vec::new())
    }

    async fn go_on(&mut self, stage: &Stage) -> anyhow::Result<()> {
        strangers_call(stage, &mut self.calls).await
    }

    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        let still_full = self.full.iter_mut().all(|pipe| pipe.write(b"\n").is_err());
        ensure!(still_full && self.calls > 0, "the pipes were not full, or nodes had nothing to log");
        Ok(format!("strangers called {} times, and the pipes were full", self.calls))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        self.full.clear();
        let ids = scene.stage.ids();
        ids.iter().try_for_each(|id| self.read(scene.stage, *id))?;
        Ok(ids)
    }
}

impl Unread {
    /// Reads what a node logs, to a file.
    fn read(&mut self, stage: &Stage, id: u64) -> anyhow::Result<()> {
        let path = fifo(&stage.folder, id);
        let mut receiver: Receiver = pipe::OpenOptions::new().read_write(true).open_receiver(&path)?;
        let mut log = File::options().create(true).append(true).open(path.with_extension("log"))?;
        self.readers.spawn(async move {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(length) = receiver.read(&mut bytes).await {
                let _ = log.write_all(&bytes[..length]);
            }
        });
        Ok(())
    }
}

impl Fault for Full {
    fn setup(&self) -> Setup {
        Setup { shell: Some(|_, _| "exec \"$@\" >/dev/full 2>&1".to_owned()), ..Setup::default() }
    }

    async fn go_on(&mut self, stage: &Stage) -> anyhow::Result<()> {
        strangers_call(stage, &mut self.calls).await
    }

    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        ensure!(self.calls > 0, "nodes had nothing to log");
        Ok(format!("strangers called {} times, and no line could be written", self.calls))
    }
}

fn fifo(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("node-{id}.pipe"))
}

/// A pipe that is written to as far as it has room, and no further.
fn filler(path: &Path) -> std::io::Result<File> {
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).write(true).custom_flags(no_wait).open(path)
}

/// Makes all nodes log a line again and again.
async fn strangers_call(stage: &Stage, calls: &mut usize) -> anyhow::Result<()> {
    loop {
        for node in stage.cluster.nodes() {
            let called = timeout(CALLS_EACH, async {
                TcpStream::connect(node.peer()).await?.try_write(b"no peer's words, which a node logs\n")
            });
            *calls += usize::from(called.await.is_ok_and(|called| called.is_ok()));
        }
        sleep(CALLS_EACH).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pipe_that_nobody_reads_becomes_full() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(folder.path(), 1);
        tool("mkfifo", [&path]).await.unwrap();
        let mut pipe = filler(&path).unwrap();
        let room = (0..).take_while(|_| pipe.write(b"\n").is_ok()).count();
        assert!(room >= 4_096, "{room}");
    }
}
