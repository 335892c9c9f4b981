//! Stops one thread of a node, with `ptrace`.

use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::{Error, Node};

/// A thread that does not run until this is dropped, while the others of its process do: as if it waited for a page of the program,
/// on a disk that hangs.
#[derive(Debug)]
pub struct Frozen {
    thread: Pid,
    /// Whether it is the first of its process.
    is_first: bool,
}

impl Frozen {
    /// Stops the thread of `node` with this name, or its first one, on which Raft runs. Only the thread that calls this may drop the
    /// result.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where a process must not trace others. [`Error::Failed`] if there is no such thread.
    pub fn thread(node: &Node, name: Option<&str>) -> Result<Self, Error> {
        let missing = || Error::Failed(format!("node {} has no thread {name:?}", node.id()));
        let first = node.pid().ok_or_else(missing)?.to_string();
        let tasks = PathBuf::from(format!("/proc/{first}/task"));
        let is_wanted = |task: &PathBuf| match name {
            None => task.ends_with(&first),
            Some(name) => std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name),
        };
        let entries =
            tasks.read_dir().map_err(|error| Error::Io { what: tasks.display().to_string(), error })?;
        let task = entries.flatten().map(|task| task.path()).find(is_wanted).ok_or_else(missing)?;
        let id = task.file_name().and_then(|id| id.to_str()?.parse().ok()).ok_or_else(missing)?;
        let thread = Pid::from_raw(id);
        let unavailable = |error| Error::Unavailable(format!("this process cannot trace others: {error}"));
        ptrace::seize(thread, ptrace::Options::empty()).map_err(unavailable)?;
        let frozen = Self { thread, is_first: name.is_none() };
        ptrace::interrupt(thread).map_err(unavailable)?;
        waitpid(thread, Some(WaitPidFlag::__WALL)).map_err(unavailable)?;
        Ok(frozen)
    }

    /// Whether it does not run, as the system says.
    pub fn stands_still(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.thread)).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" t "))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Its process may be dead. It has not ended before who traces its threads has waited for them. The first one is for its parent.
        if ptrace::detach(self.thread, None) == Err(Errno::ESRCH) && !self.is_first {
            let _ = waitpid(self.thread, Some(WaitPidFlag::__WALL));
        }
    }
}
