//! Connecting to several addresses at once, each a little later than the one before.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Error;

/// How long an address is waited for before the next one is tried beside it, unless it fails earlier.
const STAGGER: Duration = Duration::from_millis(250);

/// The first connection to one of `addresses`, which are tried in their order. `within` is the time until `deadline`, for the error.
pub(crate) async fn race(
    addresses: &[SocketAddr],
    deadline: Instant,
    within: Duration,
) -> Result<(TcpStream, SocketAddr), Error> {
    timeout_at(deadline, staggered(addresses)).await.unwrap_or_else(|_| {
        let tried = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        Err(Error::Silent { tried, within })
    })
}

async fn staggered(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Error> {
    let (mut attempts, mut left) = (FuturesUnordered::new(), addresses.iter());
    let (mut failures, mut kind) = (Vec::new(), io::ErrorKind::NotFound);
    loop {
        if let Some(&address) = left.next() {
            attempts.push(async move { (address, TcpStream::connect(address).await) });
        }
        tokio::select! {
            ended = attempts.next() => match ended {
                Some((address, Ok(stream))) => return Ok((stream, address)),
                Some((address, Err(error))) => {
                    failures.push(format!("{address}: {error}"));
                    kind = error.kind();
                }
                None => return Err(Error::Failed { failures: failures.join(", "), kind }),
            },
            () = sleep(STAGGER), if !left.as_slice().is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// An address that does not answer, as long as the sockets exist: its queue of connections is full.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Vec::new();
        while let Ok(connected) = tokio::time::timeout(STAGGER, TcpStream::connect(address)).await {
            connections.push(connected.unwrap());
        }
        (address, listener, connections)
    }

    async fn race_within(addresses: &[SocketAddr], time: Duration) -> Result<SocketAddr, Error> {
        race(addresses, Instant::now() + time, time).await.map(|(_, address)| address)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_delays_the_next_one_only_a_little() {
        let (silent, _listener, _queue) = silent().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        assert_eq!(race_within(&[silent, live], SOON).await, Ok(live));
        let short = 2 * STAGGER;
        let tried = silent.to_string();
        assert_eq!(race_within(&[silent], short).await, Err(Error::Silent { tried, within: short }));
    }

    #[tokio::test]
    async fn after_a_failure_the_next_address_follows_at_once() {
        let refused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        // More than one stagger could reach.
        let mut addresses = vec![refused; 1_000];
        addresses.push(live);
        assert_eq!(race_within(&addresses, SOON).await, Ok(live));
        let Err(Error::Failed { failures, kind }) = race_within(&[refused, refused], SOON).await else {
            panic!("nothing listens there");
        };
        assert_eq!(
            (failures.matches(&refused.to_string()).count(), kind),
            (2, io::ErrorKind::ConnectionRefused)
        );
    }
}
