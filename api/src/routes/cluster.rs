use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_service::{Caller, Order};
use ringfence_wire::{AddMemberRequest, ClusterStatus, TransferRequest, UpgradeRequest};

use super::audit::{Act, Subject};
use crate::door::{Answer, Door, Request};
use crate::request::query::Query;
use crate::request::requester::Requester;
use crate::request::{body, path};
use crate::response::json;

/// `GET /v1/cluster`
pub(crate) async fn get(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    let mirror = door.options.mirror_status.as_ref().map(|status| status());
    let mut status = ClusterStatus { mirror, ..door.service.status()? };
    (door.options.certificates)(&mut status);
    Ok(json(StatusCode::OK, &status))
}

/// `GET /v1/cluster/backup`
pub(crate) async fn backup(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    Ok(json(StatusCode::OK, &door.service.backup().await?))
}

/// `POST /v1/cluster/members`
pub(crate) async fn add(door: &Door, requester: &Requester, caller: &Caller, request: Request) -> Answer {
    Query::none(request.uri())?;
    let AddMemberRequest { id, peer } = body::read(door, caller, request, AddMemberRequest::check).await?;
    let subject =
        Subject { act: "add-member", member: Some(id), peer: Some(peer.clone()), ..Subject::default() };
    done(Act::begin(door, requester, subject), caller, Order::Add { id, peer }).await
}

/// `DELETE /v1/cluster/members/{id}`
pub(crate) async fn remove(door: &Door, requester: &Requester, caller: &Caller, request: Request) -> Answer {
    let id = path::member(request.uri())?;
    let force = Query::of(request.uri(), &["force"])?.flag("force")?;
    let act = if force { "force-remove-member" } else { "remove-member" };
    let act = Act::begin(door, requester, Subject { act, member: Some(id), ..Subject::default() });
    done(act, caller, Order::Remove { id, force }).await
}

/// `POST /v1/cluster/transfer`
pub(crate) async fn transfer(
    door: &Door,
    requester: &Requester,
    caller: &Caller,
    request: Request,
) -> Answer {
    Query::none(request.uri())?;
    let TransferRequest { to } = body::read(door, caller, request, TransferRequest::check).await?;
    let act = Act::begin(door, requester, Subject { act: "transfer", member: to, ..Subject::default() });
    done(act, caller, Order::Transfer { to }).await
}

/// `POST /v1/cluster/upgrade`
pub(crate) async fn upgrade(door: &Door, requester: &Requester, caller: &Caller, request: Request) -> Answer {
    Query::none(request.uri())?;
    let UpgradeRequest { to, check } = body::read(door, caller, request, |_| Ok(())).await?;
    let act = if check { "check-upgrade" } else { "upgrade" };
    let act = Act::begin(door, requester, Subject { act, rules: to, ..Subject::default() });
    done(act, caller, Order::Upgrade { to, check }).await
}

async fn done(act: Act<'_>, caller: &Caller, order: Order) -> Answer {
    let answer = match caller.allow_order(order) {
        Ok(order) => act.door.service.order(order).await,
        Err(denied) => Err(denied),
    };
    act.ended(answer.map_err(Into::into).map(|upgraded| match upgraded {
        Some(upgraded) => json(StatusCode::OK, &upgraded),
        None => StatusCode::NO_CONTENT.into_response(),
    }))
}
