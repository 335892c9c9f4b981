//! Three servers of a program on one loopback address.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::loopback::Loopback;
use crate::process::{Server, folder, mortal};
use crate::{Client, Error};

/// A cluster of three with its own data on disk. It ends with the test program.
#[derive(Debug)]
pub struct Trio {
    servers: Vec<Server>,
    loopback: Loopback,
    _dir: TempDir,
}

impl Trio {
    /// Starts three servers of `program`, each in a directory of its own. `set_up` configures one, by its number from 0, the
    /// address of all, and that directory.
    pub fn start(
        program: impl AsRef<OsStr>,
        set_up: impl Fn(&mut Command, u16, IpAddr, &Path) -> io::Result<()>,
    ) -> Result<Self, Error> {
        let program = program.as_ref();
        let (dir, loopback) = (folder("trio")?, Loopback::claim()?);
        let mut servers = Vec::new();
        for id in 0..3 {
            let name = format!("{}, server {id} of three", Path::new(program).display());
            let (data, mut command) = (dir.path().join(id.to_string()), mortal(program));
            std::fs::create_dir(&data)
                .and_then(|()| set_up(command.current_dir(&data), id, loopback.ip(), &data))
                .map_err(Error::io(format!("cannot configure {name}")))?;
            servers.push(Server::start_new(name, data.join("log"), command)?);
        }
        Ok(Self { servers, loopback, _dir: dir })
    }

    /// Waits until `is_ready` is true of each.
    pub async fn ready(&self, is_ready: impl AsyncFn(usize) -> bool) -> Result<(), Error> {
        for (id, server) in self.servers.iter().enumerate() {
            server.ready(async || is_ready(id).await).await?;
        }
        Ok(())
    }

    /// The addresses with this port and the two that follow.
    pub fn at(&self, port: u16) -> [SocketAddr; 3] {
        [0, 1, 2].map(|id| self.loopback.at(port + id))
    }

    /// Clients of the HTTP at these addresses.
    pub fn http(&self, port: u16) -> [Client; 3] {
        self.at(port).map(Client::new)
    }

    /// Kills a server, running or stopped.
    pub fn kill(&self, id: usize) -> Result<(), Error> {
        self.servers[id].kill()
    }

    /// Stops a server with SIGSTOP: its connections stay open, and the kernel accepts new ones.
    pub async fn stop(&self, id: usize) -> Result<(), Error> {
        self.servers[id].signal(Signal::STOP)?;
        self.servers[id].stands_still().await
    }

    /// Calls `act` with the process of a server while all its threads stand still.
    pub async fn while_still<T>(&self, id: usize, act: impl FnOnce(u32) -> T) -> Result<T, Error> {
        self.stop(id).await?;
        let server = &self.servers[id];
        let done = act(server.pid().ok_or_else(|| server.failed("has no process"))?);
        server.signal(Signal::CONT)?;
        Ok(done)
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(Server::pid).collect()
    }
}
