//! Calls to the cluster, and how a client is closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::{Method, StatusCode};
use ringfence_wire::{BatchRelease, LeaseId, Operation, RenewRequest, Ttl};
use serde::de::{DeserializeOwned, Error as _};
use tokio::sync::Notify;

use crate::Error;
use crate::attempts::{Attempts, RETRY_FOR, Repeat};
use crate::lifetime::Confirmation;
use crate::releases::Releases;
use crate::transport::{Nodes, Request, Response};

/// The cluster, as the client and its leases share it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Nodes,
    pub(crate) releases: Releases,
    /// From then on only releases go on.
    is_closed: AtomicBool,
    closes: Notify,
}

impl Cluster {
    pub(crate) fn new(nodes: Nodes) -> Self {
        Self {
            nodes,
            releases: Releases::default(),
            is_closed: AtomicBool::new(false),
            closes: Notify::new(),
        }
    }

    /// Begins no call any more, and ends what [waits](Self::while_open).
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.closes.notify_waiters();
    }

    /// The result of `call`, which is dropped once the client is closed.
    pub(crate) async fn while_open<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        // It learns of what comes after the look.
        let closes = self.closes.notified();
        self.check_open()?;
        tokio::select! {
            biased;
            () = closes => Err(Error::Closed),
            done = call => done,
        }
    }

    /// An error once the client is closed.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.is_closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// The attempts of a new call.
    pub(crate) fn attempts(&self) -> Result<Attempts<'_>, Error> {
        self.check_open().map(|()| Attempts::new(&self.nodes))
    }

    pub(crate) async fn call<T>(
        &self,
        request: &Request,
        repeat: Repeat,
        read: impl Fn(&Response) -> serde_json::Result<T>,
    ) -> Result<T, Error> {
        self.attempts()?.call(request, repeat, RETRY_FOR, read).await
    }

    /// Calls something that only reads.
    pub(crate) async fn read<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        self.call(request, Repeat::Reads, Response::json).await
    }

    pub(crate) async fn renew(&self, lease_id: LeaseId, ttl_ms: Option<Ttl>) -> Result<Confirmation, Error> {
        self.check_open()?;
        self.renew_within(lease_id, ttl_ms, RETRY_FOR).await
    }

    /// Also once the client is closed: with a time-to-live, it is how some leases are released.
    pub(crate) async fn renew_within(
        &self,
        lease_id: LeaseId,
        ttl_ms: Option<Ttl>,
        retry_for: Duration,
    ) -> Result<Confirmation, Error> {
        let request = renewal(lease_id, ttl_ms);
        let repeat = Repeat::Harmless(Some(lease_id));
        Attempts::new(&self.nodes).call(&request, repeat, retry_for, Confirmation::read).await
    }

    pub(crate) async fn release(&self, lease_id: LeaseId) -> Result<(), Error> {
        self.check_open()?;
        self.release_within(lease_id, RETRY_FOR).await
    }

    /// Also once the client is closed.
    pub(crate) async fn release_within(&self, lease_id: LeaseId, time: Duration) -> Result<(), Error> {
        let request =
            deletion(lease_id).or_batched(Operation::Release(BatchRelease { lease_id }), Duration::ZERO);
        let repeat = Repeat::Harmless(Some(lease_id));
        Attempts::new(&self.nodes).call(&request, repeat, time, no_content).await
    }
}

pub(crate) fn renewal(lease_id: LeaseId, ttl_ms: Option<Ttl>) -> Request {
    Request::post(format!("/v1/leases/{lease_id}/renew"), &RenewRequest { ttl_ms })
}

pub(crate) fn deletion(lease_id: LeaseId) -> Request {
    Request::new(Method::DELETE, format!("/v1/leases/{lease_id}"))
}

/// Reads a response without a body.
pub(crate) fn no_content(response: &Response) -> serde_json::Result<()> {
    match response.status {
        StatusCode::NO_CONTENT => Ok(()),
        status => Err(serde_json::Error::custom(format!("expected 204, not {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{Problem, ProblemKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Client;

    /// Breaks the first connection, and denies what the others ask.
    async fn denies_after_a_break() -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let problem = Problem::new(ProblemKind::Forbidden, "the right is lost");
            let body = serde_json::to_string(&problem).unwrap();
            let denial = format!("HTTP/1.1 403 Forbidden\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            for answer in std::iter::once(String::new()).chain(std::iter::repeat(denial)) {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Client::connect([url]).unwrap()
    }

    #[tokio::test]
    async fn a_denial_says_nothing_of_attempts_that_may_have_been_done() {
        let lease_id = LeaseId::random();
        let released = denies_after_a_break().await.release(lease_id).await;
        let why = "the right is lost".to_owned();
        assert_eq!(released, Err(Error::Unknown { lease_id: Some(lease_id), why }));
        let acquired = denies_after_a_break().await.lock("a").acquire().await;
        assert!(matches!(acquired, Err(Error::Unknown { .. })), "{acquired:?}");
        let read = denies_after_a_break().await.cluster().await;
        assert!(matches!(read, Err(Error::Rejected(_))), "{read:?}");
    }
}
