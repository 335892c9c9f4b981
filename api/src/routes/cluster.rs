use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_raft::MembersError;
use ringfence_wire::{AddMemberRequest, Backup, ClusterStatus, FieldError, ProblemKind, TransferRequest};

use crate::door::{Answer, Door, Request, json};
use crate::problems::Failed;
use crate::request::asker::Asker;
use crate::request::body;
use crate::request::path;
use crate::request::query::Query;
use crate::routes::audit::{Act, Wish};

/// `GET /v1/cluster`
pub(crate) async fn get(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let mirror = door.options.mirror.as_ref().map(|mirror| (mirror.status)());
    Ok(json(StatusCode::OK, &ClusterStatus { mirror, ..door.handle.status() }))
}

/// `GET /v1/cluster/backup`
pub(crate) async fn backup(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    door.handle.linearize().await?;
    let (first_revision, revision) = door.handle.view(|table| (table.first_revision(), table.revision()));
    let cluster_id = door.handle.cluster_id();
    Ok(json(StatusCode::OK, &Backup { format: Backup::FORMAT, cluster_id, first_revision, revision }))
}

/// `POST /v1/cluster/members`
pub(crate) async fn add(door: Arc<Door>, asker: Asker, request: Request) -> Answer {
    Query::none(request.uri())?;
    let AddMemberRequest { id, peer } = body::read(request, AddMemberRequest::check).await?;
    let act = Act::begin(asker, Wish::AddMember { id, peer: peer.clone() });
    act.ended(done(door.handle.add_member(id, peer).await))
}

/// `DELETE /v1/cluster/members/{id}`
pub(crate) async fn remove(door: Arc<Door>, asker: Asker, request: Request) -> Answer {
    let id = path::member(request.uri())?;
    let force = Query::of(request.uri(), &["force"])?.flag("force")?;
    let act = Act::begin(asker, Wish::RemoveMember { id, force });
    act.ended(done(match force {
        false => door.handle.remove_member(id).await,
        true => door.handle.force_remove_member(id).await,
    }))
}

/// `POST /v1/cluster/transfer`
pub(crate) async fn transfer(door: Arc<Door>, asker: Asker, request: Request) -> Answer {
    Query::none(request.uri())?;
    let TransferRequest { to } = body::read(request, |_| Ok::<_, FieldError>(())).await?;
    let act = Act::begin(asker, Wish::Transfer { to });
    act.ended(done(door.handle.transfer_leadership(to).await))
}

fn done(result: Result<(), MembersError>) -> Answer {
    match result {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(MembersError::Refused(reason)) => Err(Failed::new(ProblemKind::MembersRefused, reason)),
        Err(MembersError::Unanswered(unanswered)) => Err(unanswered.into()),
    }
}
