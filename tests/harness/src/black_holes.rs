//! Addresses that neither accept nor refuse.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Their queue of connections is full, so the system drops what comes, until this is dropped.
#[derive(Debug)]
pub struct BlackHoles {
    _full: Vec<(TcpListener, Vec<TcpStream>)>,
}

impl BlackHoles {
    /// At these addresses, of which nobody listens at any.
    ///
    /// # Errors
    ///
    /// If somebody does, or the system has queues without an end.
    pub async fn dig(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<Self> {
        let mut full = Vec::new();
        for address in addresses {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(1)?;
            let (mut queue, patience) = (Vec::new(), Duration::from_millis(300));
            while let Ok(connected) = timeout(patience, TcpStream::connect(address)).await {
                queue.push(connected?);
                if queue.len() == 100 {
                    return Err(io::Error::other(format!("{address} accepts all connections")));
                }
            }
            full.push((listener, queue));
        }
        Ok(Self { _full: full })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_black_hole_neither_accepts_nor_refuses() {
        let address = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
        let _holes = BlackHoles::dig([address]).await.unwrap();
        let connected = timeout(Duration::from_millis(500), TcpStream::connect(address)).await;
        assert!(connected.is_err(), "{connected:?}");
    }
}
