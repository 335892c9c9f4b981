use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_raft::MembersError;
use ringfence_wire::{
    AddMemberRequest, Backup, ClusterStatus, ProblemKind, Revision, TransferRequest, UpgradeRequest,
};

use super::audit::{Act, Subject};
use crate::door::{Answer, Door, Request, Visit};
use crate::problems::Failed;
use crate::request::query::Query;
use crate::request::{body, path};
use crate::response::json;

/// `GET /v1/cluster`
pub(crate) async fn get(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    let mirror = door.options.mirror_status.as_ref().map(|status| status());
    let mut status = ClusterStatus { mirror, ..door.cluster().try_status()? };
    (door.options.certificates)(&mut status);
    Ok(json(StatusCode::OK, &status))
}

/// `GET /v1/cluster/backup`
pub(crate) async fn backup(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    door.cluster().linearize().await?;
    let (first_revision, revision) =
        door.cluster().try_view(|table| (table.first_revision(), table.revision()))?;
    if revision == Revision(0) {
        return Err(Failed::new(
            ProblemKind::Unavailable,
            "this new cluster has no revision yet: if it does not start, the log of the leader says why",
        ));
    }
    let cluster_id = door.cluster().cluster_id();
    Ok(json(StatusCode::OK, &Backup { format: Backup::FORMAT, cluster_id, first_revision, revision }))
}

/// `POST /v1/cluster/members`
pub(crate) async fn add(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let AddMemberRequest { id, peer } = body::read(visit, request, AddMemberRequest::check).await?;
    let subject =
        Subject { act: "add-member", member: Some(id), peer: Some(peer.clone()), ..Subject::default() };
    let act = Act::begin(door, visit, subject);
    act.ended(done(door.cluster().add_member(id, peer).await))
}

/// `DELETE /v1/cluster/members/{id}`
pub(crate) async fn remove(door: &Door, visit: &Visit<'_>, request: Request) -> Answer {
    let id = path::member(request.uri())?;
    let force = Query::of(request.uri(), &["force"])?.flag("force")?;
    let act = if force { "force-remove-member" } else { "remove-member" };
    let act = Act::begin(door, visit, Subject { act, member: Some(id), ..Subject::default() });
    act.ended(done(match force {
        false => door.cluster().remove_member(id).await,
        true => door.cluster().force_remove_member(id).await,
    }))
}

/// `POST /v1/cluster/transfer`
pub(crate) async fn transfer(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let TransferRequest { to } = body::read(visit, request, TransferRequest::check).await?;
    let act = Act::begin(door, visit, Subject { act: "transfer", member: to, ..Subject::default() });
    act.ended(done(door.cluster().transfer_leadership(to).await))
}

/// `POST /v1/cluster/upgrade`
pub(crate) async fn upgrade(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let UpgradeRequest { to, check } = body::read(visit, request, |_| Ok(())).await?;
    let act = if check { "check-upgrade" } else { "upgrade" };
    let act = Act::begin(door, visit, Subject { act, rules: to, ..Subject::default() });
    let upgraded = door.cluster().upgrade(to, check).await;
    act.ended(upgraded.map(|upgraded| json(StatusCode::OK, &upgraded)).map_err(failed))
}

fn done(result: Result<(), MembersError>) -> Answer {
    result.map(|()| StatusCode::NO_CONTENT.into_response()).map_err(failed)
}

fn failed(error: MembersError) -> Failed {
    match error {
        MembersError::Refused(reason) => Failed::new(ProblemKind::MembersRefused, reason),
        MembersError::Unanswered(unanswered) => unanswered.into(),
    }
}
