//! openraft's network over the connections to the other nodes.

use std::future::Future;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::append::AppendLink;
use super::call::CallError;
use super::directory::Target;
use super::handshake::Channel;
use super::message::{Answer, Call};
use super::peers::Peers;
use super::snapshot;
use crate::consensus::{Consensus, Member, NodeId, Vote};
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::generation::{Generation, Snapshot};

type RpcResult<T> = Result<T, RPCError<Consensus>>;

/// Makes the clients that openraft asks for, which send what is in this log.
pub(crate) struct Network(pub(crate) Arc<Peers>, pub(crate) LogStore);

/// What openraft sends to one member by: to the incarnation that openraft's own membership names. What another process with
/// the same id answers is never taken for this member's vote or acknowledgement.
pub(crate) struct Client {
    peers: Arc<Peers>,
    target: Target,
    appends: AppendLink,
}

impl Network {
    fn client(&self, to: NodeId, member: &Member, channel: Channel) -> Client {
        let target = Target { to, incarnation: Some(member.incarnation), channel };
        let appends = AppendLink::new(Arc::clone(&self.0.directory), target, self.1.needed_from());
        Client { peers: Arc::clone(&self.0), target, appends }
    }
}

impl RaftNetworkFactory<Consensus> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: NodeId, node: &Member) -> Client {
        self.client(target, node, Channel::Appends)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &Member) -> Client {
        self.client(target, node, Channel::Heartbeats)
    }
}

impl Client {
    /// A call whose time openraft bounds. Without an answer the node is unreachable: for a pre-vote this is no grant.
    async fn call(&self, call: Call) -> RpcResult<Answer> {
        match self.peers.call_incarnation(self.target.to, self.target.incarnation, call).await {
            Ok(answer) => Ok(answer),
            Err(CallError::NotSent(error) | CallError::Unknown(error)) => {
                Err(RPCError::Unreachable(Unreachable::new(&error)))
            }
        }
    }

    async fn campaign(&self, call: Call) -> RpcResult<VoteResponse<Consensus>> {
        match self.call(call).await? {
            Answer::Vote(answer) => {
                let answer = VoteResponse::from(answer);
                let checked = self.peers.directory.check_term(answer.vote.leader_id.term);
                checked.map(|()| answer).map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> RPCError<Consensus> {
    RPCError::Network(NetworkError::from_string(format!("an unexpected answer: {answer:?}")))
}

impl RaftNetworkV2<Consensus> for Client {
    type SnapshotData = Arc<Generation>;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Consensus>,
        _option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<Consensus>> {
        let input = Box::pin(stream::once(async { rpc }));
        let mut answers = Box::pin(self.appends.stream(input).await?);
        match answers.next().await {
            Some(result) => Ok(result?.into()),
            None => Err(RPCError::Network(NetworkError::from_string("no answer to an append"))),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<BoxStream<'s, RpcResult<StreamAppendResult<Consensus>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<Consensus>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let stream: BoxStream<'s, _> = Box::pin(self.appends.stream(input).await?);
            Ok(stream)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Consensus>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<Consensus>> {
        self.campaign(Call::Vote(rpc.into())).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Consensus>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<Consensus>> {
        let ballot = rpc.into();
        self.peers.directory.campaign.ask(&ballot);
        self.campaign(Call::PreVote(ballot)).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Consensus>, StreamingError<Consensus>> {
        let target = Target { channel: Channel::Snapshots, ..self.target };
        let sent = snapshot::send(&self.peers.directory, target, vote, snapshot);
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = sent => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
            },
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Consensus>,
        _option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<Consensus>> {
        match self.call(req.into()).await? {
            Answer::TransferLeader { refused: None } => Ok(Ok(())),
            Answer::TransferLeader { refused: Some(reason) } => {
                Err(RPCError::Network(NetworkError::from_string(reason)))
            }
            other => Err(unexpected(&other)),
        }
    }
}
