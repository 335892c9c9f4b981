//! The measured calls of etcd's API, with the fields that they use. Names and numbers are those of etcd's `rpc.proto`,
//! `kv.proto` and `v3lock.proto`.

use std::net::SocketAddr;

use anyhow::Result;
use http::uri::PathAndQuery;
use prost::{Message, Oneof};
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// A connection; clones share it.
#[derive(Clone)]
pub(super) struct Client(Grpc<Channel>);

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?;
        Ok(Self(Grpc::new(channel)))
    }

    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.0.ready().await?;
        let path = PathAndQuery::from_static(path);
        Ok(self.0.unary(Request::new(request), path, ProstCodec::default()).await?.into_inner())
    }

    /// Returns the lease's id.
    pub(super) async fn grant_lease(&mut self, ttl_s: i64) -> Result<i64> {
        let granted: LeaseGrant =
            self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl_s, id: 0 }).await?;
        Ok(granted.id)
    }

    /// Waits for the lock and returns the key that it is held by.
    pub(super) async fn lock(&mut self, name: &str, lease: i64) -> Result<Vec<u8>> {
        let request = LockRequest { name: name.into(), lease };
        let locked: LockResponse = self.call("/v3lockpb.Lock/Lock", request).await?;
        Ok(locked.key)
    }

    pub(super) async fn unlock(&mut self, key: Vec<u8>) -> Result<()> {
        self.call::<_, Empty>("/v3lockpb.Lock/Unlock", KeyRequest { key }).await.map(drop)
    }

    /// Creates the key; false where it exists.
    pub(super) async fn create(&mut self, key: &str, lease: i64) -> Result<bool> {
        let is_missing =
            Compare { result: EQUAL, target: CREATE, key: key.into(), created: Some(Created::At(0)) };
        let put = PutRequest { key: key.into(), value: Vec::new(), lease };
        let request = TxnRequest { compare: vec![is_missing], success: vec![RequestOp { put: Some(put) }] };
        let done: TxnResponse = self.call("/etcdserverpb.KV/Txn", request).await?;
        Ok(done.succeeded)
    }

    pub(super) async fn delete(&mut self, key: Vec<u8>) -> Result<()> {
        self.call::<_, Empty>("/etcdserverpb.KV/DeleteRange", KeyRequest { key }).await.map(drop)
    }

    /// How many values the key has.
    pub(super) async fn get(&mut self, key: &str, linearizable: bool) -> Result<i64> {
        let request = RangeRequest { key: key.into(), serializable: !linearizable };
        let read: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(read.count)
    }
}

/// `Compare.CompareResult` and `Compare.CompareTarget`.
const EQUAL: i32 = 0;
const CREATE: i32 = 1;

/// An answer that is not read.
#[derive(Clone, Copy, PartialEq, Message)]
struct Empty {}

#[derive(Clone, Copy, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl_s: i64,
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LeaseGrant {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

/// `UnlockRequest` and `DeleteRangeRequest`.
#[derive(Clone, PartialEq, Message)]
struct KeyRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Created", tags = "5")]
    created: Option<Created>,
}

/// The revision that created a key: 0 if it does not exist.
#[derive(Clone, Copy, PartialEq, Oneof)]
enum Created {
    #[prost(int64, tag = "5")]
    At(i64),
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bool, tag = "7")]
    serializable: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct RangeResponse {
    #[prost(int64, tag = "4")]
    count: i64,
}
