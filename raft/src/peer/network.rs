//! openraft's network over the connections to the other nodes.

use std::future::Future;
use std::io;
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
use tokio::time::sleep_until;

use super::acknowledged::ask_for_acknowledged;
use super::append::AppendLink;
use super::directory::Target;
use super::handshake::Channel;
use super::message::{Answer, Call};
use super::peers::Peers;
use super::snapshot::{self, Undeliverable};
use crate::consensus::{Consensus, Member, NodeId, Vote};
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::generation::{Generation, Snapshot};
use crate::storage::snapshots::{Generations, is_lack};

type RpcResult<T> = Result<T, RPCError<Consensus>>;

/// Makes the clients that openraft asks for, which send what is in this log, and the newest of these snapshots.
pub(crate) struct Network(pub(crate) Arc<Peers>, pub(crate) LogStore, pub(crate) Arc<Generations>);

/// What openraft sends to one member by: to the incarnation that openraft's own membership names. What another process with
/// the same id answers is never taken for this member's vote or acknowledgement.
pub(crate) struct MemberNetwork {
    peers: Arc<Peers>,
    target: Target,
    appends: AppendLink,
    generations: Arc<Generations>,
}

impl Network {
    fn client(&self, to: NodeId, member: &Member, channel: Channel) -> MemberNetwork {
        let target = Target { to, incarnation: Some(member.incarnation), channel };
        let appends = AppendLink::new(Arc::clone(&self.0.directory), target, self.1.needed_from());
        MemberNetwork { peers: Arc::clone(&self.0), target, appends, generations: Arc::clone(&self.2) }
    }
}

impl RaftNetworkFactory<Consensus> for Network {
    type Network = MemberNetwork;

    async fn new_client(&mut self, target: NodeId, node: &Member) -> MemberNetwork {
        self.client(target, node, Channel::Appends)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &Member) -> MemberNetwork {
        self.client(target, node, Channel::Heartbeats)
    }
}

impl MemberNetwork {
    /// A call whose time openraft bounds. Without an answer the node is unreachable: for a pre-vote this is no grant.
    async fn call(&self, call: Call) -> RpcResult<Answer> {
        let called = self.peers.call_incarnation(self.target.to, self.target.incarnation, call).await;
        called.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))
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

impl MemberNetwork {
    /// Sends a snapshot, if that is due. openraft repeats it after any error, with its newest snapshot.
    async fn deliver(&self, vote: Vote, snapshot: Snapshot) -> Result<Vote, Undeliverable> {
        let target = Target { channel: Channel::Snapshots, ..self.target };
        let (directory, term) = (&self.peers.directory, vote.leader_id.term);
        if let Some(next) = directory.next_delivery(target, term) {
            sleep_until(next).await;
            return Err(io::Error::other("there may be a newer snapshot by now").into());
        }
        let (covers, generation) = (snapshot.meta.last_log_id, Arc::clone(&snapshot.snapshot));
        let appends = Target { channel: Channel::Appends, ..self.target };
        let sent = match ask_for_acknowledged(directory, appends, vote).await {
            Ok(None) => snapshot::send(directory, target, vote, snapshot).await,
            Ok(Some(higher)) => Ok(higher),
            Err(error) => Err(error),
        };
        match &sent {
            Ok(theirs) if *theirs == vote => directory.note_delivered(target, term, covers),
            Ok(_) => {}
            Err(Undeliverable::Unreached(_)) => {}
            Err(Undeliverable::Failed(error)) => directory.note_undelivered(target, term, covers, error),
            Err(Undeliverable::Unreadable(error)) => {
                // One that was replaced meanwhile may be gone.
                if let Some(path) = self.generations.note_unreadable(&generation, !is_lack(error)) {
                    let why = format!("the snapshot {} of this node cannot be read: {error}", path.display());
                    directory.note_undelivered(target, term, covers, &io::Error::other(why));
                }
            }
        }
        sent
    }
}

fn unexpected(answer: &Answer) -> RPCError<Consensus> {
    RPCError::Network(NetworkError::from_string(format!("an unexpected answer: {answer:?}")))
}

impl RaftNetworkV2<Consensus> for MemberNetwork {
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
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.deliver(vote, snapshot) => match sent {
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
