//! Messages to the service manager, as in sd_notify(3). systemd expects them from a unit with `Type=notify`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How long a service manager that does not read may delay the node: far less than an election takes.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Sends `state` to the service manager, if there is one, and gives up if it hangs.
pub(crate) fn notify(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, state)
    {
        tracing::warn!(%error, socket = %socket.display(), "cannot notify the service manager");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_write_timeout(Some(TIMEOUT))?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}
