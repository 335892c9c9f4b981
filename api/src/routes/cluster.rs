use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_service::Order;
use ringfence_wire::{AddMemberRequest, ClusterStatus, TransferRequest, UpgradeRequest};

use super::audit::{Act, Subject};
use crate::door::{Answer, Door, Request, Visit};
use crate::request::query::Query;
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
pub(crate) async fn add(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let AddMemberRequest { id, peer } = body::read(visit, request, AddMemberRequest::check).await?;
    let subject =
        Subject { act: "add-member", member: Some(id), peer: Some(peer.clone()), ..Subject::default() };
    done(Act::begin(door, visit, subject), Order::Add { id, peer }).await
}

/// `DELETE /v1/cluster/members/{id}`
pub(crate) async fn remove(door: &Door, visit: &Visit<'_>, request: Request) -> Answer {
    let id = path::member(request.uri())?;
    let force = Query::of(request.uri(), &["force"])?.flag("force")?;
    let act = if force { "force-remove-member" } else { "remove-member" };
    let act = Act::begin(door, visit, Subject { act, member: Some(id), ..Subject::default() });
    done(act, Order::Remove { id, force }).await
}

/// `POST /v1/cluster/transfer`
pub(crate) async fn transfer(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let TransferRequest { to } = body::read(visit, request, TransferRequest::check).await?;
    let act = Act::begin(door, visit, Subject { act: "transfer", member: to, ..Subject::default() });
    done(act, Order::Transfer { to }).await
}

/// `POST /v1/cluster/upgrade`
pub(crate) async fn upgrade(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let UpgradeRequest { to, check } = body::read(visit, request, |_| Ok(())).await?;
    let act = if check { "check-upgrade" } else { "upgrade" };
    let act = Act::begin(door, visit, Subject { act, rules: to, ..Subject::default() });
    done(act, Order::Upgrade { to, check }).await
}

async fn done(act: Act<'_>, order: Order) -> Answer {
    let answer = match act.visit.caller().allow_order(order) {
        Ok(order) => act.door.service.order(order).await,
        Err(denied) => Err(denied),
    };
    act.ended(answer.map_err(Into::into).map(|upgraded| match upgraded {
        Some(upgraded) => json(StatusCode::OK, &upgraded),
        None => StatusCode::NO_CONTENT.into_response(),
    }))
}
