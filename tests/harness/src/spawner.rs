//! The thread whose children all nodes are.
//!
//! A node that ends with its parent (`--die-with-parent`) ends, to be exact, with the *thread* that made it. Tests run on
//! threads that come and go, so all nodes are made by one that lives as long as the program.

use std::io;
use std::process::{Child, Command};
use std::sync::{OnceLock, mpsc};

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command`.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in queue {
                // Whoever ordered it waits for the reply.
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let gone = |_| io::Error::other("the thread that starts processes has ended");
    let (reply, child) = mpsc::channel();
    orders.send((command, reply)).map_err(|error| gone(error.to_string()))?;
    child.recv().map_err(|error| gone(error.to_string()))?
}
